"""The load client of Triton's users runs to its end against the server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from grpc_models import ECHO, REPEAT, put
from test_process import process

from workbench.server import runtime


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


GRPC_LOADS = {
    "sync": ["--sync", "--concurrency-range", "1:9:4"],
    "async": ["--async", "--concurrency-range", "8:64:56"],
    "poisson": ["--request-rate-range", "50:100:50", "--request-distribution", "poisson"],
    "windows of counts": ["--async", "--concurrency-range", "4", "--measurement-mode", "count_windows",
                          "--measurement-request-count", "50"],
    "stream": ["--async", "--streaming", "--concurrency-range", "1:9:4"],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(400)
@pytest.mark.parametrize("load", GRPC_LOADS)
def test_perf_analyzer_over_grpc(oracle: Path, tmp_path: Path, load: str) -> None:
    put(tmp_path / "models", "rows", ECHO, "max_batch_size: 8\ndynamic_batching { }")
    with process(tmp_path / "models", "--model-control-mode=explicit", "--load-model=rows") as (child, ready):
        address = runtime.read(ready[3])["grpc"].removeprefix("grpc://")
        done = subprocess.run(
            [
                "timeout", "-s", "KILL", "200", str(oracle / "perf-analyzer"), "-m", "rows", "-u", address, "-i",
                "grpc", "--shape", "IN:16", "-p", "1500", "-s", "999", "-r", "8", *GRPC_LOADS[load],
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert child.poll() is None, "the server is up"
    assert done.returncode == 0, done.stdout + done.stderr
    rates = re.findall(r"^(?:Concurrency|Request Rate): \S+, throughput: ([\d.]+) infer/sec", done.stdout, re.MULTILINE)
    assert rates, done.stdout
    assert all(float(rate) > 0 for rate in rates)


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(400)
def test_perf_analyzer_streams_a_decoupled_model(oracle: Path, tmp_path: Path) -> None:
    put(tmp_path / "models", "repeat", REPEAT, "model_transaction_policy { decoupled: true }")
    (tmp_path / "input.json").write_text('{"data": [{"IN": {"content": [3.0], "shape": [1]}}]}')
    with process(tmp_path / "models", "--model-control-mode=explicit", "--load-model=repeat") as (child, ready):
        address = runtime.read(ready[3])["grpc"].removeprefix("grpc://")
        done = subprocess.run(
            [
                "timeout", "-s", "KILL", "200", str(oracle / "perf-analyzer"), "-m", "repeat", "-u", address, "-i",
                "grpc", "--async", "--streaming", "--input-data", str(tmp_path / "input.json"), "--concurrency-range",
                "1:5:4", "-p", "1500", "-s", "999", "-r", "8",
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert child.poll() is None, "the server is up"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "throughput" in done.stdout
