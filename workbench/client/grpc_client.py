"""Triton over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from workbench.client.grpc_codec import decode_response, encode_request, to_dict
from workbench.client.http_client import encode_json, index_row
from workbench.client.interface import CALL_TIMEOUT_S, INFER_TIMEOUT_S, LOAD_TIMEOUT_S, Config
from workbench.errors import Code, ConnectionFailed, InvalidRequest, WorkbenchError, from_code
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
)
"""Channel options: no limit of size (Triton's own is INT32_MAX), no proxy for a server that was named."""

_BY_STATUS = {code.grpc_status: code for code in Code}
_TRANSPORT_TEXTS = ("failed to connect", "connection refused", "socket closed", "name resolution", "dns resolution",
                    "connection reset", "broken pipe", "goaway", "no route to host", "unavailable: stream removed",
                    "endpoint closing", "ping timeout")  # fmt: skip


def grpc_target(url: str) -> tuple[str, bool]:
    """``host:port`` and whether TLS is asked for, from ``grpc://``, ``grpcs://`` or ``host:port``.

    Raises:
        InvalidRequest: it is no gRPC address.
    """
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"cannot connect to '{url}': {error}") from error
    if parts.scheme not in ("grpc", "grpcs") or not parts.hostname:
        raise InvalidRequest(f"'{url}' is not a gRPC address", hint="write grpc://host:8001")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port or 8001}", parts.scheme == "grpcs"


class GrpcClient:
    """A ``TritonClient`` over gRPC. Thread-safe.

    Args:
        url: ``grpc://host:port``, ``grpcs://host:port`` (TLS) or ``host:port``.
        token: sent as a bearer token in the call's metadata.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        target, tls = grpc_target(url)
        self.url = f"{'grpcs' if tls else 'grpc'}://{target}"
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if tls:
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(), options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def server_metadata(self) -> dict[str, Any]:
        """``name``, ``version``, ``extensions``."""
        return to_dict(self._call("ServerMetadata", pb.ServerMetadataRequest()))

    def is_live(self) -> bool:
        """Whether the server runs; False also where nobody answers."""
        return self._healthy("ServerLive", pb.ServerLiveRequest(), "live")

    def is_ready(self) -> bool:
        """Whether the server takes inferences; False also where nobody answers."""
        return self._healthy("ServerReady", pb.ServerReadyRequest(), "ready")

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model takes inferences; False also for unknown ones."""
        try:
            return self._healthy("ModelReady", pb.ModelReadyRequest(name=name, version=str(version)), "ready")
        except WorkbenchError:
            return False  # newer servers answer an unknown model with an error

    def repository_index(self, ready: bool = False) -> list[dict[str, str]]:
        """``name``, ``version``, ``state``, ``reason`` of every model version known."""
        answer = self._call("RepositoryIndex", pb.RepositoryIndexRequest(ready=ready))
        return [index_row(to_dict(entry)) for entry in answer.models]

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """``name``, ``versions``, ``platform``, ``inputs``, ``outputs``; shapes include the batch dimension."""
        return to_dict(self._call("ModelMetadata", pb.ModelMetadataRequest(name=name, version=str(version))))

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""
        answer = self._call("ModelConfig", pb.ModelConfigRequest(name=name, version=str(version)))
        return to_dict(answer.config)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """``{"model_stats": [...]}`` of one model, or of all."""
        return to_dict(self._call("ModelStatistics", pb.ModelStatisticsRequest(name=name, version=str(version))))

    def load(self, name: str, config: Config = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model, with another configuration for this load if one is given."""
        request = pb.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            text = config if isinstance(config, str) else encode_json(config).decode()
            request.parameters["config"].string_param = text
        for path, content in (files or {}).items():
            request.parameters[f"file:{path.removeprefix('file:')}"].bytes_param = content
        self._call("RepositoryModelLoad", request, LOAD_TIMEOUT_S)

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unloads a model."""
        request = pb.RepositoryModelUnloadRequest(model_name=name)
        if unload_dependents:
            request.parameters["unload_dependents"].bool_param = True
        self._call("RepositoryModelUnload", request, LOAD_TIMEOUT_S)

    def log_settings(self, changes: Mapping[str, bool | int | str] | None = None) -> dict[str, Any]:
        """Triton's log settings, after some of them have been changed."""
        request = pb.LogSettingsRequest()
        for name, value in (changes or {}).items():
            kind = (
                "bool_param"
                if isinstance(value, bool)
                else "uint32_param"
                if isinstance(value, int)
                else "string_param"
            )
            setattr(request.settings[name], kind, value)
        settings = self._call("LogSettings", request).settings
        return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in settings.items()}

    def register_system_shared_memory(self, name: str, key: str, byte_size: int) -> None:
        """Tells the server of a region of this machine's shared memory, ``/dev/shm`` + key."""
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=0, byte_size=byte_size)
        self._call("SystemSharedMemoryRegister", request)

    def unregister_system_shared_memory(self, name: str) -> None:
        """The server lets go of a region."""
        self._call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name))

    def infer(self, request: InferenceRequest, timeout_s: float = INFER_TIMEOUT_S) -> InferenceResponse:
        """One inference; waits for the answer.

        Raises:
            WorkbenchError: with the server's text.
            ConnectionFailed: nobody answers, or not within ``timeout_s``.
        """
        return decode_response(self._call("ModelInfer", encode_request(request), timeout_s))

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def __enter__(self) -> GrpcClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _healthy(self, method: str, request: Any, field: str) -> bool:
        try:
            return bool(getattr(self._call(method, request), field))
        except ConnectionFailed:
            return False

    def _call(self, method: str, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise rpc_error(error, self.url, timeout_s) from error
        except ValueError as error:  # the channel is closed
            raise ConnectionFailed(f"the client is closed: {error}", where=self.url, hint="make a new one") from error


def rpc_error(error: Any, url: str, timeout_s: float) -> WorkbenchError:
    """The error that a failed call stands for, with the server's text."""
    status = error.code().name if error.code() is not None else "UNKNOWN"
    text = error.details() or status
    if status == "DEADLINE_EXCEEDED":
        return ConnectionFailed(
            f"no answer from {url} within {timeout_s:g} s",
            where=url,
            hint="the server is busy or hangs; give a longer timeout_s, or look at its log",
        )
    if status == "UNAVAILABLE" and any(part in text.lower() for part in _TRANSPORT_TEXTS):
        return ConnectionFailed(
            f"no server answers at {url}: {text}",
            where=url,
            hint="check that the server runs, and that this is its gRPC port",
        )
    return from_code(_BY_STATUS.get(status, Code.UNKNOWN), text, where=url)
