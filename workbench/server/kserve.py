"""The KServe v2 and Triton endpoints: which path means what, and what each answers (reference: http_server.cc).

Paths match as a whole, as Triton's regular expressions do. Looking a path up is remembered, so the hot one costs a
dictionary look-up.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from base64 import b64decode
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from workbench.engine.host import NOT_EXPLICIT
from workbench.errors import InternalError, InvalidRequest, NotReady, Unsupported
from workbench.protocol import json_data as js
from workbench.protocol.binary import Buffer
from workbench.protocol.http_codec import json_too_large
from workbench.server.access import TOKEN_NEEDED, has_token
from workbench.server.exchange import Answered, error_body
from workbench.server.forwarding import HeaderForwarding
from workbench.server.generate import GenerateEndpoint
from workbench.server.guard import HostGuard
from workbench.server.http import JSON, Exchange
from workbench.server.infer import InferEndpoint
from workbench.server.options import EXTENSIONS, TRITON_VERSION, ServerOptions
from workbench.server.settings import LogControl, TraceSettings
from workbench.server.shared_memory import Kind, SharedMemory
from workbench.server.traffic import WireCounts

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.engine.readiness import Ready
    from workbench.server.control import ControlPlane

LOG = logging.getLogger("workbench.server")

Handler = Callable[[Exchange], None]

_MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
    r"(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_REPOSITORY = re.compile(r"/v2/repository(?:/([^/]+))?/(index|models/([^/]+)/(load|unload))")
_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")
_INT64_MAX = 2**63 - 1
_ROUTES = 4096
_ROUTE_BYTES = 512  # a longer path is looked up each time: what strangers ask for must not be kept in full

_CATEGORY = {
    "": "metadata", "ready": "health", "config": "model-config", "stats": "statistics", "trace/setting": "trace",
    "infer": "inference", "generate": "inference", "generate_stream": "inference",
}  # fmt: skip

NOT_ALLOWED = "Method Not Allowed"
FILES_DISABLED = (
    "file overrides in load requests are disabled. Start the server with '--allow-file-override=true' to enable."
)


class KServeApi:
    """The application behind the HTTP port."""

    def __init__(self, engine: InferenceEngine, options: ServerOptions, control: ControlPlane | None = None) -> None:
        self.engine = engine
        self.options = options
        self.control = control
        self.logging = LogControl(engine.log_settings)
        self.tracing = TraceSettings()
        self.memory = SharedMemory(options.allow_client_shm)
        forwarding = HeaderForwarding(options.http_header_forward_pattern, secret=f"Bearer {options.token}")
        self.keep_headers = bool(forwarding)
        self.infer = InferEndpoint(engine, options.max_input_size, self.memory, forwarding)
        self.generate = GenerateEndpoint(engine, options.max_input_size)
        self.wire = WireCounts(engine.serves)
        self.exiting = False
        self._guard = HostGuard(options.http_address, options.allowed_hosts)
        self._routes: dict[bytes, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.metadata = {"name": options.id, "version": TRITON_VERSION, "extensions": list(EXTENSIONS)}

    def close(self) -> None:
        """Ends what the endpoints hold."""
        self.infer.close()

    # -- the application ----------------------------------------------------------------------------------------------

    def early_refusal(self, exchange: Exchange, size: int | None) -> tuple[int, str] | None:
        """Host, Origin and size, before the body is read."""
        headers = exchange.headers
        refusal = self._guard.refusal(headers.get(b"host", b""), headers.get(b"origin", b""))
        if refusal:
            return 403, refusal
        limit = self.options.max_input_size
        if size is not None and size > limit and b"inference-header-content-length" not in headers:
            return 400, json_too_large(size, limit)
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answers a request."""
        if self.logging.verbose:
            LOG.debug("HTTP request: %s %s", exchange.method.decode(), exchange.path.decode("latin-1"))
        handler = self._routes.get(exchange.path)
        if handler is None:
            handler = self._route(exchange.path)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            if len(exchange.path) <= _ROUTE_BYTES:
                self._routes[exchange.path] = handler
        handler(exchange)

    def _route(self, raw: bytes) -> Handler:
        path = unquote(raw.decode("latin-1"), errors="replace") if b"%" in raw else raw.decode("utf-8", "replace")
        exact: tuple[str, Handler] | None = {
            "/v2": ("metadata", self._server_metadata),
            "/v2/health/live": ("health", self._live),
            "/v2/health/ready": ("health", self._ready),
            "/v2/models/stats": ("statistics", lambda exchange: self._statistics(exchange, "", -1)),
            "/v2/logging": ("logging", self._logging),
            "/v2/trace/setting": ("trace", lambda exchange: self._trace(exchange, "")),
        }.get(path)
        if exact is not None:
            return self._restricted(*exact)
        # a slash that a name holds as %2F must not end the name: names are matched before they are decoded
        text = raw.decode("latin-1")
        if match := _MODEL.fullmatch(text):
            kind = match[3] or ""
            return self._restricted(_CATEGORY[kind], self._model_route(unquote(match[1]), match[2] or "", kind))
        if match := _REPOSITORY.fullmatch(text):
            repository, kind, model, action = match[1] or "", match[2], unquote(match[3] or ""), match[4]
            if kind == "index":
                return self._restricted("model-repository", self._index)
            return self._restricted(
                "model-repository", lambda exchange: self._repository_control(exchange, repository, model, action)
            )
        if match := _MEMORY.fullmatch(text):
            system, region, action = match[1] == "system", unquote(match[2] or ""), match[3]
            return self._restricted(
                "shared-memory", lambda exchange: self._shared_memory(exchange, system, region, action)
            )
        if self.control is not None and (text == "/v2/workbench" or text.startswith("/v2/workbench/")):
            return self.control.route(text)
        return lambda exchange: exchange.error(404, "Not Found")

    def _restricted(self, category: str, handler: Handler) -> Handler:
        """The handler, behind the header that the category asks for, if it does.

        Who has the control plane's token may do more than any category, so he is let through: else what the session
        that started the server asks for would depend on what others may not.
        """
        restriction = self.options.http_restricted.get(category)
        if restriction is None:
            return handler

        def restricted(exchange: Exchange) -> None:
            if restriction.is_met(exchange.headers) or self._is_owner(exchange):
                handler(exchange)
            else:
                exchange.error(403, f"This API is restricted, expecting header '{restriction.header}'")

        return restricted

    def _is_owner(self, exchange: Exchange) -> bool:
        token = self.options.token
        return bool(token) and has_token(token, exchange.headers.get(b"authorization", b""))

    def _counted(self, model: str, handler: Handler) -> Handler:
        """An inference by POST, its bytes counted."""
        begin = self.wire.begin

        def counted(exchange: Exchange) -> None:
            if exchange.method != b"POST":
                exchange.error(405, NOT_ALLOWED)
                return
            exchange.wire = begin(model, exchange.received)
            handler(exchange)

        return counted

    def _model_route(self, model: str, digits: str, kind: str) -> Handler:
        if kind == "trace/setting":
            if digits:
                return lambda exchange: exchange.error(404, "Not Found")
            return lambda exchange: self._trace(exchange, model)
        if digits and int(digits[:20]) > _INT64_MAX:
            text = (
                f"failed to get model version from specified version string '{digits}' (details: stol), version should "
                "be an integral value > 0"
            )
            return lambda exchange: exchange.error(400, text)
        version = int(digits) if digits else -1
        if kind == "infer":
            infer = self.infer.handle
            return self._counted(model, lambda exchange: infer(exchange, model, version))
        if kind in ("generate", "generate_stream"):
            generate, streaming = self.generate.handle, kind == "generate_stream"
            return self._counted(model, lambda exchange: generate(exchange, model, version, streaming=streaming))
        call = {
            "ready": self._model_ready,
            "config": self._model_config,
            "stats": self._statistics,
            "": self._model_metadata,
        }[kind]
        return lambda exchange: call(exchange, model, version)

    # -- health and metadata ------------------------------------------------------------------------------------------

    def _live(self, exchange: Exchange) -> None:
        if self._may_ask_health(exchange):
            exchange.respond(200 if self.engine.is_live() else 400)

    def _ready(self, exchange: Exchange) -> None:
        if self._may_ask_health(exchange):
            self._when_known(exchange, self.engine.server_readiness(), lambda: exchange.respond(400))

    def _may_ask_health(self, exchange: Exchange) -> bool:
        if not _is(exchange, b"GET"):
            return False
        if self.exiting:
            exchange.error(503, "Server exiting")
            return False
        return True

    def _when_known(self, exchange: Exchange, ready: Ready, not_ready: Callable[[], None]) -> None:
        """Answers a question of readiness: a Python model that is asked takes its time, and the loop goes on."""

        def answer(ready: bool) -> None:
            if ready:
                exchange.respond(200)
            else:
                not_ready()

        async def ask(asked: Coroutine[Any, Any, bool]) -> None:
            answer(await asked)

        if isinstance(ready, bool):
            answer(ready)
        else:
            self.spawn(exchange, ask(ready))

    def _server_metadata(self, exchange: Exchange) -> None:
        if _is(exchange, b"GET"):
            exchange.json(self.metadata)

    def _model_ready(self, exchange: Exchange, model: str, version: int) -> None:
        if not _is(exchange, b"GET"):
            return
        ready = self.engine.model_readiness(model, version)
        self._when_known(exchange, ready, lambda: exchange.error(400, "Model version not ready"))

    def _model_metadata(self, exchange: Exchange, model: str, version: int) -> None:
        if _is(exchange, b"GET"):
            exchange.json(self.engine.model_metadata(model, version))

    def _model_config(self, exchange: Exchange, model: str, version: int) -> None:
        if _is(exchange, b"GET"):
            from workbench.config import to_json

            exchange.json(to_json(self.engine.model_config(model, version)))

    def _statistics(self, exchange: Exchange, model: str, version: int) -> None:
        if _is(exchange, b"GET"):
            exchange.json(self.engine.statistics(model, version))

    # -- repository ---------------------------------------------------------------------------------------------------

    def _index(self, exchange: Exchange) -> None:
        if not _is(exchange, b"POST"):
            return
        request = js.loads(exchange.body) if exchange.body else {}
        ready = request.get("ready", False) if isinstance(request, dict) else False
        if not isinstance(ready, bool):
            raise InvalidRequest("Invalid value for 'ready': expected a boolean")
        self.infer.off_loop(exchange, lambda: self.engine.repository_index(ready), exchange.json)

    def _repository_control(self, exchange: Exchange, repository: str, model: str, action: str) -> None:
        if not _is(exchange, b"POST"):
            return
        told = exchange.headers.get(b"authorization", b"")
        if not has_token(self.options.repository_token, told) and not self._is_owner(exchange):
            exchange.respond(401, error_body(TOKEN_NEEDED), JSON, (("WWW-Authenticate", "Bearer"),))
            return
        if repository:
            raise Unsupported("'repository_name' specification is not supported")
        request = js.loads(exchange.body) if exchange.body else {}
        parameters = request.get("parameters", {}) if isinstance(request, dict) else {}
        if action == "load":
            config, files = self.load_parameters(parameters)
            self.check_control_mode()
            self.run(exchange, self.engine.load_async(model, config=config, files=files))
            return
        dependents = parameters.get("unload_dependents", False) if isinstance(parameters, dict) else False
        if not isinstance(dependents, bool):
            raise InternalError(f"Unable to parse 'unload_dependents': {js.NOT_BOOL}")
        self.check_control_mode()
        self.run(exchange, self.engine.unload_async(model, unload_dependents=dependents))

    def check_control_mode(self) -> None:
        """Raises NotReady where models are not loaded and unloaded by request."""
        if self.engine.options.control_mode != "explicit":
            raise NotReady(NOT_EXPLICIT)

    def load_parameters(self, parameters: Any) -> tuple[str | None, dict[str, bytes] | None]:
        """The configuration and the files that a load brings along.

        Raises:
            WorkbenchError: with Triton's texts.
        """
        if not isinstance(parameters, dict):
            raise InternalError("attempt to get members for non-object")
        config: str | None = None
        files: dict[str, bytes] = {}
        for key, value in parameters.items():
            if not isinstance(value, str):
                raise InternalError(js.NOT_STRING)
            if key == "config":
                config = value
            elif key.startswith("file:"):
                if not self.options.allow_file_override:
                    raise Unsupported(FILES_DISABLED)
                try:
                    files[key[5:]] = base64.b64decode(value)
                except (binascii.Error, ValueError):
                    raise InvalidRequest(f"'{key}' is not valid base64") from None
            else:
                raise InternalError("unexpected error on creating Triton parameter")
        return config, files or None

    def run(
        self, exchange: Exchange, work: Coroutine[Any, Any, Any], encode: Callable[[Any], Any] | None = None
    ) -> None:
        """Answers when ``work`` is done: empty, or what ``encode`` makes of its result as JSON."""

        async def finish() -> None:
            result = await work
            if encode is None:
                exchange.respond(200, b"", JSON)
            else:
                exchange.json(encode(result))

        self.spawn(exchange, finish())

    def spawn(self, exchange: Answered, answering: Coroutine[Any, Any, None]) -> None:
        """Has ``answering`` answer; what it raises is the answer."""

        async def guarded() -> None:
            try:
                await answering
            except Exception as error:  # the answer, whatever it is: the server stays up
                exchange.fail(error)

        task = exchange.loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- settings and shared memory -----------------------------------------------------------------------------------

    def _logging(self, exchange: Exchange) -> None:
        if not _is(exchange, b"GET", b"POST"):
            return
        if exchange.method == b"POST":
            self.logging.update(js.loads(exchange.body))
        exchange.json(self.logging.current())

    def _trace(self, exchange: Exchange, model: str) -> None:
        if not _is(exchange, b"GET", b"POST"):
            return
        if model and not self._knows(model):
            raise InvalidRequest(f"Request for unknown model : {model}")
        if exchange.method == b"POST":
            self.tracing.update(js.loads(exchange.body), model)
        exchange.json(self.tracing.current(model))

    def _knows(self, model: str) -> bool:
        return self.engine.serves(model)

    def _shared_memory(self, exchange: Exchange, system: bool, region: str, action: str) -> None:
        if not _is(exchange, b"GET" if action == "status" else b"POST"):
            return
        kind: Kind = "system" if system else "cuda"
        if action == "status":
            exchange.json(self.memory.status(kind, region))
            return
        if action == "unregister":
            self.memory.unregister(kind, region)
        elif system and self.memory.allowed and region:
            self.memory.register_system(region, *_system_region(exchange.body))
        elif system:
            self.memory.register_system(region, "", 0, 0)
        elif self.memory.allowed and region and self.memory.has_gpus():
            self.memory.register_cuda(region, *_cuda_region(exchange.body))
        else:
            self.memory.register_cuda(region, b"", 0, 0)
        exchange.respond(200, b"", JSON)


