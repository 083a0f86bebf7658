"""Answers over HTTP that clients do not take are bounded together; one bad connection does no harm to others."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from workbench.server import RunningServer, ServerOptions
from workbench.server.http import HttpLimits

MB = 1 << 20


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.01)


def opened(server: RunningServer) -> socket.socket:
    host, _, port = server.http_url.removeprefix("http://").rpartition(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.settimeout(20)
    made.connect((host, int(port)))
    return made


def ask_for(client: socket.socket, size: int) -> None:
    """Asks for an answer of ``size`` bytes."""
    entry = {"name": "INPUT0", "datatype": "INT64", "shape": [1, size // 8], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    client.sendall(
        b"POST /v2/models/ints/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n%b" % (len(head) + size, len(head), head) + bytes(size)
    )


def rest(client: socket.socket) -> int:
    """How much comes until the other side closes, or nothing comes for a second."""
    client.settimeout(1.0)
    size = 0
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while part := client.recv(MB):
            size += len(part)
    return size


def test_who_takes_nothing_for_longest_is_cut_off_when_answers_are_too_many(
    repository: Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = ServerOptions(name="unread", exit_timeout_s=5.0, limits=HttpLimits(answers=24 * MB))
    with (
        caplog.at_level(logging.WARNING, "workbench.server"),
        start(repository, options) as server,
        contextlib.ExitStack() as stack,
    ):
        unread = server._listeners[0].unread
        reader = stack.enter_context(opened(server))
        ask_for(reader, 16 * MB)
        until(lambda: unread.total > 8 * MB)
        taken, stop = [0], threading.Event()

        def read() -> None:
            """Slowly, but all the time."""
            while not stop.is_set() and taken[0] < 16 * MB and (part := reader.recv(64 * 1024)):
                taken[0] += len(part)
                time.sleep(0.001)

        thread = threading.Thread(target=read)
        thread.start()
        deaf = []
        peak = 0

        def answered() -> int:
            return int(server.engine.statistics("ints")["model_stats"][0]["inference_stats"]["success"]["count"])

        for number in range(2, 10):
            deaf.append(stack.enter_context(opened(server)))
            ask_for(deaf[-1], 8 * MB)
            until(partial(lambda all: answered() == all, number))
            peak = max(peak, unread.total)
        assert peak <= 24 * MB + 9 * MB  # one more than there is room for, until it is looked at
        until(lambda: unread.total <= 24 * MB)
        thread.join(20)
        stop.set()
        assert taken[0] >= 16 * MB  # who reads on is served to the end
        assert rest(deaf[0]) < 8 * MB  # cut off
        assert rest(deaf[-1]) > 8 * MB  # the last one has its answer whole
        for each in deaf:
            each.close()
        assert "clients that do not take their answers are cut off" in caplog.text
        until(lambda: unread.total == 0)


def test_an_answer_larger_than_all_that_may_wait_is_sent_alone(repository: Path, start: Any) -> None:
    options = ServerOptions(name="alone", exit_timeout_s=5.0, limits=HttpLimits(answers=MB))
    with start(repository, options) as server, opened(server) as client:
        ask_for(client, 8 * MB)
        until(lambda: server._listeners[0].unread.total > MB)
        assert rest(client) > 8 * MB


def test_a_connection_that_cannot_be_looked_after_is_closed_and_the_others_are_looked_after(
    repository: Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = ServerOptions(name="swept", exit_timeout_s=5.0, limits=HttpLimits(head_s=0.6, pause_s=0.6))
    with (
        caplog.at_level(logging.ERROR, "workbench.server"),
        start(repository, options) as server,
        opened(server) as bad,
    ):
        listener = server._listeners[0]
        until(lambda: len(listener.connections) == 1)

        def broken() -> None:
            raise RuntimeError("no")

        (connection,) = listener.connections
        connection.sweep = broken
        assert bad.recv(100) == b""  # closed
        assert "a connection could not be looked after, and is closed" in caplog.text
        for _ in range(2):
            with opened(server) as slow:
                slow.sendall(b"GET /v2")
                assert slow.recv(100).startswith(b"HTTP/1.1 408")
