"""A real Triton (2.51) over a repository."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from free_ports import free_ports

_COMMON = ("numpy<2", "pandas<3")
"""What models of the tests import there: that release was built against numpy 1 (with numpy 2 it sends arrays of no
bytes), for which there is no pandas 3."""

_ALIKE = ("onnxruntime", "scikit-learn", "tokenizers")
"""And these in the versions here: answers are compared byte for byte."""

_STARTS = 3

_INSTALLED: set[str] = set()
"""The requirements that this process has seen installed."""


def install(oracle: Path, packages: Sequence[str] = ()) -> None:
    """Makes the oracle's environments, where they are not there yet, and installs what models of tests import.

    One process at a time, and first of all: a second one that makes the same environment, or whose pip replaces a
    package, takes it from servers that are importing it, whose models then fail to load.

    Raises:
        AssertionError: that failed; with what it said.
    """
    wanted = {*_COMMON, *_alike(), *packages} - _INSTALLED
    if not wanted:
        return
    with (Path(tempfile.gettempdir()) / f"workbench_tests_oracle_{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        commands = {"real-tritonserver": {"REAL_TRITON_PIP": " ".join(sorted(wanted))}}
        if not _INSTALLED:
            commands["perf-analyzer"] = {}
        for name, environment in commands.items():
            done = subprocess.run(
                [oracle / name, "--help"],
                env=os.environ | environment, capture_output=True, text=True, timeout=900, check=False,
            )  # fmt: skip
            said = done.stdout + done.stderr
            if name == "real-tritonserver":  # the other one's tests fail by themselves, where it cannot be here
                assert "--help" in said, f"{name} --help ended with {done.returncode}: {said[-3000:]}"
    _INSTALLED.update(wanted)


@dataclass(frozen=True)
class Addresses:
    """Where a server listens: two URLs, and HOST:PORT for gRPC."""

    http: str
    metrics: str
    grpc: str = ""
    pid: int = 0


@contextlib.contextmanager
def real_triton(
    oracle: Path, repository: Path, log: Path, options: Sequence[str] = (), packages: Sequence[str] = ()
) -> Iterator[Addresses]:
    """Starts tritonserver over a repository on free ports; gives the addresses, ends it at the end.

    ``packages`` are requirements of the models' model.py, besides the usual ones (``install``). A path with a space
    ends the processes of Triton's Python models. One that ends before it is live is started anew, on other ports.

    Raises:
        AssertionError: it ended each time, or is not live in time; with the end of its log.
    """
    install(oracle, packages)
    with contextlib.ExitStack() as stack:
        for _ in range(_STARTS - 1):
            with contextlib.suppress(_EndedEarly):
                addresses = stack.enter_context(_running(oracle, repository, log, options))
                break
        else:
            addresses = stack.enter_context(_running(oracle, repository, log, options))
        yield addresses


class _EndedEarly(AssertionError):
    """It ended before it was live."""


@contextlib.contextmanager
def _running(oracle: Path, repository: Path, log: Path, options: Sequence[str]) -> Iterator[Addresses]:
    http, metrics, grpc = free_ports(3)
    region = f"triton_python_{os.getpid()}_{http}_"
    command = [
        str(oracle / "real-tritonserver"), f"--model-repository={repository}", f"--http-port={http}",
        f"--metrics-port={metrics}", f"--grpc-port={grpc}", "--exit-on-error=false", "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1", f"--backend-config=python,shm-region-prefix-name={region}", *options,
    ]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        for _ in range(1500):
            if process.poll() is not None:
                raise _EndedEarly(log.read_text(errors="replace")[-3000:])
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/live", timeout=2):
                    break
            except OSError:
                threading.Event().wait(0.1)
        else:
            raise AssertionError(f"tritonserver is not live after 150 s:\n{log.read_text(errors='replace')[-3000:]}")
        yield Addresses(
            f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}/metrics", f"127.0.0.1:{grpc}", process.pid
        )
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for left in Path("/dev/shm").glob(f"{region}*"):  # one for each instance: the server was killed
            left.unlink(missing_ok=True)


def complaints(log: Path) -> str:
    """The errors and warnings of its log: why a model is not loaded is before the tables that the log ends with."""
    return "\n".join(line for line in log.read_text().splitlines() if line[:1] in "EW")[-3000:]


def _alike() -> Iterator[str]:
    for name in _ALIKE:
        with contextlib.suppress(PackageNotFoundError):
            yield f"{name}=={version(name)}"
