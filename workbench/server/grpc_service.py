"""Triton's gRPC services over an engine: which call does what (Triton's grpc_server.cc). What the calls do, HTTP does
through the same objects of ``KServeApi``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from workbench.client.grpc_codec import SERVICE
from workbench.errors import InvalidRequest, Unsupported
from workbench.server.access import TOKEN_NEEDED, has_token
from workbench.server.grpc_call import Call, Opener, Receiver
from workbench.server.grpc_codec import parse, version_number
from workbench.server.grpc_infer import InferCalls
from workbench.server.grpc_message import STOPPING, UNAUTHENTICATED, UNAVAILABLE
from workbench.server.grpc_options import GrpcOptions
from workbench.server.grpc_protos import NOT_SERVING, REFLECTION_VERSIONS, SERVING, protos
from workbench.server.grpc_reflection import ReflectionCall
from workbench.server.grpc_settings import log_answer, trace_answer, update_log, update_trace
from workbench.server.kserve import FILES_DISABLED

if TYPE_CHECKING:
    from workbench.server.kserve import KServeApi

Handler = Callable[[Call, Any], Any]
"""Answers a request: with a message, or with what is to be awaited for one; None when it answers itself."""

_NO_REPOSITORY = "'repository_name' specification is not supported"


class _Plain:
    """A call of one request and one answer."""

    __slots__ = ("_api", "_call", "_handler", "_kind", "_taken")

    def __init__(self, api: KServeApi, call: Call, kind: Any, handler: Handler) -> None:
        self._api = api
        self._call = call
        self._kind = kind
        self._handler = handler
        self._taken = False

    def message(self, data: memoryview) -> None:
        """The request; a second one does not count, as in gRPC's core."""
        if self._taken:
            return
        self._taken = True
        answer = self._handler(self._call, parse(self._kind, data))
        if isinstance(answer, Coroutine):
            self._api.spawn(self._call, self._later(answer))
        elif answer is not None:
            send(self._call, answer)

    async def _later(self, answer: Coroutine[Any, Any, Any]) -> None:
        send(self._call, await answer)

    def half_closed(self) -> None:
        """No request at all reads as none that can be parsed."""
        if not self._taken:
            self.message(memoryview(b"\xff"))

    def gone(self) -> None:
        """What is under way goes on: a load is not undone."""

    def drained(self) -> None:
        """Nothing is held back."""

    def stopping(self) -> None:
        """What has been asked is answered."""
        if not self._taken:
            self._call.finish(UNAVAILABLE, STOPPING)


def send(call: Call, message: Any) -> None:
    """Answers a call with its only message."""
    call.reply(call.frame([message.SerializeToString()]))


