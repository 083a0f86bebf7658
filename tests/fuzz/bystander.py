"""Somebody who goes on asking while others mean harm: how he is answered, and what memory the server holds."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

from fuzzed_server import FuzzedServer
from grpc_cases import Maker
from grpc_run import Client, Outcome
from http_answers import read_answer
from http_cases import post

GOOD = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


class Bystander:
    """Asks over and over. ``served``: how often he was answered well."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._over = False
        self._turn = threading.Condition()
        self.served = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over or not self.served:
                self._ask()
                with self._turn:
                    self.served += 1
                    self._turn.notify_all()
                    self._turn.wait_for(lambda: self._over, 0.005)
        except BaseException as error:
            with self._turn:
                self.error = error
                self._turn.notify_all()

    def goes_on(self, times: int = 3) -> None:
        """Waits until he has been answered so many times more."""
        with self._turn:
            wanted = self.served + times
            assert self._turn.wait_for(lambda: self.error is not None or self.served >= wanted, 60), "he waits in vain"
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """He stops; raises what went wrong for him."""
        with self._turn:
            self._over = True
            self._turn.notify_all()
        self._thread.join()
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def bystander(server: FuzzedServer, ask: Callable[[], None], allowed_bytes: int) -> Iterator[Bystander]:
    """One who asks on all the time; at the end he was served and memory never grew by more than ``allowed_bytes``."""
    server.forget_peak()
    one = Bystander(ask)
    try:
        yield one
        one.goes_on()
    finally:
        one.end()
    peak = server.peak()
    assert peak < allowed_bytes, f"{peak / 2**20:.0f} MiB more than at the start"
    server.check(allowed_bytes)


@contextlib.contextmanager
def over_http(server: FuzzedServer) -> Iterator[Callable[[], None]]:
    """Good inferences on a connection of one's own."""
    host, _, port = server.address.rpartition(":")
    data = post("/v2/models/echo/infer", json.dumps(GOOD).encode())
    with socket.create_connection((host, int(port)), timeout=30) as client, client.makefile("rb") as stream:

        def ask() -> None:
            client.sendall(data)
            answer = read_answer(stream)
            assert answer is not None
            assert answer.status == 200, answer
            assert answer.document()["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]

        yield ask


@contextlib.contextmanager
def over_grpc(server: FuzzedServer) -> Iterator[Callable[[], None]]:
    """Good inferences on a connection of one's own."""
    client = Client(server.at("grpc").removeprefix("grpc://"), Outcome())
    maker = Maker(1, server.region)

    def ask() -> None:
        client.begin(maker.sentinel())
        client.finish()

    with client.socket:
        yield ask
