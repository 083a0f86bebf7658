"""TRITONSERVER_DELAY_SCHEDULER on a real Triton (2.51) and here: the same batches of the same requests."""

from __future__ import annotations

import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from real_triton import real_triton

from workbench.server import ServerOptions, serve_engine
from workbench.session.kernel import Engine

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(400), pytest.mark.rule("1.15")]

MODEL = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUT", pb.get_input_tensor_by_name(r, "IN").as_numpy())])
                for r in requests]
"""
CONFIG = """backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU }
dynamic_batching { PREFERRED }
"""
PREFERRED = {"any": "", "four": "preferred_batch_size: [ 4 ]"}


def _write(root: Path) -> None:
    for name, preferred in PREFERRED.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(MODEL)
        (root / name / "config.pbtxt").write_text(CONFIG.replace("PREFERRED", preferred))


def _ask(url: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
        return json.load(answer)


def _batches(address: str, model: str) -> tuple[int, dict[int, int]]:
    stats = _ask(f"{address}/v2/models/{model}/stats")["model_stats"][0]
    sizes = {int(row["batch_size"]): int(row["compute_infer"]["count"]) for row in stats["batch_stats"]}
    return int(stats["inference_count"]), sizes


def _story(address: str, model: str) -> list[dict[int, int]]:
    """The batches after eight requests at once, and after one more."""
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    told = []
    sent = 0
    for count in (8, 1):
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda _: _ask(f"{address}/v2/models/{model}/infer", body), range(count)))
        sent += count
        for _ in range(200):  # it answers before it counts
            counted, sizes = _batches(address, model)
            if counted == sent:
                break
            threading.Event().wait(0.05)
        told.append(sizes)
    return told


def test_eight_wait_for_each_other_and_the_ninth_for_nobody(
    oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "8")
    _write(tmp_path / "models")
    with real_triton(oracle, tmp_path / "models", tmp_path / "log") as address:
        real = {name: _story(address.http, name) for name in PREFERRED}
    with (
        Engine(tmp_path / "models", python_execution="process") as engine,
        serve_engine(engine.engine, ServerOptions(http_port=0, metrics_port=0)) as server,
    ):
        ours = {name: _story(server.http_url.rstrip("/"), name) for name in PREFERRED}
    assert ours == real
    assert ours["any"] == [{8: 1}, {8: 1, 1: 1}]
