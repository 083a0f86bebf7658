"""Ensembles on a real Triton (2.51) and here: the same answers, texts, states, statistics.

Rows of differences, each with its reason, are in ``DIFFERENT``.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from real_triton import real_triton

from workbench.engine import InferenceEngine
from workbench.server import ServerOptions, serve_engine

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(400)]

PLUS = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb.get_input_tensor_by_name(request, "IN").as_numpy()
            if given.ravel()[0] == 13:
                answers.append(pb.InferenceResponse(error=pb.TritonError("thirteen")))
            elif given.ravel()[0] == 20:
                answers.append(pb.InferenceResponse([]))
            else:
                answers.append(pb.InferenceResponse([pb.Tensor("OUT", given + 1)]))
        return answers
"""
TELL = """import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows = pb.get_input_tensor_by_name(request, "IN").as_numpy().shape[0]
            text = json.dumps([request.request_id(), request.correlation_id(), request.flags(),
                               json.loads(request.parameters() or "{}"), request.requested_output_names()])
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", np.array([[text]] * rows, dtype=np.object_))]))
        return answers
"""
CONFIG = """backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
instance_group { kind: KIND_CPU }
"""


def step(model: str, source: str, target: str, version: int = -1, names: tuple[str, str] = ("IN", "OUT")) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: {version} input_map {{ key: "{names[0]}" value: "{source}" }} '
        f'output_map {{ key: "{names[1]}" value: "{target}" }} }}\n'
    )


def build(root: Path) -> None:
    def add(name: str, config: str, source: str | None = None) -> None:
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        if source is not None:
            (root / name / "1" / "model.py").write_text(source)

    def ensemble(name: str, *steps: str, size: int = 4, outputs: str = "", extra: str = "") -> None:
        made = outputs or 'output { name: "Y" data_type: TYPE_FP32 dims: 2 }'
        add(
            name,
            f'platform: "ensemble"\nmax_batch_size: {size}\ninput {{ name: "X" data_type: TYPE_FP32 dims: 2 }}\n'
            f"{made}\nensemble_scheduling {{ {''.join(steps)} }}\n{extra}",
        )

    add("a", CONFIG, PLUS)
    add("b", CONFIG, PLUS)
    add("broken", CONFIG, "raise ValueError('at import')")
    add("bad_config", "max_batch_size: {", PLUS)
    add("small", CONFIG.replace("size: 4", "size: 2"), PLUS)
    add("plain", CONFIG.replace("size: 4", "size: 0"), PLUS)
    add("tell", CONFIG.replace('"OUT" data_type: TYPE_FP32 dims: 2', '"OUT" data_type: TYPE_STRING dims: 1'), TELL)
    ensemble("chain", step("a", "X", "t"), step("b", "t", "Y"))
    ensemble("told", step("tell", "X", "T"), outputs='output { name: "T" data_type: TYPE_STRING dims: 1 }')
    both = 'output { name: "Y" data_type: TYPE_FP32 dims: 2 } output { name: "Z" data_type: TYPE_FP32 dims: 2 }'
    ensemble("forked", step("a", "X", "Y"), step("b", "X", "Z"), outputs=both)
    ensemble("mixed", step("plain", "X", "t"), step("b", "t", "Y"), size=0)
    ensemble("nested", step("chain", "X", "t", names=("X", "Y")), step("b", "t", "Y"))
    ensemble("missing", step("a", "X", "t"), step("nope", "t", "Y"))
    ensemble("on_bad", step("bad_config", "X", "Y"))
    ensemble("on_broken", step("broken", "X", "Y"))
    ensemble("above", step("on_broken", "X", "Y", names=("X", "Y")))
    ensemble("second", step("a", "X", "Y", 2))
    ensemble("on_small", step("small", "X", "Y"))
    ensemble("no_input", step("a", "X", "Y", names=("NOPE", "OUT")))
    ensemble("no_output", step("a", "X", "Y", names=("IN", "NOPE")))
    ensemble("types", step("tell", "X", "Y"))
    ensemble("circle", step("circle", "X", "Y", names=("X", "Y")))
    value = "data_type: TYPE_FP32 dims: 2 zero_data: true"
    warmup = f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "X" value {{ {value} }} }} }}'
    ensemble("warm", step("a", "X", "Y"), extra=warmup)