class GrpcService:
    """The table of calls; ``methods`` is what ``GrpcServer`` needs."""

    def __init__(self, api: KServeApi, options: GrpcOptions) -> None:
        self.api = api
        self._restricted = options.restricted
        self.infer = InferCalls(api, options)
        self.methods: dict[bytes, Opener] = {}
        for category, name, handler in (
            ("health", "ServerLive", self._server_live),
            ("health", "ServerReady", self._server_ready),
            ("health", "ModelReady", self._model_ready),
            ("metadata", "ServerMetadata", self._server_metadata),
            ("metadata", "ModelMetadata", self._model_metadata),
            ("model-config", "ModelConfig", self._model_config),
            ("statistics", "ModelStatistics", self._statistics),
            ("model-repository", "RepositoryIndex", self._index),
            ("model-repository", "RepositoryModelLoad", self._load),
            ("model-repository", "RepositoryModelUnload", self._unload),
            ("shared-memory", "SystemSharedMemoryStatus", self._system_status),
            ("shared-memory", "SystemSharedMemoryRegister", self._system_register),
            ("shared-memory", "SystemSharedMemoryUnregister", self._system_unregister),
            ("shared-memory", "CudaSharedMemoryStatus", self._cuda_status),
            ("shared-memory", "CudaSharedMemoryRegister", self._cuda_register),
            ("shared-memory", "CudaSharedMemoryUnregister", self._cuda_unregister),
            ("trace", "TraceSetting", self._trace),
            ("logging", "LogSettings", self._logging),
        ):
            self._add(category, f"{SERVICE}/{name}", self._plain(getattr(pb, f"{name}Request"), handler))
        self._add("inference", f"{SERVICE}/ModelInfer", self.infer.unary)
        self._add("inference", f"{SERVICE}/ModelStreamInfer", self.infer.stream)
        self._add("health", "/grpc.health.v1.Health/Check", self._plain(protos().health_request, self._health))
        for version in REFLECTION_VERSIONS:
            self._add(
                "metadata",
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                self._reflection(version),
            )

    def close(self) -> None:
        """Lets go of the engine."""
        self.infer.close()

    def _add(self, category: str, path: str, opener: Callable[[Call], Receiver]) -> None:
        """A call, behind the header that its category asks for, if it does."""
        restriction = self._restricted.get(category)
        if restriction is None:
            self.methods[path.encode()] = opener
            return
        text = f"This protocol is restricted, expecting header '{restriction.header}'"

        def restricted(call: Call) -> Receiver:
            if not restriction.is_met(call.headers):
                call.finish(UNAVAILABLE, text)
            return opener(call)

        self.methods[path.encode()] = restricted

    def _plain(self, kind: Any, handler: Handler) -> Callable[[Call], Receiver]:
        return lambda call: _Plain(self.api, call, kind, handler)

    def _reflection(self, version: str) -> Callable[[Call], Receiver]:
        return lambda call: ReflectionCall(call, version)

    # -- health and metadata ------------------------------------------------------------------------------------------

    def _server_live(self, call: Call, request: Any) -> Any:
        return pb.ServerLiveResponse(live=self.api.engine.is_live())

    async def _server_ready(self, call: Call, request: Any) -> Any:
        return pb.ServerReadyResponse(ready=not self.api.exiting and await self.api.engine.is_ready_async())

    async def _health(self, call: Call, request: Any) -> Any:
        ready = not self.api.exiting and await self.api.engine.is_ready_async()
        return protos().health_response(status=SERVING if ready else NOT_SERVING)

    async def _model_ready(self, call: Call, request: Any) -> Any:
        version = version_number(request.version)
        return pb.ModelReadyResponse(ready=await self.api.engine.is_model_ready_async(request.name, version))

    def _server_metadata(self, call: Call, request: Any) -> Any:
        return pb.ServerMetadataResponse(**self.api.metadata)

    def _model_metadata(self, call: Call, request: Any) -> Any:
        found = self.api.engine.model_metadata(request.name, version_number(request.version))
        return json_format.ParseDict(found, pb.ModelMetadataResponse())

    def _model_config(self, call: Call, request: Any) -> Any:
        return pb.ModelConfigResponse(
            config=self.api.engine.model_config(request.name, version_number(request.version))
        )

    def _statistics(self, call: Call, request: Any) -> Any:
        version = version_number(request.version)
        found = self.api.engine.statistics(request.name, version if request.name else -1)  # of all: of every version
        return json_format.ParseDict(found, pb.ModelStatisticsResponse())

    # -- repository ---------------------------------------------------------------------------------------------------

    def _index(self, call: Call, request: Any) -> None:
        if request.repository_name:
            raise Unsupported(_NO_REPOSITORY)

        def answer(rows: list[dict[str, str]]) -> None:
            send(call, json_format.ParseDict({"models": rows}, pb.RepositoryIndexResponse()))

        self.api.infer.off_loop(call, lambda: self.api.engine.repository_index(request.ready), answer)

    def _may_control(self, call: Call, request: Any) -> bool:
        if not has_token(self.api.options.repository_token, call.headers.get(b"authorization", b"")):
            call.finish(UNAUTHENTICATED, TOKEN_NEEDED)
            return False
        if request.repository_name:
            raise Unsupported(_NO_REPOSITORY)
        return True

    def _load(self, call: Call, request: Any) -> Any:
        if not self._may_control(call, request):
            return None
        config, files = None, {}
        for key, value in request.parameters.items():
            kind = value.WhichOneof("parameter_choice")
            wanted = "string_param" if key == "config" else "bytes_param" if key.startswith("file:") else ""
            if not wanted:
                raise InvalidRequest(f"unrecognized load parameter '{key}'.")
            if kind != wanted:
                raise InvalidRequest(f"invalid value type for load parameter '{key}', expected {wanted}.")
            if key == "config":
                config = value.string_param
            elif not self.api.options.allow_file_override:
                raise Unsupported(FILES_DISABLED)
            else:
                files[key.removeprefix("file:")] = value.bytes_param
        self.api.check_control_mode()
        return self._loaded(request.model_name, config, files)

    async def _loaded(self, model: str, config: str | None, files: dict[str, bytes]) -> Any:
        await self.api.engine.load_async(model, config=config, files=files or None)
        return pb.RepositoryModelLoadResponse()

    def _unload(self, call: Call, request: Any) -> Any:
        if not self._may_control(call, request):
            return None
        dependents = False
        if "unload_dependents" in request.parameters:
            value = request.parameters["unload_dependents"]
            if value.WhichOneof("parameter_choice") != "bool_param":
                raise InvalidRequest("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            dependents = value.bool_param
        self.api.check_control_mode()
        return self._unloaded(request.model_name, dependents)

    async def _unloaded(self, model: str, dependents: bool) -> Any:
        await self.api.engine.unload_async(model, unload_dependents=dependents)
        return pb.RepositoryModelUnloadResponse()

    # -- shared memory ------------------------------------------------------------------------------------------------

    def _system_status(self, call: Call, request: Any) -> Any:
        answer = pb.SystemSharedMemoryStatusResponse()
        for row in self.api.memory.status("system", request.name):
            json_format.ParseDict(row, answer.regions[row["name"]])
        return answer

    def _cuda_status(self, call: Call, request: Any) -> Any:
        answer = pb.CudaSharedMemoryStatusResponse()
        for row in self.api.memory.status("cuda", request.name):
            json_format.ParseDict(row, answer.regions[row["name"]])
        return answer

    def _system_register(self, call: Call, request: Any) -> Any:
        self.api.memory.register_system(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    def _cuda_register(self, call: Call, request: Any) -> Any:
        self.api.memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
        return pb.CudaSharedMemoryRegisterResponse()

    def _system_unregister(self, call: Call, request: Any) -> Any:
        self.api.memory.unregister("system", request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def _cuda_unregister(self, call: Call, request: Any) -> Any:
        self.api.memory.unregister("cuda", request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    # -- settings -----------------------------------------------------------------------------------------------------

    def _trace(self, call: Call, request: Any) -> Any:
        model = request.model_name
        if model and not self.api.engine.serves(model):
            raise InvalidRequest(f"Request for unknown model : {model}")
        update_trace(self.api.tracing, request)
        return trace_answer(self.api.tracing, model)

    def _logging(self, call: Call, request: Any) -> Any:
        update_log(self.api.logging, request)
        return log_answer(self.api.logging)
