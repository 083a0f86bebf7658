"""Real Triton and ours as processes over a model repository, and what they spend on a request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from workbench.clock import monotonic_ns, sleep

_READY = re.compile(r"workbench: ready http=(\S+) grpc=(\S+)")
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs; ``http`` and ``grpc`` are HOST:PORT, empty where it has none."""

    name: str
    http: str
    grpc: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds of the process and of all its children, so far."""
        total = 0.0
        main = psutil.Process(self.pid)
        for process in (main, *main.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def counts(self, model: str) -> tuple[int, int]:
        """Requests that a model has answered so far, and batches that it has executed."""
        with urllib.request.urlopen(f"http://{self.http}/v2/models/{model}/stats", timeout=10) as answer:
            stats = json.load(answer)["model_stats"][0]
        return int(stats["inference_stats"]["success"]["count"]), int(stats["execution_count"])


def oracle_at(given: Path | None) -> Path | None:
    """The folder of ``real-tritonserver`` and ``perf-analyzer``: as given, WORKBENCH_ORACLE, or beside the checkout."""
    named = os.environ.get("WORKBENCH_ORACLE")
    beside = Path(__file__).resolve().parents[3] / "shared" / "oracle"
    for folder in (given, Path(named) if named else None, beside):
        if folder is not None and (folder / "perf-analyzer").exists():
            return folder
    return None


@contextlib.contextmanager
def real_triton(oracle: Path, repository: Path, log: Path) -> Iterator[Server]:
    """A real tritonserver on free ports.

    Raises:
        RuntimeError: it did not start.
    """
    http, metrics, grpc = _free_ports(3)
    command = [
        str(oracle / "real-tritonserver"), f"--model-repository={repository}", f"--http-port={http}",
        f"--grpc-port={grpc}", f"--metrics-port={metrics}",
    ]  # fmt: skip
    with _process(command, log, {"REAL_TRITON_PIP": "numpy<2"}) as process:
        deadline = monotonic_ns() + int(_START_S * 1e9)
        while not _ready(http):
            if process.poll() is not None or monotonic_ns() > deadline:
                raise RuntimeError(f"tritonserver did not start:\n{log.read_text()[-2000:]}")
            sleep(0.1)
        yield Server("real", f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", process.pid)


@contextlib.contextmanager
def ours(
    repository: Path, log: Path, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Our server on free ports.

    Raises:
        RuntimeError: it did not start.
    """
    command = [
        sys.executable, "-m", "workbench.server", f"--model-repository={repository}", "--http-port=0",
        "--grpc-port=0", "--metrics-port=0", *flags,
    ]  # fmt: skip
    with _process(command, log, environment or {}) as process:
        deadline = monotonic_ns() + int(_START_S * 1e9)
        while (ready := _READY.search(log.read_text())) is None:
            if process.poll() is not None or monotonic_ns() > deadline:
                raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
            sleep(0.05)
        http, grpc = (re.sub(r"^\w+://", "", address) for address in ready.groups())
        yield Server("ours", http, "" if grpc == "off" else grpc, process.pid)


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, env={**os.environ, **environment}
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
