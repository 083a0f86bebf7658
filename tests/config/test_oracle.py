"""The recorded answers of Triton's parser are those of the real binary."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ANSWERS = json.loads(Path(__file__).with_name("parser_answers.json").read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def errors_in_log(log: str) -> dict[str, list[str]]:
    """Model directory -> the parser's errors, which stand before the line that names it."""
    waiting: list[str] = []
    found: dict[str, list[str]] = {}
    for line in log.split("\n"):
        error = re.search(r"Error parsing text-format inference.ModelConfig: (.*)", line)
        if error is not None:
            waiting.append(error.group(1))
            continue
        poll = re.search(r"Poll failed for model directory '([^']+)'", line)
        if poll is not None:
            found[poll.group(1)], waiting = waiting, []
    return found


@pytest.mark.full
@pytest.mark.oracle
def test_tritonserver_says_what_was_recorded(oracle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    rows = {f"c{index:03d}": row for index, row in enumerate(ANSWERS) if row["errors"]}
    for name, row in rows.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_bytes(row["config"].encode("latin-1"))
    port, log = free_port(), tmp_path / "log"
    command = [str(oracle / "real-tritonserver"), f"--model-repository={repository}", "--exit-on-error=false"]
    command += [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text(errors="replace")[-2000:]
                time.sleep(0.2)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    found = errors_in_log(log.read_bytes().decode("utf-8", "replace"))
    assert {name: found.get(name) for name in rows} == {name: row["errors"] for name, row in rows.items()}