class Talk:
    """Calls a server and writes down what it said."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self.root = url, root
        self.said: list[tuple[str, int, Any]] = []

    def call(self, method: str, path: str, body: Any = None) -> None:
        made = urllib.request.Request(self.url + path, method=method, data=body and json.dumps(body).encode())
        try:
            with urllib.request.urlopen(made, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        text = text.replace(str(self.root), "ROOT")
        text = re.sub(r'"(ns|last_inference)":\d+', r'"\1":0', text)
        text = re.sub(r"(<frozen importlib\._bootstrap\w*>)\(\d+\)", r"\1(0)", text)
        answered = json.loads(text) if text[:1] in ("{", "[") else text
        self.said.append((f"{method} {path} {'' if body is None else json.dumps(body)[:150]}", status, answered))

    def load(self, name: str, verb: str = "load", **parameters: Any) -> None:
        self.call("POST", f"/v2/repository/models/{name}/{verb}", {"parameters": parameters})

    def infer(self, name: str, value: float = 1, rows: int = 1, **fields: Any) -> None:
        shape = [rows, 2] if rows else [2]
        count = max(rows, 1) * 2
        tensor = {"name": "X", "datatype": "FP32", "shape": shape, "data": [value] * count}
        self.call("POST", f"/v2/models/{name}/infer", {"id": "q", "inputs": [tensor]} | fields)


def life(talk: Talk) -> None:
    pause = threading.Event()
    for name in sorted(path.name for path in talk.root.iterdir()):
        talk.load(name)
    talk.call("POST", "/v2/repository/index", {"ready": False})
    for value, rows in ((1, 1), (1, 3), (1, 5), (13, 1), (12, 1), (20, 1), (19, 1)):
        talk.infer("chain", value, rows)
    talk.infer("chain", rows=0)
    talk.infer("mixed", rows=0)
    talk.infer("nested", 5, 2)
    talk.infer("nested", 12)
    for outputs in (["Z"], ["Y"], ["Z", "Y"], ["nope"]):
        talk.infer("forked", outputs=[{"name": name} for name in outputs])
    talk.infer("told", parameters={"sequence_id": 7, "sequence_start": True, "priority": 2, "own": "x", "n": 3})
    talk.infer("told", parameters={"sequence_id": "seven", "sequence_end": True, "timeout": 1000})
    pause.wait(0.3)  # Triton answers before it counts
    for name in ("forked", "mixed", "a", "b", "plain", "tell"):
        talk.call("GET", f"/v2/models/{name}/stats")
    for path in ("chain", "chain/config", "chain/ready", "mixed", "on_small", "on_small/ready", "on_small/config"):
        talk.call("GET", f"/v2/models/{path}")
    talk.load("b", "unload")
    pause.wait(3)
    talk.infer("chain")
    talk.call("GET", "/v2/models/chain/ready")
    talk.load("b")
    talk.infer("chain")
    talk.load("chain")
    talk.infer("chain")
    (talk.root / "b" / "1" / "model.py").write_text(PLUS.replace("given + 1", "given + 5"))
    talk.load("b")
    talk.infer("chain")
    pause.wait(0.3)
    talk.call("GET", "/v2/models/chain/stats")
    talk.load("chain", "unload", unload_dependents=True)
    pause.wait(2)
    talk.infer("chain")
    talk.call("GET", "/v2/models/a/ready")
    talk.call("GET", "/v2/models/nested/ready")


DIFFERENT = {
    '"outputs": [{"name": "Z"}, {"name": "Y"}]': "2.51 gives the outputs of an ensemble in the order of a hash table",
    "/v2/models/chain/config": "max_inflight_requests came with 25.12; configurations here have every field",
    "/v2/models/a/stats": "2.51's Python backend counts a request that it answers with an error as a success",
    "/v2/models/b/stats": "the same",
}
"""What is in the calls in which the two differ, with the reason; also: 2.51 counts an ensemble's failure twice."""


def test_one_life(oracle: Path, tmp_path: Path, make_engine: Any) -> None:
    build(tmp_path / "real")
    build(tmp_path / "ours")
    with real_triton(oracle, tmp_path / "real", tmp_path / "log", ["--model-control-mode=explicit"]) as real:
        theirs = Talk(real.http, tmp_path / "real")
        life(theirs)
    engine: InferenceEngine = make_engine(tmp_path / "ours", gpus=(), load_models=())
    server = serve_engine(engine, ServerOptions(http_port=0, metrics_port=0))
    try:
        ours = Talk(server.http_url.rstrip("/"), tmp_path / "ours")
        life(ours)
    finally:
        server.close()
    assert [entry[0] for entry in ours.said] == [entry[0] for entry in theirs.said]
    different = [
        (a, b)
        for a, b in zip(theirs.said, ours.said, strict=True)
        if a != b and not any(part in a[0] for part in DIFFERENT)
    ]
    assert not different, "\n".join(f"{a}\n    {b[1:]}" for a, b in different)
    assert len(theirs.said) > 60
