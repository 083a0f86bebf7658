"""The workbench's control plane, under ``/v2/workbench`` of a server's HTTP port."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import orjson

from workbench.client.http_client import answer_error, encode_json, parse_json
from workbench.client.http_pool import Answer, HttpPool
from workbench.client.interface import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, LOAD_TIMEOUT_S, Config
from workbench.errors import InternalError, WorkbenchError, from_json
from workbench.protocol.binary import Buffer
from workbench.protocol.http_codec import HEADER_LENGTH, MODEL_HEADER, VERSION_HEADER, DecodeOptions, decode_request
from workbench.protocol.tensors import InferenceRequest
from workbench.records import Event, RecordColumns, decode_columns
from workbench.records.capture import CaptureStatus, Keep

_ROOT = "/v2/workbench"


class ControlClient:
    """What KServe has no words for: live edits, records, events, devices. Thread-safe.

    Args:
        url: the server's HTTP address.
        token: its bearer token (in its runtime file).
    """

    def __init__(self, url: str, token: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._pool = HttpPool(url, headers={"Authorization": f"Bearer {token}"}, connect_timeout_s=connect_timeout_s)
        self.url = self._pool.url

    def capabilities(self) -> dict[str, Any]:
        """What the server offers: ``version``, ``workbench``, ``pid``, ``name``, ``features``, where its files are."""
        return self._dict("GET", "")

    def state(self) -> dict[str, Any]:
        """The engine's snapshot: per model state, instances, pending, failures, epoch, recent batches."""
        return self._dict("GET", "/state")

    def config(self, model: str) -> dict[str, Any]:
        """``text`` (applied), ``saved_text`` (on disk), ``epoch``, ``dirty``, ``effective`` (completed JSON)."""
        return self._dict("GET", self._model(model, "config"))

    def configure(self, model: str, edits: Sequence[Any], *, dry_run: bool = False, lease: str = "") -> dict[str, Any]:
        """Applies edits (``Edit`` objects or ``{"path", "op", "value"}``) in memory while the model serves.

        ``lease`` is that of the model, where it is taken (``lease``).
        """
        body = {"edits": [_edit_json(edit) for edit in edits], "dry_run": dry_run, "lease": lease}
        return self._dict("POST", self._model(model, "configure"), body, LOAD_TIMEOUT_S)

    def lease(self, model: str, holder: Mapping[str, Any], ttl_s: float) -> str:
        """Takes a model for a sweep: only edits that name the lease given are allowed until it ends.

        When it is released, or gives no sign of life for ``ttl_s`` seconds, the server puts the configuration back.

        Raises:
            NotReady: somebody has it; the text names the holder (a ``records.Holder`` as JSON).
        """
        body = {"holder": dict(holder), "ttl_s": ttl_s}
        return str(self._dict("POST", self._model(model, "lease"), body, LOAD_TIMEOUT_S)["lease"])

    def renew_lease(self, model: str, lease: str) -> None:
        """A sign of life.

        Raises:
            NotReady: the lease is over.
        """
        self._call("POST", self._model(model, "renew"), {"lease": lease})

    def release_lease(self, model: str, lease: str) -> None:
        """Puts the configuration back to the byte and lets go of the model."""
        self._call("POST", self._model(model, "release"), {"lease": lease}, LOAD_TIMEOUT_S)

    def leases(self) -> list[dict[str, Any]]:
        """Which models are taken: ``model``, ``holder``, ``ttl_s``."""
        return list(self._json("GET", "/leases"))

    def save(self, model: str) -> dict[str, Any]:
        """Writes the applied configuration to config.pbtxt: ``model``, ``path``, ``diff``."""
        return self._dict("POST", self._model(model, "save"), {})

    def revert(self, model: str) -> dict[str, Any]:
        """Applies the configuration as the file has it."""
        return self._dict("POST", self._model(model, "revert"), {}, LOAD_TIMEOUT_S)

    def load(self, model: str, config: Config = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model, whatever the control mode."""
        body: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        if config is not None:
            parameters["config"] = config if isinstance(config, str) else encode_json(config).decode()
        for path, content in (files or {}).items():
            parameters[f"file:{path.removeprefix('file:')}"] = base64.b64encode(content).decode()
        if parameters:
            body["parameters"] = parameters
        self._call("POST", self._model(model, "load"), body, LOAD_TIMEOUT_S)

    def unload(self, model: str) -> None:
        """Unloads a model, whatever the control mode."""
        self._call("POST", self._model(model, "unload"), {}, LOAD_TIMEOUT_S)

    def records(self, after: int = -1) -> RecordColumns:
        """Request and batch records after a cursor (``last_seq`` of an earlier answer)."""
        header, buffers = self._split(self._call("GET", f"/records?after={after}"))
        return decode_columns(bytes(header), memoryview(buffers))

    def _split(self, answer: Answer) -> tuple[Buffer, Buffer]:
        """JSON and what is behind it."""
        length = answer.headers.get(HEADER_LENGTH.lower())
        if length is None or not length.isdigit():
            raise InternalError(f"the server's answer has no {HEADER_LENGTH}", where=self.url)
        return answer.body[: int(length)], memoryview(answer.body)[int(length) :]

    def captured(self) -> list[dict[str, Any]]:
        """The requests whose inputs are kept: ``seq``, ``model``, ``why``, ``duration_ns``, ``size`` and more."""
        return list(self._json("GET", "/captured"))

    def captured_request(self, seq: int) -> InferenceRequest:
        """A kept request, with its inputs.

        Raises:
            NotFound: it is not kept (any more).
        """
        answer = self._call("GET", f"/captured/{seq}")
        length = answer.headers.get(HEADER_LENGTH.lower())
        options = DecodeOptions(
            unquote(answer.headers.get(MODEL_HEADER.lower(), "")),
            int(answer.headers.get(VERSION_HEADER.lower(), "-1")),
        )
        return decode_request(answer.body, None if length is None else int(length), options)

    def begin_capture(self, model: str, *, limit: int, keep: Keep, for_s: float) -> CaptureStatus:
        """Begins to take down what clients send to a model, inputs included, in the server's memory.

        Args:
            model: its name.
            limit: bytes that what is kept may take.
            keep: the first requests up to the limit, or the last within it.
            for_s: how long at most, seconds.

        Raises:
            NotFound: there is no such model.
            NotReady: there are as many captures as may be.
        """
        body = {"limit": limit, "keep": keep, "for_s": for_s}
        return CaptureStatus.from_json(self._dict("POST", self._model(model, "capture"), body))

    def captures(self) -> list[CaptureStatus]:
        """The captures under way, and those that nobody has fetched."""
        return [CaptureStatus.from_json(each) for each in self._json("GET", "/captures")]

    def capture_status(self, id: str) -> CaptureStatus:
        """How a capture stands; NotFound where there is none of this id (any more)."""
        return CaptureStatus.from_json(self._dict("GET", f"/captures/{id}"))

    def end_capture(self, id: str) -> CaptureStatus:
        """Ends a capture; NotFound where there is none of this id (any more)."""
        return CaptureStatus.from_json(self._dict("POST", f"/captures/{id}/stop", {}))

    def captured_part(self, id: str, after: int) -> tuple[Buffer, Buffer]:
        """Some of what was captured, from the ``after``-th request on, for ``decode_packed``; none at the end."""
        return self._split(self._call("GET", f"/captures/{id}/requests?after={after}"))

    def drop_capture(self, id: str) -> None:
        """Lets go of a capture and of what it holds."""
        self._call("POST", f"/captures/{id}/drop", {})

    def events(self, after: int = -1) -> list[Event]:
        """The events after a number that the server still keeps."""
        answer = self._json("GET", f"/events?after={after}&wait=0")
        if isinstance(answer, dict):
            answer = answer.get("events", [])
        return [Event.from_json(entry) for entry in answer or ()]

    def stream_events(self, after: int = -1, *, idle_s: float = 60.0) -> Iterator[Event]:
        """Events as they happen (server-sent), until the server ends or nothing comes for ``idle_s``.

        Raises:
            ConnectionFailed: nothing came for ``idle_s`` seconds, or the connection broke.
        """
        with self._pool.stream(f"{_ROOT}/events?after={after}", {"Accept": "text/event-stream"}, idle_s) as response:
            if response.status != 200:
                raise answer_error(Answer(response.status, {}, response.read()), self.url)
            data: list[bytes] = []
            for line in response:
                line = line.rstrip(b"\r\n")
                if line.startswith(b"data:"):
                    data.append(line[5:].strip())
                elif not line and data:
                    yield Event.from_json(orjson.loads(b"\n".join(data)))
                    data = []

    def devices(self) -> dict[str, Any]:
        """CPU, memory and GPUs of the machine that serves."""
        return self._dict("GET", "/devices")

    def wire(self) -> dict[str, dict[str, int]]:
        """Inference requests by the model asked: ``requests``, bytes ``received`` and ``sent``, heads included."""
        return self._dict("GET", "/wire")

    def shutdown(self) -> None:
        """Ends the server; requests that run are finished first."""
        self._call("POST", "/shutdown", {})

    def close(self) -> None:
        """Closes the connections."""
        self._pool.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @staticmethod
    def _model(name: str, verb: str) -> str:
        return f"/models/{quote(name, safe='')}/{verb}"

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
        encoded = encode_json(body) if body is not None else b""
        headers = {"Content-Type": "application/json"} if encoded else {}
        answer = self._pool.request(method, _ROOT + path, encoded, headers, timeout_s)
        if answer.status >= 300:
            raise _error(answer, self.url)
        return answer

    def _json(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        return parse_json(self._call(method, path, body, timeout_s), self.url + _ROOT + path)

    def _dict(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        answer = self._json(method, path, body, timeout_s)
        if not isinstance(answer, dict):
            raise InternalError(f"the server's answer to {_ROOT}{path} is not a JSON object", where=self.url)
        return answer


def _edit_json(edit: Any) -> Any:
    return edit.to_json() if hasattr(edit, "to_json") else edit


def _error(answer: Answer, url: str) -> WorkbenchError:
    """The very error that the server raised, with its hint; what says less becomes what its status stands for."""
    try:
        data = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        data = None
    error = from_json(data) if isinstance(data, dict) else None
    if error is None:
        return answer_error(answer, url)
    error.where = error.where or url
    return error
