"""Sends cases to a server over sockets and looks at every answer."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Any

from fuzzed_server import MODELS, FuzzedServer, float32
from http_answers import Answer, Broken, read_answer
from http_cases import Case, Maker, encode, post

PATIENCE_S = 60.0
SENTINEL_EACH = 25
LOOK_EACH = 5000
STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 431, 500, 501, 503}


@dataclass
class Outcome:
    """What came of a run: answers by status, how the connections ended, how many echoes were compared."""

    inputs: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    well: Counter[str] = field(default_factory=Counter)
    """Answers of 200 by kind of input."""

    def text(self) -> str:
        """For people."""
        rate = self.inputs / self.seconds
        return (
            f"{self.inputs} inputs in {self.seconds:.0f} s ({rate:.0f}/s); "
            f"answers {dict(sorted(self.answers.items()))}; {self.compared} echoes compared; "
            f"inputs by kind {dict(sorted(self.kinds.items()))}"
        )


class _Line:
    """A connection that is made anew when it has ended."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._socket: socket.socket | None = None
        self.stream: IO[bytes] | None = None

    def open(self) -> tuple[socket.socket, IO[bytes]]:
        if self._socket is None or self.stream is None:
            self._socket = socket.create_connection(self._address, timeout=PATIENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.stream = self._socket.makefile("rb")
        return self._socket, self.stream

    def close(self) -> None:
        if self._socket is not None and self.stream is not None:
            self.stream.close()
            self._socket.close()
        self._socket = self.stream = None


class _Client:
    def __init__(self, server: FuzzedServer, seed: int, outcome: Outcome, lock: threading.Lock) -> None:
        self._line = _Line(server.address)
        self._maker = Maker(seed, server.region)
        self._outcome = outcome
        self._lock = lock
        self._count = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            case = self._maker.case()
            try:
                self._send(case)
            except Exception as error:
                error.add_note(f"{case.kind}: {case.data[:1500]!r}")
                raise
        self._line.close()

    def _send(self, case: Case) -> None:
        answers = self._framed(case, case.answers) if case.answers is not None else self._unframed(case)
        with self._lock:
            self._outcome.inputs += 1
            self._outcome.kinds[case.kind] += 1
            self._outcome.answers.update(str(each.status) for each in answers)
            self._outcome.well[case.kind] += sum(each.status == 200 for each in answers)
            if not answers:
                self._outcome.answers["closed without an answer"] += 1
        odd = {each.status for each in answers} - STATUSES
        if odd:
            raise Broken(f"statuses that no answer has: {odd}")
        if case.good and [each.status for each in answers] != [200]:
            raise Broken(f"a good request was answered {answers}")
        if case.body and answers:
            self._compare(case, answers[0])
        self._count += 1
        if self._count % SENTINEL_EACH == 0:
            self._sentinel()

    def _framed(self, case: Case, count: int) -> list[Answer]:
        """So many requests, so many answers: the connection stays, unless an answer says that it does not."""
        channel, stream = self._line.open()
        sending = threading.Thread(target=self._push, args=(channel, case))
        if len(case.data) > 100_000:
            sending.start()
        else:
            self._push(channel, case)
        answers = []
        for _ in range(count):
            answer = read_answer(stream)
            if answer is None:
                raise Broken(f"{len(answers)} answers to {count} requests")
            answers.append(answer)
            if answer.last:
                break
        if sending.ident is not None:
            sending.join()
        if answers[-1].last:
            if stream.read():
                raise Broken("bytes behind the last answer")
            self._line.close()
        return answers

    @staticmethod
    def _push(channel: socket.socket, case: Case) -> None:
        size = -(-len(case.data) // case.pieces)
        with contextlib.suppress(ConnectionError):  # refused before all was sent: the answer says so
            for at in range(0, len(case.data), size):
                channel.sendall(case.data[at : at + size])

    def _unframed(self, case: Case) -> list[Answer]:
        """Whatever it is, the connection ends behind it, and what comes before are answers."""
        self._line.close()
        channel, stream = self._line.open()
        answers: list[Answer] = []
        try:
            self._push(channel, case)
            channel.shutdown(socket.SHUT_WR)
            while (answer := read_answer(stream, to_head=case.to_head and not answers)) is not None:
                answers.append(answer)
        except TimeoutError:
            raise
        except OSError:
            pass  # cut off in the middle of what it sent: the server's right
        self._line.close()
        return answers

    # ---- right answers

    def _sentinel(self) -> None:
        """A good request is answered well, whatever has gone before on the connection."""
        number = float(self._count)
        body = {"id": f"s{self._count}", "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [number, 1.5, -2.0, 0.0]}
        ]}  # fmt: skip
        channel, stream = self._line.open()
        channel.sendall(post("/v2/models/echo/infer", encode(body)))
        answer = read_answer(stream)
        assert answer is not None
        assert answer.status == 200, answer
        document = answer.document()
        assert document["id"] == body["id"]
        assert document["outputs"][0]["data"] == [number, 1.5, -2.0, 0.0]

    def _compare(self, case: Case, answer: Answer) -> None:
        """What an identity was given, as Python reads it, is what it answers."""
        if answer.status != 200 or answer.headers["content-type"] != "application/json":
            return
        try:
            given = json.loads(case.body.rstrip(b"\0").decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            return
        if not isinstance(given, dict) or "outputs" in given or len(given.get("inputs", ())) != 1:
            return
        if 0 in given["inputs"][0]["shape"]:
            return  # a tensor without elements: its data are not looked at
        (output,) = answer.document()["outputs"]
        leaves = _leaves(given["inputs"][0]["data"])
        if MODELS[case.model][0] == "FP32":
            leaves = float32(leaves)
        if not _equal(leaves, output["data"]):
            raise Broken(f"given {leaves[:20]}, answered {output['data'][:20]}")
        with self._lock:
            self._outcome.compared += 1


def _leaves(data: Any) -> list[Any]:
    return [leaf for each in data for leaf in _leaves(each)] if isinstance(data, list) else [data]


def _equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        one == other or (isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other))
        for one, other in zip(left, right, strict=True)
    )


def fuzz(server: FuzzedServer, count: int, seed: int, clients: int = 4) -> Outcome:
    """Sends ``count`` cases from several clients at once; raises what any of them finds.

    Memory, log and life of the server are looked at now and then.
    """
    outcome, lock, found = Outcome(), threading.Lock(), []
    start = time.perf_counter()

    def one(number: int) -> None:
        try:
            client = _Client(server, seed * 1000 + number, outcome, lock)
            for at in range(0, count // clients, LOOK_EACH):
                client.run(min(LOOK_EACH, count // clients - at))
                server.check()
        except BaseException as error:
            error.add_note(f"seed {seed * 1000 + number}")
            found.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - start
    if found:
        raise found[0]
    return outcome
