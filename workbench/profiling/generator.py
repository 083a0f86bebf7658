"""The load generator's process: ``python -m workbench.profiling.generator``.

It reads frames from standard input (``frames``) and answers on standard output. A ``run`` frame carries the load, the
address and the encoded requests; ``stop`` ends a run early. A run that is one of several says ``ready`` and is told
when to ``begin``, to ``open`` its window and to ``end`` it. When standard input closes, or the parent is gone, the
process exits at once, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from workbench.profiling.frames import read_frame, write_frame
from workbench.profiling.led import TURNS, Led
from workbench.profiling.load import Load
from workbench.profiling.plan import Plan
from workbench.profiling.recorder import Recorder
from workbench.profiling.runner import LoadRun, MakeTransport, Transport
from workbench.profiling.samples import pack


class _Generator:
    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands = commands
        self._answers = answers
        self._parent = os.getppid()
        self._run: LoadRun | None = None
        self._led: Led | None = None
        self._stop_asked = False
        self._queue: asyncio.Queue[tuple[dict[str, Any], bytes]] = asyncio.Queue()

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="commands", daemon=True).start()
        watcher = loop.create_task(self._watch_parent())
        self._emit({"event": "hello", "pid": os.getpid()})
        while True:
            head, blob = await self._queue.get()
            if head["cmd"] == "exit":
                watcher.cancel()
                return
            try:
                await self._one(head, blob)
            except (OSError, TimeoutError) as error:
                self._emit({"event": "unreachable", "text": str(error) or type(error).__name__})
            except Exception as error:
                self._emit({"event": "failed", "text": f"{type(error).__name__}: {error}"})
            finally:
                self._run = self._led = None

    async def _one(self, head: dict[str, Any], blob: bytes) -> None:
        load = Load.from_json(head["load"])
        sizes = head["sizes"]
        bodies, offset = [], 0
        for size in sizes:
            bodies.append(blob[offset : offset + size])
            offset += size
        times = np.frombuffer(blob[offset:], np.int64).reshape(2, -1)
        self._led = Led(self._tell) if head["led"] else None
        plan = Plan.from_json(head["plan"])
        self._run = LoadRun(load, plan, bodies, (times[0], times[1]), _transport_maker(head), self._emit, led=self._led)
        if self._stop_asked:
            self._run.stop()
        described, columns = pack(await self._run.run())
        write_frame(self._answers, {"event": "done", **described}, columns)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reads commands on a thread of its own, so that a stop is heard while the loop is busy."""
        while True:
            frame = read_frame(self._commands)
            if frame is None:
                os._exit(0)
            command = frame[0]["cmd"]
            if command == "stop":
                loop.call_soon_threadsafe(self._stop)
            elif command in TURNS:
                loop.call_soon_threadsafe(self._turn, frame[0])
            else:
                loop.call_soon_threadsafe(self._accept, frame)

    def _accept(self, frame: tuple[dict[str, Any], bytes]) -> None:
        # Here and not when the run begins: a stop right behind the run must not be forgotten.
        self._stop_asked = False
        self._queue.put_nowait(frame)

    def _stop(self) -> None:
        self._stop_asked = True
        if self._run is not None:
            self._run.stop()

    def _turn(self, command: dict[str, Any]) -> None:
        if self._led is not None:
            self._led.set(command["cmd"], command["at"])

    def _tell(self, answers: bytes) -> None:
        self._emit({"event": "answers"}, answers)

    def _emit(self, event: dict[str, Any], blob: bytes = b"") -> None:
        try:
            write_frame(self._answers, event, blob)
        except OSError:
            os._exit(0)

    async def _watch_parent(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            if os.getppid() != self._parent:
                os._exit(0)


def _transport_maker(head: dict[str, Any]) -> MakeTransport:
    def make(recorder: Recorder, on_done: Callable[[int, str | None], None]) -> Transport:
        if head["protocol"] == "grpc":
            from workbench.profiling.grpc_load import GrpcTransport

            return GrpcTransport(head["url"], recorder, on_done)
        from workbench.profiling.http_load import HttpTransport

        return HttpTransport(head["url"], recorder, on_done)

    return make


def main() -> int:
    """Runs the generator on standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business: it says stop
    # Whatever a library prints must not end up between the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(OSError, ImportError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
    with contextlib.suppress(OSError, AttributeError):
        os.nice(-5)  # where it is allowed: a late generator spoils a measurement
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # not on Windows
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_Generator(sys.stdin.buffer, answers).main())
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
