"""The control plane ``/v2/workbench``: what KServe has no words for. A bearer token is always required."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

import orjson

from workbench import __version__
from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import json_data as js
from workbench.protocol.http_codec import HEADER_LENGTH, MODEL_HEADER, VERSION_HEADER, encode_request
from workbench.server.captures import CaptureRoutes
from workbench.server.http import Exchange, Stream

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.records import Event
    from workbench.server.kserve import Handler, KServeApi
    from workbench.server.options import ServerOptions

API_VERSION = 1
FEATURES = (
    "configure",
    "save",
    "revert",
    "load",
    "unload",
    "leases",
    "records",
    "captured",
    "captures",
    "events",
    "devices",
    "wire",
    "shutdown",
)

_SEQUENCE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_CAPTURED = re.compile(r"/v2/workbench/captured/([0-9]{1,18})")
_MODEL = re.compile(r"/v2/workbench/models/([^/]+)/(config|configure|save|revert|load|unload|lease|renew|release)")
_KEEP_ALIVE_S = 15.0


class ControlPlane:
    """Routes and answers of the control plane."""

    def __init__(self, engine: InferenceEngine, options: ServerOptions, stop: Callable[[], None]) -> None:
        self.engine = engine
        self._token = f"Bearer {options.token}".encode()
        self._name = options.name
        self._stop = stop
        self.api: KServeApi | None = None
        self._captures = CaptureRoutes(engine, self._ready_api)

    def route(self, path: str) -> Handler:
        """The handler of a path; an unknown one is answered only to who has the token."""
        table: dict[str, tuple[bytes, Handler]] = {
            "/v2/workbench": (b"GET", self._capabilities),
            "/v2/workbench/state": (b"GET", self._state),
            "/v2/workbench/records": (b"GET", self._records),
            "/v2/workbench/captured": (b"GET", self._captured),
            "/v2/workbench/events": (b"GET", self._events),
            "/v2/workbench/devices": (b"GET", self._devices),
            "/v2/workbench/wire": (b"GET", self._wire),
            "/v2/workbench/leases": (b"GET", lambda exchange: exchange.json(self.engine.leases())),
            "/v2/workbench/shutdown": (b"POST", self._shutdown),
        }
        found = table.get(path) or self._captures.find(path)
        if found is not None:
            return self._guarded(*found)
        captured = _CAPTURED.fullmatch(path)
        if captured is not None:
            return self._guarded(b"GET", lambda exchange: self._captured_request(exchange, int(captured[1])))
        match = _MODEL.fullmatch(path)
        if match is None:
            return self._guarded(b"", lambda exchange: exchange.error(404, "Not Found"))
        model, verb = unquote(match[1]), match[2]
        if verb == "config":
            return self._guarded(b"GET", lambda exchange: self._config(exchange, model))
        return self._guarded(b"POST", lambda exchange: self._change(exchange, model, verb))

    def _ready_api(self) -> KServeApi:
        assert self.api is not None
        return self.api

    def _guarded(self, method: bytes, handler: Handler) -> Handler:
        def guarded(exchange: Exchange) -> None:
            if not hmac.compare_digest(exchange.headers.get(b"authorization", b""), self._token):
                exchange.respond(
                    401,
                    b'{"error":"the control plane needs the server\'s token: Authorization: Bearer TOKEN'
                    b' (server.token in Python; workbench serve --token sets it)"}',
                    "application/json",
                    (("WWW-Authenticate", "Bearer"),),
                )
            elif method and exchange.method != method:
                exchange.error(405, "Method Not Allowed")
            else:
                handler(exchange)

        return guarded

    def _capabilities(self, exchange: Exchange) -> None:
        exchange.json(
            {
                "version": API_VERSION,
                "workbench": __version__,
                "pid": os.getpid(),
                "name": self._name,
                "control_mode": self.engine.options.control_mode,
                "repositories": [str(path) for path in self.engine.options.repositories],
                "backend_directory": str(self.engine.options.backend_directory),
                "features": list(FEATURES),
            }
        )

    def _state(self, exchange: Exchange) -> None:
        exchange.respond(200, as_json(self.engine.snapshot()), "application/json")

    def _config(self, exchange: Exchange, model: str) -> None:
        state = self.engine.config_state(model)
        exchange.json(
            {
                "text": state.document.data.decode("utf-8", "replace"),
                "saved_text": (state.saved or b"").decode("utf-8", "replace"),
                "epoch": state.epoch,
                "dirty": state.dirty,
                "effective": state.effective,
            }
        )

    def _change(self, exchange: Exchange, model: str, verb: str) -> None:
        assert self.api is not None
        body = _body(exchange)
        engine = self.engine
        if verb == "configure":
            edits = _edits(body.get("edits", []))
            dry_run, lease = _flag(body, "dry_run"), str(body.get("lease", ""))
            work = engine.configure_async(model, edits, dry_run=dry_run, lease=lease)
            self.api.run(exchange, work, lambda r: r.to_json())
        elif verb == "lease":
            ttl_s = _seconds(body, "ttl_s")
            self.api.run(exchange, engine.lease_async(model, body.get("holder", {}), ttl_s), lambda id: {"lease": id})
        elif verb in ("renew", "release"):
            end = engine.renew_lease_async if verb == "renew" else engine.release_lease_async
            self.api.run(exchange, end(model, str(body.get("lease", ""))), lambda _: {"model": model})
        elif verb == "save":
            self.api.run(exchange, engine.save_async(model), lambda r: r.to_json())
        elif verb == "revert":
            self.api.run(exchange, engine.revert_async(model), lambda r: r.to_json())
        elif verb == "load":
            config, files = self._load_parameters(body)
            self.api.run(exchange, engine.load_async(model, config=config, files=files), lambda _: {"model": model})
        else:
            dependents = _flag(body, "unload_dependents")
            self.api.run(exchange, engine.unload_async(model, unload_dependents=dependents), lambda _: {"model": model})

    def _load_parameters(self, body: dict[str, Any]) -> tuple[str | None, dict[str, bytes] | None]:
        """As Triton's repository API has them, under ``parameters``; or ``config`` in the body, as text or as it is."""
        assert self.api is not None
        if "parameters" in body:
            return self.api.load_parameters(body["parameters"])
        config = body.get("config")
        return (config if config is None or isinstance(config, str) else js.dumps(config).decode()), None

    def _records(self, exchange: Exchange) -> None:
        from workbench.records import encode_columns

        after, records = _after(exchange), self.engine.records

        def send(encoded: tuple[bytes, list[bytes]]) -> None:
            head, buffers = encoded
            exchange.respond(200, [head, *buffers], "application/octet-stream", ((HEADER_LENGTH, str(len(head))),))

        # tens of thousands of rows take long enough to be felt by requests
        assert self.api is not None
        self.api.infer.off_loop(exchange, lambda: encode_columns(records.read(after)), send)

    def _captured(self, exchange: Exchange) -> None:
        exchange.json([asdict(row) for row in self.engine.captured.rows()])

    def _captured_request(self, exchange: Exchange, seq: int) -> None:
        """The request as KServe has it, with what its URL would say in two headers."""
        request = self.engine.captured.get(seq)
        head, buffers = encode_request(request)
        about = ((MODEL_HEADER, quote(request.model_name, safe="")), (VERSION_HEADER, str(request.model_version)))
        length = ((HEADER_LENGTH, head[HEADER_LENGTH]),) if HEADER_LENGTH in head else ()
        exchange.respond(200, buffers, head["Content-Type"], (*about, *length))

    def _events(self, exchange: Exchange) -> None:
        after, log = _after(exchange), self.engine.events
        if _query(exchange, "wait") == "0":
            exchange.json([event.to_json() for event in log.after(after)])
            return
        _EventStream(exchange.stream("text/event-stream; charset=utf-8"), exchange.loop, log, after)

    def _devices(self, exchange: Exchange) -> None:
        from workbench import telemetry

        pids = tuple(
            int(pid) for pid in _query(exchange, "pids").split(",") if pid.isascii() and pid.isdigit() and len(pid) < 10
        )
        assert self.api is not None
        loop = exchange.loop
        sampled = loop.run_in_executor(None, lambda: telemetry.sample(pids or telemetry.family()))

        async def wait() -> Any:
            return await sampled

        self.api.run(exchange, wait(), lambda sample: sample.to_json())

    def _wire(self, exchange: Exchange) -> None:
        assert self.api is not None
        exchange.json(self.api.wire.to_json())

    def _shutdown(self, exchange: Exchange) -> None:
        exchange.keep_alive = False
        exchange.json({"stopping": True})
        exchange.loop.call_soon(self._stop)


