"""The measuring side of a load generator: starts its process, gives it runs, and hears from it."""

from __future__ import annotations

import contextlib
import queue
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.clock import Clock, monotonic_ns
from workbench.errors import ConnectionFailed, InternalError
from workbench.profiling.arrivals import arrivals
from workbench.profiling.frames import read_frame, write_frame
from workbench.profiling.load import Load
from workbench.profiling.merging import Share
from workbench.profiling.plan import Plan
from workbench.profiling.samples import Samples, unpack

OnEvent = Callable[[dict[str, Any]], None]

Frame = tuple[dict[str, Any], bytes]
"""What a generator says: an event and its raw columns."""

_START_S = 30.0
_SLACK_S = 30.0
# -P: a user's random.py beside the notebook must not be imported; hence this package's own path comes last, too.
_BOOTSTRAP = "import sys; sys.path.extend(sys.argv[1:]); from workbench.profiling.generator import main; main()"


STOP_NS = 10_000_000_000
"""A generator that was told to stop has so long to hand over what it has."""


def longest_ns(load: Load) -> int:
    """How long a run of a load takes at most; a generator that is silent for longer hangs."""
    return int((load.longest_warmup_s + load.longest_s + load.drain_s + _SLACK_S) * 1e9)


@dataclass(frozen=True, slots=True)
class Job:
    """What the generator shall do. ``messages`` are complete HTTP messages, or encoded gRPC requests."""

    load: Load
    url: str
    protocol: Literal["http", "grpc"]
    messages: Sequence[bytes]
    plan: Plan | None = None
    """Which of the messages are whose; None: all of one class, in rotation."""

    @property
    def sent(self) -> Plan:
        """The plan, also where none was given."""
        return self.plan or Plan.plain(len(self.messages), streaming=self.load.streaming)


def _extra_path() -> list[str]:
    """Where this package is, unless the child finds it anyway."""
    here = str(Path(__file__).resolve().parents[2])
    known = {str(Path(path).resolve()) for path in (*site.getsitepackages(), sysconfig.get_paths()["purelib"])}
    return [] if here in known else [here]


def samples_in(frame: Frame, url: str) -> Samples | None:
    """The samples, where a generator's frame has them; None where the run goes on.

    Raises:
        ConnectionFailed: the frame says that nobody answers at the address.
        InternalError: it says that the run failed.
    """
    head, blob = frame
    if head["event"] == "unreachable":
        raise ConnectionFailed(
            f"no server answers at {url}: {head['text']}",
            where=url,
            hint="check that the server runs and that address and port are right",
        )
    if head["event"] == "failed":
        raise InternalError(f"the load generator failed: {head['text']}", where=url)
    return unpack(head, blob) if head["event"] == "done" else None


