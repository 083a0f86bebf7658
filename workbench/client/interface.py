"""What every client offers, and how an address chooses one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

Config = Mapping[str, Any] | str | None
"""A configuration override for ``load``: Triton's JSON as a mapping or as text; None is the model's own file."""

INFER_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0


class TritonClient(Protocol):
    """A thread-safe, blocking client of a KServe v2 server with Triton's extensions.

    Every method raises the error that the server's answer stands for, with its text intact; ``ConnectionFailed`` when
    nobody answers at the address or no answer comes in time. Nothing waits for ever.
    """

    url: str

    def server_metadata(self) -> dict[str, Any]:
        """``name``, ``version``, ``extensions``."""

    def is_live(self) -> bool:
        """Whether the server runs; False also where nobody answers."""

    def is_ready(self) -> bool:
        """Whether the server takes inferences; False also where nobody answers."""

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model takes inferences; False also for unknown ones."""

    def repository_index(self, ready: bool = False) -> list[dict[str, str]]:
        """``name``, ``version``, ``state``, ``reason`` of every model version known."""

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """``name``, ``versions``, ``platform``, ``inputs``, ``outputs``; shapes include the batch dimension."""

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """``{"model_stats": [...]}`` of one model, or of all."""

    def load(self, name: str, config: Config = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model, with another configuration for this load if one is given.

        An override stays until another one is given or the model's files change: a later ``load`` without ``config``
        finds nothing new and does nothing. ``files`` maps paths such as ``1/model.onnx`` to contents; Triton takes
        them only together with ``config``.
        """

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unloads a model."""

    def log_settings(self, changes: Mapping[str, bool | int | str] | None = None) -> dict[str, Any]:
        """Triton's log settings by name (``log_verbose_level``, ...), after some of them have been changed."""

    def register_system_shared_memory(self, name: str, key: str, byte_size: int) -> None:
        """Tells the server of a region of this machine's shared memory, ``/dev/shm`` + key."""

    def unregister_system_shared_memory(self, name: str) -> None:
        """The server lets go of a region."""

    def infer(self, request: InferenceRequest, timeout_s: float = INFER_TIMEOUT_S) -> InferenceResponse:
        """One inference; waits for the answer."""

    def close(self) -> None:
        """Closes the connections."""


def connect(url: str) -> TritonClient:
    """A client for an address: ``http://``, ``https://``, ``grpc://``, ``grpcs://``, or ``host:port`` (HTTP).

    Raises:
        InvalidRequest: the address has another scheme or no host.
    """
    scheme = urlsplit(url).scheme if "://" in url else "http"
    if scheme in ("grpc", "grpcs"):
        from workbench.client.grpc_client import GrpcClient

        return GrpcClient(url)
    if scheme in ("http", "https"):
        from workbench.client.http_client import HttpClient

        return HttpClient(url)
    raise InvalidRequest(
        f"cannot connect to '{url}': scheme '{scheme}' is not known",
        hint="write http://host:8000 or grpc://host:8001",
    )
