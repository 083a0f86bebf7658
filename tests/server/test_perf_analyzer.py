"""The load client of Triton's users runs to its end against a sample model; its loads: test_perf_analyzer_loads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from test_process import process


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(400)
def test_perf_analyzer_runs_to_the_end(oracle: Path, sample_repository: Path) -> None:
    with process(sample_repository, "--model-control-mode=explicit", "--load-model=mlp_4096") as (child, ready):
        done = subprocess.run(
            [
                "timeout", "-s", "KILL", "300", str(oracle / "perf-analyzer"), "-m", "mlp_4096", "-u",
                ready[1].removeprefix("http://"), "-i", "http", "--async", "--concurrency-range", "1:16:5", "-p",
                "1500", "-s", "95", "-r", "8",
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert child.poll() is None, "the server is up"
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^Concurrency: (\d+), throughput: ([\d.]+) infer/sec", done.stdout, re.MULTILINE)
    assert [int(level) for level, _ in rows] == [1, 6, 11, 16]
    assert all(float(rate) > 0 for _, rate in rows)
    assert "Server:" in done.stdout, "server-side statistics were read"
