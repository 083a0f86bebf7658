"""The load client of Triton's users: each kind of load that it offers runs to its end, over HTTP and over gRPC."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpc_models import REPEAT, put
from test_process import process

from workbench.server import runtime

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
DATA = {
    "echo": [{"INPUT0": [1.0, 2.5, 3.0, 4.0]}, {"INPUT0": {"content": [5.0, 6.0, 7.0, 8.0], "shape": [4]}}],
    "repeat": [{"IN": {"content": [3.0], "shape": [1]}}],
}
WINDOW = ("-p", "500")
COUNT = ("--measurement-mode", "count_windows", "--measurement-request-count", "200")
POISSON = ("--request-rate-range", "50:100:50", "--request-distribution", "poisson", *WINDOW)
SHARED = ("--shared-memory", "system", "--output-shared-memory-size", "64", "--concurrency-range", "4", *WINDOW)
ALL = ("http", "grpc")


@dataclass(frozen=True)
class Load:
    """A kind of load: the options of perf_analyzer, and the levels that it reports."""

    model: str
    options: tuple[str, ...]
    levels: tuple[int, ...]
    protocols: tuple[str, ...] = ALL
    level: str = "Concurrency"


LOADS = {
    "sync up to 16": Load("echo", ("--sync", "--concurrency-range", "1:16:15", *WINDOW), (1, 16)),
    "async up to 64": Load("echo", ("--async", "--concurrency-range", "1:64:63", *WINDOW), (1, 64)),
    "poisson, sync": Load("echo", ("--sync", *POISSON), (50, 100), level="Request Rate"),
    "poisson, async": Load("echo", ("--async", *POISSON), (50, 100), level="Request Rate"),
    "shared memory, sync": Load("echo", ("--sync", *SHARED), (4,)),
    "shared memory, async": Load("echo", ("--async", *SHARED), (4,)),
    "sequences, sync": Load("sums", ("--sync", "--sequence-length", "8", "--concurrency-range", "4", *WINDOW), (4,)),
    "sequences, async": Load("sums", ("--async", "--sequence-length", "8", "--concurrency-range", "4", *WINDOW), (4,)),
    "an ensemble, sync": Load("chain", ("--sync", "--concurrency-range", "8", *WINDOW), (8,)),
    "an ensemble, async": Load("chain", ("--async", "--concurrency-range", "8", *WINDOW), (8,)),
    "inputs from a file": Load("echo", ("--input-data", "echo.json", "--concurrency-range", "2", *WINDOW), (2,)),
    "windows of a count, sync": Load("echo", ("--sync", *COUNT, "--concurrency-range", "4"), (4,)),
    "windows of a count, async": Load("echo", ("--async", *COUNT, "--concurrency-range", "4"), (4,)),
    "batches": Load("echo", ("-b", "8", "--concurrency-range", "2", *WINDOW), (2,)),
    "batches as JSON": Load(
        "echo", ("-b", "8", "--input-tensor-format", "json", "--concurrency-range", "2", *WINDOW), (2,), ("http",)
    ),
    "stream": Load("echo", ("--async", "--streaming", "--concurrency-range", "1:9:8", *WINDOW), (1, 9), ("grpc",)),
    "stream of a decoupled model": Load(
        "repeat",
        ("--async", "--streaming", "--input-data", "repeat.json", "--concurrency-range", "1:5:4", *WINDOW), (1, 5),
        ("grpc",),
    ),
    "stream of a decoupled model, poisson": Load(
        "repeat", ("--async", "--streaming", "--input-data", "repeat.json", *POISSON), (50, 100), ("grpc",),
        level="Request Rate",
    ),
    "stream of sequences": Load(
        "sums", ("--async", "--streaming", "--sequence-length", "8", "--concurrency-range", "4", *WINDOW), (4,),
        ("grpc",),
    ),
    "stream of an ensemble": Load(
        "chain", ("--async", "--streaming", "--concurrency-range", "8", *WINDOW), (8,), ("grpc",)
    ),
    "stream with windows of a count": Load(
        "echo", ("--async", "--streaming", *COUNT, "--concurrency-range", "4"), (4,), ("grpc",)
    ),
}  # fmt: skip
"""The kinds that the client offers for a server like this."""


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, write: Callable[..., None]
) -> Iterator[tuple[dict[str, str], Any]]:
    """A server process with shared memory switched on: its addresses by protocol, and itself."""
    root = tmp_path_factory.mktemp("models")
    for name in ("echo", "second"):
        write(root, name, "FP32", [4], "dynamic_batching { }\n")
    for name, config in (("chain", CHAIN), ("sums", SEQUENCE)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    put(root, "repeat", REPEAT, "model_transaction_policy { decoupled: true }")
    with process(root, "--allow-client-shm=true", "--log-info=false") as (child, ready):
        assert child.stderr is not None
        threading.Thread(target=child.stderr.read, daemon=True).start()  # a full pipe would stop the server
        grpc = runtime.read(ready[3])["grpc"]
        yield {"http": ready[1].partition("://")[2], "grpc": grpc.partition("://")[2]}, child


@pytest.mark.parametrize(
    ("name", "protocol"), [(name, protocol) for name, load in LOADS.items() for protocol in load.protocols]
)
def test_a_load_runs_to_its_end(
    oracle: Path, served: tuple[dict[str, str], Any], tmp_path: Path, name: str, protocol: str
) -> None:
    load = LOADS[name]
    addresses, child = served
    for model, rows in DATA.items():
        (tmp_path / f"{model}.json").write_text(json.dumps({"data": rows}))
    done = subprocess.run(
        [
            "timeout", "-s", "KILL", "400", str(oracle / "perf-analyzer"), "-m", load.model, "-u", addresses[protocol],
            "-i", protocol, "-s", "999", "-r", "5", "-v", *load.options,
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert child.poll() is None, "the server is up"
    text = done.stdout
    assert done.returncode == 0, text[-3000:] + done.stderr[-3000:]
    rows = re.findall(rf"^{load.level}: ([\d.]+), throughput: ([\d.]+) infer/sec", text, re.MULTILINE)
    assert tuple(float(level) for level, _ in rows) == load.levels, text[-3000:]
    assert all(float(rate) > 0 for _, rate in rows)
    if load.model == "chain":
        assert "Composing models:" in text
    if "--streaming" not in load.options:
        assert "Server:" in text, "the server's statistics were read"
    if "count_windows" in load.options:
        counts = [int(count) for count in re.findall(r"Request count: (\d+)", text)]
        assert counts
        assert min(counts) >= 200
