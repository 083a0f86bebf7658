"""A server that does nothing but answer: the least that a request over HTTP costs, and latencies that are known.

    python benchmarks/support/null_target.py [--script MS,MS,...] [--stall-every S --stall S]

It prints its port. Each POST gets the same answer: at once, or so long after its arrival as the script says (request n
takes entry n modulo the script's length), and never while it stalls: of every ``--stall-every`` seconds the last
``--stall``. A GET gets the configuration of a model ``m`` with one input ``X`` of four floats. It knows just enough of
HTTP for that: heads with a ``Content-Length``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.clock import monotonic_ns
from workbench.profiling.wake import Waker

INPUTS = {"X": np.zeros((1, 4), np.float32)}
"""What the model ``m`` takes."""

_CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
}
_BODY = json.dumps(
    {"model_name": "m", "model_version": "1", "outputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]}
).encode()


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_INFERRED = _answer(_BODY)


class _Later:
    """Answers that are due later, in the order of their times."""

    def __init__(self, script: Sequence[float], stall_every_s: float, stall_s: float) -> None:
        self._script = itertools.cycle([round(ms * 1e6) for ms in script or (0.0,)])
        self._every, self._stall = round(stall_every_s * 1e9), round(stall_s * 1e9)
        self._start = monotonic_ns()
        self._due: list[tuple[int, int, Any]] = []
        self._ids = itertools.count()
        self._waker = Waker(asyncio.get_running_loop(), self._send_due)

    def add(self, transport: Any) -> None:
        """One request has arrived."""
        now = monotonic_ns()
        due = now + next(self._script)
        if self._every:
            into = (due - self._start) % self._every
            if into >= self._every - self._stall:
                due += self._every - into
        if due <= now:
            transport.write(_INFERRED)
            return
        heapq.heappush(self._due, (due, next(self._ids), transport))
        if self._due[0][0] == due:
            self._waker.arm(due)

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= monotonic_ns():
            transport = heapq.heappop(self._due)[2]
            if not transport.is_closing():
                transport.write(_INFERRED)
        if self._due:
            self._waker.arm(self._due[0][0])


class _Connection(asyncio.Protocol):
    """One connection; ``lengths`` are those of whole messages by their heads, which clients repeat."""

    def __init__(self, later: _Later | None, lengths: dict[bytes, int]) -> None:
        self._later = later
        self._lengths = lengths
        self._kept = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._kept + data if self._kept else data
        while data:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            head = data[:end]
            length = self._lengths.get(head)
            if length is None:
                length = self._lengths[head] = end + _content_length(head)
            if len(data) < length:
                break
            data = data[length:]
            if not head.startswith(b"POST"):
                self._transport.write(_told(head))
            elif self._later is None:
                self._transport.write(_INFERRED)
            else:
                self._later.add(self._transport)
        self._kept = data


def _content_length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


def _told(head: bytes) -> bytes:
    path = head.split(b" ", 2)[1]
    if path.endswith(b"/config"):
        return _answer(json.dumps(_CONFIG).encode())
    return _answer(b'{"error":"a null target tells nothing else"}', "404 Not Found")


async def _serve(script: Sequence[float], stall_every_s: float, stall_s: float) -> None:
    later = _Later(script, stall_every_s, stall_s) if script or stall_every_s else None
    lengths: dict[bytes, int] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(later, lengths), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    # Until whoever started it is gone.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def null_target(
    script: Sequence[float] = (), *, stall_every_s: float = 0.0, stall_s: float = 0.0
) -> Iterator[tuple[str, int]]:
    """A null target in a process of its own: its address and process id.

    Args:
        script: latencies in ms, by the number of the request; none answers at once.
        stall_every_s: how often it stalls; 0 never.
        stall_s: for how long.
    """
    command = [sys.executable, __file__, "--stall-every", str(stall_every_s), "--stall", str(stall_s)]
    if script:
        command += ["--script", ",".join(map(str, script))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def main() -> int:
    """Serves until standard input closes."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", default="", help="latencies in ms")
    parser.add_argument("--stall-every", type=float, default=0.0, help="seconds from one stall to the next")
    parser.add_argument("--stall", type=float, default=0.0, help="seconds of a stall")
    args = parser.parse_args()
    script = [float(ms) for ms in args.script.split(",") if ms]
    uvloop.run(_serve(script, args.stall_every, args.stall))
    return 0


if __name__ == "__main__":
    sys.exit(main())
