"""Captures over the control plane (``engine.capture``): begin, look, end, fetch, let go.

``POST models/M/capture`` with ``limit`` (bytes), ``keep`` and ``for_s`` begins one; ``GET captures`` lists them, ``GET
captures/ID`` says how one stands, ``POST captures/ID/stop`` ends it; ``GET captures/ID/requests?after=N`` gives what it
holds in parts (``protocol.packed``), an empty one at the end; ``POST captures/ID/drop`` lets it go.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from workbench.errors import InvalidRequest
from workbench.protocol import json_data as js
from workbench.protocol.http_codec import HEADER_LENGTH
from workbench.server.http import Exchange

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.server.kserve import Handler, KServeApi

_BEGIN = re.compile(r"/v2/workbench/models/([^/]+)/capture")
_ONE = re.compile(r"/v2/workbench/captures/([0-9a-f]{1,64})(?:/(stop|requests|drop))?")
_LIST = "/v2/workbench/captures"
_NUMBER = re.compile(r"[0-9]{1,18}")


class CaptureRoutes:
    """Method and handler of each path; ``api`` gives what runs off the loop, once there is one."""

    def __init__(self, engine: InferenceEngine, api: Callable[[], KServeApi]) -> None:
        self._engine = engine
        self._api = api

    def find(self, path: str) -> tuple[bytes, Handler] | None:
        """What answers a path; None where it is none of these."""
        if path == _LIST:
            return b"GET", lambda exchange: exchange.json([each.to_json() for each in self._engine.captures()])
        if (begun := _BEGIN.fullmatch(path)) is not None:
            model = unquote(begun[1])
            return b"POST", lambda exchange: self._begin(exchange, model)
        if (found := _ONE.fullmatch(path)) is None:
            return None
        id, verb = found[1], found[2]
        if verb is None:
            return b"GET", lambda exchange: exchange.json(self._engine.capture_status(id).to_json())
        if verb == "stop":
            return b"POST", lambda exchange: exchange.json(self._engine.end_capture(id).to_json())
        if verb == "drop":
            return b"POST", lambda exchange: self._drop(exchange, id)
        return b"GET", lambda exchange: self._requests(exchange, id)

    def _begin(self, exchange: Exchange, model: str) -> None:
        body: Any = js.loads(exchange.body) if exchange.body else {}
        if not isinstance(body, dict):
            raise InvalidRequest("the body must be a JSON object")
        limit, for_s, keep = body.get("limit"), body.get("for_s"), body.get("keep", "first")
        if type(limit) is not int:
            raise InvalidRequest(f"'limit' must be a number of bytes, got {limit!r:.40}")
        if isinstance(for_s, bool) or not isinstance(for_s, int | float):
            raise InvalidRequest(f"'for_s' must be a number of seconds, got {for_s!r:.40}")
        exchange.json(self._engine.begin_capture(model, limit=limit, keep=keep, for_s=float(for_s)).to_json())

    def _drop(self, exchange: Exchange, id: str) -> None:
        self._engine.drop_capture(id)
        exchange.json({"dropped": id})

    def _requests(self, exchange: Exchange, id: str) -> None:
        text = parse_qs(exchange.query.decode("latin-1")).get("after", ["0"])[-1]
        if not _NUMBER.fullmatch(text):
            raise InvalidRequest(f"'after' must be a number of requests, got: {text:.40}")

        def send(encoded: tuple[bytes, bytes]) -> None:
            head, data = encoded
            exchange.respond(200, [head, data], "application/octet-stream", ((HEADER_LENGTH, str(len(head))),))

        def read() -> tuple[bytes, bytes]:
            head, buffers = self._engine.captured_part(id, int(text))
            return head, b"".join(buffers)

        self._api().infer.off_loop(exchange, read, send)
