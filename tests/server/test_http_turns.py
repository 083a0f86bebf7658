"""A client that sends thousands of requests at once: others have their turn in between, and it loses no answer."""

from __future__ import annotations

import socket
import threading
from http.client import HTTPConnection
from typing import Any

from workbench.server import RunningServer

COUNT = 60_000
"""Requests in one piece, some seconds of work."""


def test_others_are_answered_amid_pipelined_requests(server: RunningServer) -> None:
    host, _, port = server.http_url.removeprefix("http://").rpartition(":")
    asked = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n" * COUNT + b"GET /v2/health/live HTTP/1.0\r\n\r\n"
    other = HTTPConnection(host, int(port), timeout=20)
    found: list[int] = []
    with socket.create_connection((host, int(port)), timeout=20) as client:

        def read() -> None:
            text = b""
            while got := client.recv(1 << 20):
                text += got
            found.extend((text.count(b" 404 Not Found\r\n"), text.count(b" 200 OK\r\n")))

        threads = [threading.Thread(target=work, args=args) for work, args in ((read, ()), (client.sendall, (asked,)))]
        for thread in threads:
            thread.start()
        answered = 0
        while not found:
            other.request("GET", "/v2/health/live")
            answer: Any = other.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            answered += 1
        for thread in threads:
            thread.join()
    other.close()
    assert found == [COUNT, 1]
    assert answered >= 40
