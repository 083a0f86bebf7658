"""The load client of Triton's users over HTTP: each kind of load that it offers runs to its end."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_process import process

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(600)]

CHAIN = """platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "echo" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" } }
  step { model_name: "second" model_version: -1 input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""  # noqa: E501
SEQUENCE = """backend: "sequence"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching {
  direct { }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
}
instance_group { kind: KIND_CPU count: 2 }
"""
DATA = {"data": [{"INPUT0": [1.0, 2.5, 3.0, 4.0]}, {"INPUT0": {"content": [5.0, 6.0, 7.0, 8.0], "shape": [4]}}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, write: Callable[..., None]) -> Iterator[tuple[str, Any]]:
    """A server process with shared memory switched on: its address, and itself."""
    root = tmp_path_factory.mktemp("models")
    for name in ("echo", "second"):
        write(root, name, "FP32", [4], "dynamic_batching { }\n")
    for name, config in (("chain", CHAIN), ("sums", SEQUENCE)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    with process(root, "--allow-client-shm=true", "--log-info=false") as (child, ready):
        assert child.stderr is not None
        threading.Thread(target=child.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield ready[1].removeprefix("http://"), child


def run(oracle: Path, served: tuple[str, Any], model: str, *options: str) -> str:
    """What perf_analyzer prints; windows are short, and five of them must do."""
    address, child = served
    done = subprocess.run(
        [
            "timeout", "-s", "KILL", "400", str(oracle / "perf-analyzer"), "-m", model, "-u", address, "-i", "http",
            "-s", "999", "-r", "5", "-v", *options,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.poll() is None, "the server is up"
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def levels(text: str, kind: str = "Concurrency") -> dict[str, float]:
    """Throughput by level of load."""
    rows = re.findall(rf"^{kind}: ([\d.]+), throughput: ([\d.]+) infer/sec", text, re.MULTILINE)
    found = {level: float(rate) for level, rate in rows}
    assert found, text[-3000:]
    assert all(found.values())
    return found


WINDOW = ("-p", "500")


def test_sync_up_to_16(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(oracle, served, "echo", "--sync", "--concurrency-range", "1:16:15", *WINDOW)
    assert list(levels(text)) == ["1", "16"]
    assert "Server:" in text, "the server's statistics were read"


def test_async_up_to_64(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(oracle, served, "echo", "--async", "--concurrency-range", "1:64:63", *WINDOW)
    assert list(levels(text)) == ["1", "64"]


def test_a_request_rate_with_poisson_arrivals(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(
        oracle,
        served,
        "echo",
        "--request-rate-range",
        "50:100:50",
        "--request-distribution",
        "poisson",
        "--async",
        *WINDOW,
    )
    found = levels(text, "Request Rate")
    assert [float(rate) for rate in found] == [50, 100]


@pytest.mark.parametrize("kind", ["--sync", "--async"])
def test_system_shared_memory(oracle: Path, served: tuple[str, Any], kind: str) -> None:
    text = run(
        oracle, served, "echo", "--shared-memory", "system", "--output-shared-memory-size", "64", kind,
        "--concurrency-range", "4", *WINDOW,
    )  # fmt: skip
    assert list(levels(text)) == ["4"]


def test_sequences(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(oracle, served, "sums", "--sequence-length", "8", "--async", "--concurrency-range", "4", *WINDOW)
    assert list(levels(text)) == ["4"]


def test_an_ensemble(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(oracle, served, "chain", "--async", "--concurrency-range", "8", *WINDOW)
    assert list(levels(text)) == ["8"]
    assert "Composing models:" in text


def test_inputs_from_a_file(oracle: Path, served: tuple[str, Any], tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps(DATA))
    text = run(oracle, served, "echo", "--input-data", str(tmp_path / "data.json"), "--concurrency-range", "2", *WINDOW)
    assert list(levels(text)) == ["2"]


def test_windows_of_a_count_of_requests(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(
        oracle, served, "echo", "--measurement-mode", "count_windows", "--measurement-request-count", "200",
        "--concurrency-range", "4",
    )  # fmt: skip
    assert list(levels(text)) == ["4"]
    counts = [int(count) for count in re.findall(r"Request count: (\d+)", text)]
    assert counts
    assert min(counts) >= 200


def test_batches_of_tensors_as_json(oracle: Path, served: tuple[str, Any]) -> None:
    text = run(oracle, served, "echo", "-b", "8", "--input-tensor-format", "json", "--concurrency-range", "2", *WINDOW)
    assert list(levels(text)) == ["2"]
