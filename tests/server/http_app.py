"""A small application behind an ``HttpServer``, and what tests of HTTP itself read and wait for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvloop

from workbench.errors import InvalidRequest
from workbench.server.http import Exchange, HttpLimits, HttpServer


class EchoApp:
    """Answers with method, path and body; ``/late/MS`` after a time, ``/never`` when the test says so."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.arrived = threading.Event()
        self.held: list[Exchange] = []

    def early_refusal(self, exchange: Exchange, size: int | None) -> tuple[int, str] | None:
        return (400, f"{size} bytes are too many") if size is not None and size > 1_000_000 else None

    def handle(self, exchange: Exchange) -> None:
        self.arrived.set()
        if exchange.path.startswith(b"/late/"):
            exchange.loop.call_later(int(exchange.path[6:]) / 1000, self.answer, exchange)
        elif exchange.path == b"/never":
            exchange.on_gone = self.gone.set
            self.held.append(exchange)
        elif exchange.path == b"/error":
            raise InvalidRequest("no")
        elif exchange.path == b"/bug":
            raise KeyError("x")
        elif exchange.path == b"/big":
            exchange.respond(200, [bytes(24_000_000)], "application/octet-stream")  # more than sockets hold
        elif exchange.path.startswith(b"/stream/"):
            stream = exchange.stream("text/plain")
            for number in range(int(exchange.path[8:])):
                stream.write(b"piece %d;" % number)
            exchange.loop.call_later(0.01, stream.end)
        else:
            self.answer(exchange)

    def answer(self, exchange: Exchange) -> None:
        body = bytes(exchange.body)
        exchange.respond(200, b"%b %b %b" % (exchange.method, exchange.path, body), "application/octet-stream")


class Running:
    """The server, on a loop and a thread of its own."""

    def __init__(self, limits: HttpLimits, new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop):
        self.app = EchoApp()
        self.loop = new_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = HttpServer(self.app, self.loop, limits=limits, max_chunked_bytes=1_000_000)
        self.run(self.server.listen("127.0.0.1", 0))

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=10)

    def count(self) -> int:
        async def count() -> int:
            return len(self.server.connections)

        return int(self.run(count()))

    def close(self) -> None:
        self.run(self.server.close(1.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def read_answer(stream: Any) -> tuple[int, dict[str, str], bytes]:
    line = stream.readline()
    assert line, "the connection was closed without an answer"
    status = int(line.split()[1])
    headers = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    return status, headers, stream.read(int(headers.get("content-length", 0)))


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within 5 s")
