"""A real Triton (2.51) and the engine behind its front end, asked the same things."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def real_triton(oracle: Path, repository: Path, log: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """Starts tritonserver over a repository on a free port; gives the address, ends it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(oracle / "real-tritonserver"), f"--model-repository={repository}", f"--http-port={port}",
        "--allow-grpc=false", "--allow-metrics=false", "--exit-on-error=false", *options,
    ]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, env=os.environ | {"REAL_TRITON_PIP": "numpy<2"}
        )
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=2):
                    break
            except OSError:
                threading.Event().wait(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