class _EventStream:
    """Sends an event log to one client, from where the client left off; a comment now and then keeps it open."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop, log: Any, after: int) -> None:
        self._stream = stream
        self._loop = loop
        self._log = log
        self._seq = after
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        if stream.closed:
            return
        self._unsubscribe: Callable[[], None] = log.subscribe(self._wake)
        stream.on_close = self._close
        stream.endless = True
        stream.write(b": events\n\n")
        self._send()
        self._tick()

    def _wake(self, event: Event) -> None:
        """On the thread that appended the event."""
        if not self._scheduled and not self._loop.is_closed():
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        self._scheduled = False
        events = self._log.after(self._seq)
        if not events or self._stream.closed:
            return
        self._seq = events[-1].seq
        self._stream.write(b"".join(b"id: %d\ndata: %b\n\n" % (e.seq, as_json(e.to_json())) for e in events))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_KEEP_ALIVE_S, self._tick)
        self._stream.write(b": \n\n")

    def _close(self) -> None:
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()


def as_json(value: Any) -> bytes:
    """A value as JSON: what has ``to_json`` by that, dataclasses and numpy arrays as they are, the rest as text."""
    found = getattr(value, "to_json", None)
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value if found is None else found(), option=option, default=_default)


def _default(value: Any) -> Any:
    found = getattr(value, "to_json", None)
    if found is not None:
        return found()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    try:
        return dict(value)
    except (TypeError, ValueError):
        return str(value)


def _body(exchange: Exchange) -> dict[str, Any]:
    value = js.loads(exchange.body) if exchange.body else {}
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise InternalError(f"Unable to parse '{name}': {js.NOT_BOOL}")
    return value


def _seconds(body: dict[str, Any], name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"'{name}' must be a number of seconds, got {value!r:.40}")
    return float(value)


def _edits(value: Any) -> list[Any]:
    from workbench.config import Edit

    if not isinstance(value, list):
        raise InvalidRequest("'edits' must be a list of {path, op, value}")
    try:
        return [Edit.from_json(entry) for entry in value]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"'edits' must be a list of {{path, op, value}}: {error}") from error


def _query(exchange: Exchange, name: str) -> str:
    found = parse_qs(exchange.query.decode("latin-1")).get(name)
    return found[-1] if found else ""


def _after(exchange: Exchange) -> int:
    text = _query(exchange, "after")
    if not text:
        return -1
    if not _SEQUENCE_NUMBER.fullmatch(text):
        raise InvalidRequest(f"'after' must be a sequence number, got: {text}")
    return int(text)
