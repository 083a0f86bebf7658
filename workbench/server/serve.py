"""Listeners over an engine: HTTP with the control plane, and metrics, on the engine's own loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from workbench import __version__, telemetry
from workbench.clock import utc_now_iso
from workbench.errors import NotReady
from workbench.server.control import ControlPlane
from workbench.server.guard import HostGuard
from workbench.server.http import HttpServer
from workbench.server.kserve import KServeApi
from workbench.server.metrics import MetricsApi
from workbench.server.options import ServerOptions
from workbench.server.runtime import ServerInfo, process_created, remove, write

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.server.grpc_service import GrpcService

LOG = logging.getLogger("workbench.server")
T = TypeVar("T")
_LISTEN_TIMEOUT_S = 30.0


class Listener(Protocol):
    """A port and its connections."""

    async def listen(self, address: str, port: int, *, reuse_port: bool = False) -> None:
        """Opens the port.

        Raises:
            OSError: it cannot be had.
        """

    async def close(self, timeout_s: float) -> bool:
        """Stops accepting, lets what is in flight finish; False when some had to be cut."""


class RunningServer:
    """A server that answers. ``stop_requested`` is set when a client asked it to stop; its owner then does so."""

    def __init__(self, engine: InferenceEngine, options: ServerOptions) -> None:
        self.engine = engine
        self.options = options
        self.token = options.token
        self.name = options.name
        self.stop_requested = threading.Event()
        self.http_url = ""
        self.grpc_url = ""
        self.metrics_url = ""
        control = ControlPlane(engine, options, self._request_stop)
        self.api = KServeApi(engine, options, control)
        control.api = self.api
        self._metrics = MetricsApi(
            engine, options.metrics_interval_s, HostGuard(options.metrics_address, options.allowed_hosts)
        )
        self._grpc: GrpcService | None = None
        self._listeners: list[Listener] = []
        self._metrics_port: Listener | None = None
        self._on_stop: Callable[[], None] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def _request_stop(self) -> None:
        self.stop_requested.set()
        if self._on_stop is not None:
            self._on_stop()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` (on the loop's thread) when a client asks the server to stop."""
        self._on_stop = callback

    def open(self) -> None:
        """Opens the ports and writes the runtime file.

        Raises:
            NotReady: a port cannot be had.
        """
        telemetry.sample()  # finds the GPU library, and begins the span that the first shares are over
        try:
            self._call(self._listen(), _LISTEN_TIMEOUT_S)
        except BaseException:
            self.close(0.0)
            raise
        if self.options.runtime_file:
            write(self.info())

    async def _listen(self) -> None:
        options, loop = self.options, self.engine.loop
        if options.allow_http:
            http = HttpServer(
                self.api,
                loop,
                limits=options.limits,
                max_chunked_bytes=options.max_input_size,
                name_headers=self.api.keep_headers,
            )
            self._listeners.append(http)
            await _bind(http, options.http_address, options.http_port, options.reuse_port)
            self.http_url = _url(options.http_address, http.port)
            LOG.info("Started HTTPService at %s:%d", options.http_address, http.port)
        if options.allow_grpc:
            await self._listen_grpc(options, loop)
        if options.allow_metrics:
            metrics = HttpServer(self._metrics, loop, limits=options.limits, service="Metrics Service")
            self._metrics_port = metrics
            self._listeners.append(metrics)
            await _bind(metrics, options.metrics_address, options.metrics_port, options.reuse_port)
            self.metrics_url = _url(options.metrics_address, metrics.port) + "/metrics"
            LOG.info("Started Metrics Service at %s:%d", options.metrics_address, metrics.port)

    async def _listen_grpc(self, options: ServerOptions, loop: asyncio.AbstractEventLoop) -> None:
        from workbench.server.grpc_server import GrpcServer
        from workbench.server.grpc_service import GrpcService

        own = options.grpc
        self._grpc = GrpcService(self.api, own)
        server = GrpcServer(self._grpc.methods, loop, own, HostGuard(own.address, options.allowed_hosts))
        self._listeners.append(server)
        await _bind(server, own.address, own.port, own.reuse_port)
        self.grpc_url = _url(own.address, server.port, "grpc" if own.tls is None else "grpcs")
        LOG.info("Started GRPCInferenceService at %s:%d", own.address, server.port)

    def info(self) -> ServerInfo:
        """What the runtime file says."""
        return ServerInfo(
            name=self.name,
            pid=os.getpid(),
            http=self.http_url,
            grpc=self.grpc_url,
            metrics=self.metrics_url,
            repositories=[str(path) for path in self.engine.options.repositories],
            token=self.token,
            started=utc_now_iso(),
            detached=self.options.detached,
            version=__version__,
            control_mode=self.engine.options.control_mode,
            created=process_created(os.getpid()),
        )

    def close(self, timeout_s: float | None = None) -> bool:
        """Stops accepting, lets requests in flight finish, closes the ports; the engine runs on. Idempotent.

        Returns:
            False when requests had to be cut after ``timeout_s`` seconds (default: the options' exit timeout).
        """
        with self._lock:
            if self._closed:
                return True
            self._closed = True
        limit = self.options.exit_timeout_s if timeout_s is None else timeout_s
        if self.options.runtime_file:
            remove(self.name, os.getpid())
        clean = True
        if not self.engine.loop.is_closed():
            clean = self._call(self._close(limit), limit + 10.0)
        if self._grpc is not None:
            self._grpc.close()
        self.api.close()
        return clean

    async def _close(self, timeout_s: float) -> bool:
        self.api.exiting = True
        loop, metrics = self.engine.loop, self._metrics_port
        ends = loop.time() + timeout_s
        clean = all(await asyncio.gather(*(each.close(timeout_s) for each in self._listeners if each is not metrics)))
        if metrics is not None:  # last: what happens during the stop can still be seen
            clean = await metrics.close(max(0.0, ends - loop.time())) and clean
        return clean

    def _call(self, work: Awaitable[T], timeout_s: float) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self.engine.loop).result(timeout_s)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve_engine(engine: InferenceEngine, options: ServerOptions | None = None) -> RunningServer:
    """Opens the ports of a started engine, on its loop. Not to be called on that loop's thread.

    Raises:
        NotReady: a port cannot be had (Triton's text).
    """
    server = RunningServer(engine, options or ServerOptions())
    server.open()
    return server


async def _bind(server: Listener, address: str, port: int, reuse_port: bool) -> None:
    try:
        await server.listen(address, port, reuse_port=reuse_port)
    except OSError as error:
        raise NotReady(
            f"Socket '{address}:{port}' already in use ",
            where=str(error),
            hint="choose another port; 0 takes a free one",
        ) from error


def _url(address: str, port: int, scheme: str = "http") -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)
    return f"{scheme}://{shown}:{port}"
