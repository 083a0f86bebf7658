"""A real Triton (2.51) over a repository."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_INSTALLED: set[str] = set()
"""The requirements that this process has seen a server start with."""


@dataclass(frozen=True)
class Addresses:
    """Where a server listens: two URLs, and HOST:PORT for gRPC."""

    http: str
    metrics: str
    grpc: str = ""


@contextlib.contextmanager
def real_triton(
    oracle: Path, repository: Path, log: Path, options: Sequence[str] = (), packages: Sequence[str] = ()
) -> Iterator[Addresses]:
    """Starts tritonserver over a repository on free ports; gives the addresses, ends it at the end.

    ``packages`` are requirements of the models' model.py, besides numpy. A path with a space ends the processes of
    Triton's Python models.

    Raises:
        AssertionError: it ended, or is not live in time; with the end of its log.
    """
    http, metrics, grpc = _free_ports(3)
    region = f"triton_python_{os.getpid()}_{http}_"
    command = [
        str(oracle / "real-tritonserver"), f"--model-repository={repository}", f"--http-port={http}",
        f"--metrics-port={metrics}", f"--grpc-port={grpc}", "--exit-on-error=false",
        f"--backend-config=python,shm-region-prefix-name={region}", *options,
    ]  # fmt: skip
    wanted = ("numpy<2", *packages)
    # pip takes half a second to find that all is there: once in a process is enough
    environment = os.environ | {"REAL_TRITON_PIP": "" if _INSTALLED.issuperset(wanted) else " ".join(wanted)}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)
    try:
        for _ in range(1500):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/live", timeout=2):
                    break
            except OSError:
                threading.Event().wait(0.1)
        else:
            raise AssertionError(f"tritonserver is not live after 150 s:\n{log.read_text()[-3000:]}")
        _INSTALLED.update(wanted)
        yield Addresses(f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}/metrics", f"127.0.0.1:{grpc}")
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for left in Path("/dev/shm").glob(f"{region}*"):  # one for each instance: the server was killed
            left.unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