def _system_region(body: Buffer) -> tuple[str, int, int]:
    """Key, offset and size of a register request."""
    request = js.loads(body)
    if not isinstance(request, dict) or "key" not in request:
        raise InvalidRequest("Shared memory register request has no 'key' field")
    key, offset = request["key"], request.get("offset", 0)
    if not isinstance(key, str):
        raise InternalError(js.NOT_STRING)
    if "byte_size" not in request:
        raise InvalidRequest("Shared memory register request has no 'byte_size' field")
    for number in (offset, request["byte_size"]):
        if type(number) is not int or not 0 <= number < 2**64:
            raise InternalError(js.NOT_UINT)
    return key, offset, request["byte_size"]


def _cuda_region(body: Buffer) -> tuple[bytes, int, int]:
    """Handle, device and size of a register request."""
    request = js.loads(body)
    for name in ("raw_handle", "device_id", "byte_size"):
        if not isinstance(request, dict) or name not in request:
            raise InvalidRequest(f"Shared memory register request has no '{name}' field")
    handle = request["raw_handle"].get("b64") if isinstance(request["raw_handle"], dict) else None
    if not isinstance(handle, str):
        raise InvalidRequest("Shared memory register request has no 'b64' field in 'raw_handle'")
    for name in ("device_id", "byte_size"):
        if type(request[name]) is not int or not 0 <= request[name] < 2**64:
            raise InternalError(js.NOT_UINT)
    try:
        return b64decode(handle, validate=True), request["device_id"], request["byte_size"]
    except ValueError:
        raise InvalidRequest("failed to decode 'raw_handle' of a shared memory register request: no base64") from None


def _is(exchange: Exchange, *methods: bytes) -> bool:
    """Whether the method is one of these; if not, the request is answered with 405."""
    if exchange.method in methods:
        return True
    exchange.error(405, NOT_ALLOWED)
    return False
