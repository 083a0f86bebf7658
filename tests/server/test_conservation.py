"""Nothing is lost: what was taken is answered or counted as failed, whatever clients and operators do."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.server import RunningServer, ServerOptions

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
REQUEST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h.localhost\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


class Client(threading.Thread):
    """Sends requests over connections that it sometimes drops without a word."""

    def __init__(self, server: RunningServer, seed: int, requests: int) -> None:
        super().__init__(daemon=True)
        self._port = int(server.http_url.rpartition(":")[2])
        self._random = random.Random(seed)
        self._left = requests
        self.statuses: Counter[int] = Counter()
        self.dropped = 0
        self.trouble = ""

    def run(self) -> None:
        try:
            while self._left > 0:
                self._connection()
        except Exception as error:
            self.trouble = repr(error)

    def _connection(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=30) as connection:
            stream = connection.makefile("rb")
            for _ in range(self._random.randint(1, 20)):
                burst = self._random.randint(1, 4)
                self._left -= burst
                connection.sendall(REQUEST * burst)
                if self._random.random() < 0.05:
                    self.dropped += burst
                    return
                for _ in range(burst):
                    status = int(stream.readline().split()[1])
                    length = 0
                    while (line := stream.readline()) != b"\r\n":
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.partition(b":")[2])
                    stream.read(length)
                    self.statuses[status] += 1
            stream.close()


@pytest.mark.full
def test_every_request_is_answered_or_counted_while_models_come_and_go(
    tmp_path: Path, write: Callable[..., None], start: Any
) -> None:
    write(tmp_path, "echo", "FP32", [4], "dynamic_batching { max_queue_delay_microseconds: 300 }\n")
    with start(tmp_path, ServerOptions(name="conservation")) as server:
        clients = [Client(server, seed, 600) for seed in range(8)]
        for client in clients:
            client.start()
        reloads = 0
        while any(client.is_alive() for client in clients):
            (tmp_path / "echo" / "labels.txt").write_text(f"label {reloads}\n")  # a changed file: a full reload
            server.engine.load("echo")
            reloads += 1
            threading.Event().wait(0.05)
        assert [client.trouble for client in clients] == [""] * 8
        assert reloads > 2
        statuses = sum((client.statuses for client in clients), Counter())
        assert set(statuses) == {200}, "no request fails because a model is reloaded"
        dropped = sum(client.dropped for client in clients)
        assert dropped > 0

        def settled() -> bool:
            version = server.engine.snapshot().version("echo")
            return version.pending == 0 and version.running == 0

        for _ in range(500):
            if settled():
                break
            threading.Event().wait(0.01)
        columns = server.engine.records.read(-1)
        assert columns.lost == 0
        ended = Counter(columns.requests["status"].tolist())
        assert ended["ok"] >= statuses[200], "every answer has a record"
        assert sum(ended.values()) <= statuses[200] + dropped, "none was taken twice"