class GeneratorProcess:
    """A load generator in a process of its own, used for one run after the other. Not thread-safe.

    Args:
        clock: CLOCK_MONOTONIC.
        news: set whenever the process has said something or has ended, for who listens to several.
    """

    def __init__(self, *, clock: Clock = monotonic_ns, news: threading.Event | None = None) -> None:
        self._clock = clock
        self._news = news if news is not None else threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        self._stderr: Any = None

    @property
    def pid(self) -> int | None:
        """Its process id, while it lives."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Starts the process, if it does not run.

        Raises:
            InternalError: it does not come up.
        """
        if self.launch():
            self.greet()

    def launch(self) -> bool:
        """Starts the process without waiting until it is there (``greet`` does); False where it runs already."""
        if self.pid is not None:
            return False
        self.close()
        self._frames = queue.Queue()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP, *_extra_path()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self._process, self._frames), name="generator", daemon=True).start()
        return True

    def greet(self) -> None:
        """Waits until a process that was launched is there.

        Raises:
            InternalError: it does not come up.
        """
        try:
            frame = self._frames.get(timeout=_START_S)
        except queue.Empty:
            frame = None
        if frame is None or frame[0].get("event") != "hello":
            raise InternalError(
                f"the load generator did not start{self._last_words()}", where=f"{sys.executable} -m {__package__}"
            )

    def _read(self, process: subprocess.Popen[bytes], frames: queue.Queue[Frame | None]) -> None:
        frame: Frame | None = ({}, b"")
        while frame is not None:
            try:
                frame = read_frame(process.stdout)  # type: ignore[arg-type]
            except (OSError, ValueError):
                frame = None
            frames.put(frame)
            self._news.set()

    def run(self, job: Job, on_event: OnEvent, stop: threading.Event | None = None) -> Samples:
        """Runs one load point; ``on_event`` hears of the window's edges as they happen.

        Args:
            job: what to send where.
            on_event: called on this thread with ``{"event": "window" | "window_end" | "progress", ...}``.
            stop: once set, the run ends at once and gives what it has.

        Raises:
            ConnectionFailed: nobody answers at the address.
            InternalError: the generator died or hung; its last words are in the text.
        """
        self.start()
        self._hand_over(job, job.load, job.sent, *arrivals(job.load), led=False)
        try:
            return self._follow(job, on_event, stop, self._clock() + longest_ns(job.load))
        except BaseException:
            # Ctrl-C, or a measurement that failed half way: nobody would read the answers, and the load must end now.
            self.close()
            raise

    def begin(self, job: Job, share: Share) -> None:
        """Hands over its share of a run, which waits for its turns."""
        self._hand_over(job, share.load, share.plan, share.offsets, share.marks, led=True)

    def _hand_over(
        self, job: Job, load: Load, plan: Plan, offsets: NDArray[np.int64], marks: NDArray[np.int64], *, led: bool
    ) -> None:
        head = {
            "cmd": "run",
            "load": load.to_json(),
            "url": job.url,
            "protocol": job.protocol,
            "sizes": [len(message) for message in job.messages],
            "plan": plan.to_json(),
            "led": led,
        }
        self.tell(head, b"".join(job.messages) + offsets.tobytes() + marks.tobytes())

    def _follow(self, job: Job, on_event: OnEvent, stop: threading.Event | None, deadline: int) -> Samples:
        stopping = False
        while True:
            if stop is not None and stop.is_set() and not stopping:
                stopping = True
                self.tell({"cmd": "stop"})
                deadline = min(deadline, self._clock() + STOP_NS)
            try:
                frame = self._frames.get(timeout=0.05)
            except queue.Empty:
                if self._clock() > deadline:
                    raise InternalError("the load generator does not answer any more", where=job.url) from None
                continue
            samples = self.result(frame, job.url)
            if samples is not None:
                return samples
            if frame is not None:
                on_event(frame[0])

    def heard(self) -> list[Frame | None]:
        """What it has said since the last time, without waiting; None at the end where it has ended."""
        frames = []
        with contextlib.suppress(queue.Empty):
            while True:
                frames.append(self._frames.get_nowait())
        return frames

    def result(self, frame: Frame | None, url: str) -> Samples | None:
        """The samples where a frame has them; None where the run goes on.

        Raises:
            ConnectionFailed: the frame says that nobody answers at the address.
            InternalError: it says that the run failed, or (None) that the process has ended.
        """
        if frame is None:
            raise InternalError(f"the load generator ended during a run{self._last_words()}", where=url)
        return samples_in(frame, url)

    def tell(self, head: dict[str, Any], blob: bytes = b"") -> None:
        """Sends a command.

        Raises:
            InternalError: the process has ended.
        """
        process = self._process
        if process is None or process.stdin is None:
            raise InternalError("the load generator is closed")
        try:
            write_frame(process.stdin, head, blob)
        except OSError as error:
            raise InternalError(f"the load generator ended{self._last_words()}") from error

    def _last_words(self) -> str:
        process = self._process
        if process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        code = process.poll()
        text = f" (exit code {code})" if code is not None else ""
        if self._stderr is not None:
            self._stderr.seek(0)
            lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
            if lines:
                text += f": {lines[-1][:300]}"
        return text

    def close(self) -> None:
        """Ends the process; also one in the middle of a run. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10.0)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def __enter__(self) -> GeneratorProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
