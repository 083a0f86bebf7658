"""A server with scripted latencies on a real socket: enough of KServe v2 for measuring."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httptools
import numpy as np
import uvloop

from workbench.profiling import ServerTarget

Script = Callable[[int], float]
"""From the number of a request to its latency in seconds; a negative one is an error after its absolute value."""

Stream = Callable[[int], Sequence[float | str]]
"""From the number of a request to the gaps before its responses in seconds; a text is an error in place of one."""

INPUTS = {"X": np.zeros((1, 4), np.float32)}
ERROR = "scripted failure"


class ScriptedServer:
    """Answers infer requests after what the script says, in a thread of its own."""

    def __init__(self, script: Script = lambda n: 0.0, *, statistics: bool = True) -> None:
        self.script = script
        self.config: dict[str, Any] = {
            "name": "m",
            "max_batch_size": 8,
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
        }
        self.stream: Stream = lambda n: ()
        self.has_statistics = statistics
        self.success = self.fail = self.received = 0
        self.busy_ns = 0
        self.took_ms: list[float] = []
        """How long it has kept each request: what the script says, and how late its own timers were."""
        self.gaps_ms: list[list[float]] = []
        """How long before each response of a stream, likewise."""
        self.stall_until = 0.0
        self.bodies: set[bytes] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self._ready = threading.Event()
        self._dead = False
        self._loop = uvloop.new_event_loop()
        self._connections: set[_Connection] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()
        for task in self.tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def die(self) -> None:
        """Ends in the middle of what it does. On its own thread; what comes after the first call changes nothing."""
        if not self._dead:
            self._dead = True
            self._loop.call_soon(self._loop.stop)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def statistics(self) -> dict[str, Any]:
        done = {"count": self.success, "ns": self.busy_ns}
        none = {"count": 0, "ns": 0}
        parts = {"success": done, "fail": {"count": self.fail, "ns": 0}, "queue": {"count": self.success, "ns": 0}}
        parts |= {"compute_input": dict(none), "compute_infer": done, "compute_output": dict(none)}
        parts |= {"cache_hit": none, "cache_miss": none}
        batch = {"batch_size": 1, "compute_infer": done, "compute_input": none, "compute_output": none}
        entry = {"name": "m", "version": "1", "inference_count": self.success, "execution_count": self.success}
        return {"model_stats": [entry | {"inference_stats": parts, "batch_stats": [batch] if self.success else []}]}


class _Connection(asyncio.Protocol):
    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.transport: Any = None
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.server._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url = self.body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        url, server = self.url.decode(), self.server
        if url.endswith("/infer"):
            server.received += 1
            server.bodies.add(self.body)
            delay = server.script(server.received - 1)
            begin = time.monotonic_ns()
            wait = max(abs(delay), server.stall_until - time.monotonic())
            if wait <= 0:
                self._inferred(begin, delay)
            else:
                server._loop.call_later(wait, self._inferred, begin, delay)
        elif url.endswith("/generate_stream"):
            server.received += 1
            server.bodies.add(self.body)
            task = server._loop.create_task(self._streamed(server.stream(server.received - 1)))
            server.tasks.add(task)
            task.add_done_callback(server.tasks.discard)
        elif url.endswith("/config"):
            self._answer(server.config)
        elif url.endswith("/stats") and server.has_statistics:
            self._answer(server.statistics())
        elif url == "/v2/models/m":
            self._answer({"name": "m", "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 4]}]})
        elif url == "/v2":
            self._answer({"name": "scripted", "version": "1", "extensions": ["statistics"]})
        else:
            self._answer({"error": f"no such path {url}"}, 404)

    def _inferred(self, begin: int, delay: float) -> None:
        server = self.server
        if self.transport.is_closing():
            return
        if delay < 0:
            server.fail += 1
            self._answer({"error": ERROR}, 400)
        else:
            server.success += 1
            server.busy_ns += time.monotonic_ns() - begin
            server.took_ms.append((time.monotonic_ns() - begin) / 1e6)
            self._answer({"model_name": "m", "model_version": "1", "outputs": []})

    async def _streamed(self, gaps: Sequence[float | str]) -> None:
        begin = time.monotonic()
        head = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        failed = False
        last, waited = begin, list[float]()
        for index, gap in enumerate(gaps):
            event: dict[str, Any] = {"model_name": "m", "token": index}
            if isinstance(gap, str):
                failed, event = True, {"error": gap}
            else:
                await asyncio.sleep(gap)
            waited.append((time.monotonic() - last) * 1e3)
            last = time.monotonic()
            data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
            if failed and index == 0:
                self.server.fail += 1
                self._send(data, 400)
                return
            for part in (data[:9], data[9:]):  # an event may come in pieces
                self.transport.write(head.encode() + b"%x\r\n%b\r\n" % (len(part), part))
                head = ""
        self.server.gaps_ms.append(waited)
        self.server.success += not failed
        self.server.fail += failed
        self.server.busy_ns += int((time.monotonic() - begin) * 1e9)
        self.transport.write(head.encode() + b"0\r\n\r\n")

    def _answer(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status)

    def _send(self, body: bytes, status: int) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


class ScriptedTarget(ServerTarget):
    """The scripted server as a target whose configuration can be changed; ``base_ms`` is what a setting does."""

    def __init__(self, server: ScriptedServer, **options: Any) -> None:
        super().__init__(server.url, **options)
        self.server = server
        self.calls: list[Any] = []
        self.refuse: Any = None
        self._original: dict[str, Any] | None = None
        self._epoch = 1

    def epoch(self, model: str) -> int | None:
        return self._epoch

    def configure(self, model: str, edits: Sequence[Any]) -> None:
        if self._original is None:
            self._original = dict(self.server.config)
        applied = {edit.path: edit.value for edit in edits}
        if self.refuse is not None and self.refuse in applied.values():
            from workbench.errors import ConfigError

            raise ConfigError("refused by the script")
        self.calls.append(applied)
        self.server.config = {**self.server.config, **applied}
        self._epoch += 1

    def reloaded(self) -> None:
        """Somebody else has loaded the model."""
        self._epoch += 1

    def restore(self, model: str) -> None:
        if self._original is not None:
            self.calls.append("restore")
            self.server.config = self._original
            self._original = None
            self._epoch += 1
