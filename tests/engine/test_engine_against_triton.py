"""One life of a repository with good and bad models, on a real Triton (2.51) and here: same states, texts, statistics.

Known differences, and so not in the script: a missing model.py, and a warm-up that fails, hang or end the process
there. Statistics are compared only where nothing has just been answered: Triton answers before it counts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until

from workbench.engine import InferenceEngine
from workbench.server import ServerOptions, serve_engine

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(400)]

ECHO = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", array)]) for array in given]
"""
CONFIG = """backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
instance_group { kind: KIND_CPU }
"""
WARMUP = """model_warmup {
  name: "w" batch_size: 2 count: 3
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: 2 zero_data: true } }
}
"""
IN_INIT = ECHO.replace(
    "    def execute", "    def initialize(self, args):\n        raise RuntimeError('in init')\n\n    def execute"
)
IN_EXECUTE = ECHO.replace("        given", "        raise RuntimeError('in execute')\n        given")
X = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def build(root: Path) -> None:
    def add(
        name: str, config: str | None = CONFIG, source: str | None = ECHO, versions: tuple[str, ...] = ("1",)
    ) -> None:
        (root / name).mkdir(parents=True)
        if config is not None:
            (root / name / "config.pbtxt").write_text(config)
        for version in versions:
            (root / name / version).mkdir()
            if source is not None:
                (root / name / version / "model.py").write_text(source)

    add("good")
    add("at_import", source="raise ValueError('at import')")
    add("syntax", source="def (")
    add("in_init", source=IN_INIT)
    add("in_execute", source=IN_EXECUTE)
    add("bad_config", "max_batch_size: {")
    add("bad_value", CONFIG.replace("size: 4", "size: -4"))
    add("wrong_name", 'name: "other"\n' + CONFIG)
    add("no_version", versions=())
    add("policy_none", CONFIG + "version_policy { specific { versions: 5 } }")
    add("policy_some", CONFIG + "version_policy { specific { versions: [ 1, 5 ] } }", versions=("1", "2"))
    add("all", CONFIG + "version_policy { all { } }", versions=("1", "2", "03", "x"))
    add("warm", CONFIG + WARMUP)
    add("warm_variable", CONFIG + WARMUP.replace("dims: 2 zero", "dims: -1 zero"))
    add("warm_nothing", CONFIG + WARMUP.replace("zero_data: true", ""))
    add("warm_no_file", CONFIG + WARMUP.replace("zero_data: true", 'input_data_file: "nope"'))
    add("no_backend", CONFIG.replace('"python"', '"unheard"'))
    add("no_io", 'backend: "python"\nmax_batch_size: 4')
    add("no_config", None)
    add("nothing", None, None)
    add("a.b", None, None)
    add("gpu", CONFIG.replace("KIND_CPU", "KIND_GPU"))
    add("zero_dims", CONFIG.replace("dims: 2", "dims: 0"))
    add("preferred", CONFIG + "dynamic_batching { preferred_batch_size: 9 }")
    add("three", CONFIG.replace("kind:", "count: 3 kind:"))
    add("reshape", CONFIG.replace("dims: 2", "dims: 2 reshape { shape: [ 1, 1 ] }"))


class Talk:
    """Calls a server and writes down what it said."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.root = root
        self.said: list[tuple[str, int, Any]] = []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        made = urllib.request.Request(self.url + path, method=method, data=data)
        try:
            with urllib.request.urlopen(made, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        text = text.replace(str(self.root), "ROOT")
        text = re.sub(r'"(ns|last_inference)":\d+', r'"\1":0', text)
        text = re.sub(r"(<frozen importlib\._bootstrap\w*>)\(\d+\)", r"\1(0)", text)  # two releases of Python
        answered = json.loads(text) if text[:1] in ("{", "[") else text
        self.said.append((f"{method} {path} {'' if body is None else json.dumps(body)[:120]}", status, answered))
        return answered

    def load(self, name: str, **parameters: Any) -> None:
        self.call("POST", f"/v2/repository/models/{name}/load", {"parameters": parameters} if parameters else {})

    def infer(self, path: str) -> None:
        self.call("POST", f"/v2/models/{path}/infer", X)

    def index(self) -> None:
        self.call("POST", "/v2/repository/index", {})


def life(talk: Talk) -> None:
    """Everything that is compared."""
    root, get = talk.root, lambda path: talk.call("GET", path)
    talk.index()
    get("/v2/health/ready")
    for name in sorted(path.name for path in root.iterdir()):
        talk.load(name)
    for path in ("warm/stats", "all", "all/versions/1", "no_io/config", "good/config", "three/config", "all/config"):
        get(f"/v2/models/{path}")
    for path in ("in_execute", "all/versions/1", "all", "in_init", "in_init/versions/1", "bad_config"):
        talk.infer(path)
    for path in ("in_init/stats", "in_init", "in_init/config", "bad_config"):
        get(f"/v2/models/{path}")
    good = root / "good"
    (good / "1" / "model.py").write_text("raise ValueError('reload')")
    talk.load("good")
    talk.infer("good")
    talk.call("POST", "/v2/repository/index", {"ready": True})
    (good / "1" / "model.py").write_text(ECHO)
    talk.load("good")
    talk.infer("good")
    for text in ("max_batch_size: {", CONFIG.replace("size: 4", "size: -4"), CONFIG):
        (good / "config.pbtxt").write_text(text)
        talk.load("good")
        talk.infer("good")
    io = {"data_type": "TYPE_FP32", "dims": [2]}
    override = {
        "backend": "python",
        "max_batch_size": 2,
        "input": [{"name": "IN"} | io],
        "output": [{"name": "OUT"} | io],
    }
    talk.load("good", config=json.dumps(override))
    get("/v2/models/good/config")
    for text in ('{"nope":1}', "{", '{"max_batch_size":-1,"backend":"python"}', '{"backend":"python","name":"other"}'):
        talk.load("good", config=text)
        talk.infer("good")
    talk.load("good", nope="x")
    talk.load("good")
    get("/v2/models/good/config")
    get("/v2/models/in_execute/stats")
    talk.call("POST", "/v2/repository/models/good/unload", {})
    wait_until(lambda: talk.call("POST", "/v2/repository/index", {}) is not None and _unloaded(talk), 20)
    talk.said = [
        entry
        for entry in talk.said
        if not entry[0].startswith("POST /v2/repository/index {}") or not _unloading(entry[2])
    ]
    for path in ("good", "good/versions/1", "good/stats", "good/ready"):
        get(f"/v2/models/{path}")
    talk.infer("good")
    talk.infer("good/versions/1")
    talk.call("POST", "/v2/repository/models/nope/unload", {})
    talk.load("good")
    get("/v2/models/good/ready")
    shutil.rmtree(root / "all")
    talk.load("all")
    talk.infer("all")
    talk.index()


def _state(rows: Any) -> str:
    return next((row.get("state", "") for row in rows if row["name"] == "good"), "")


def _unloaded(talk: Talk) -> bool:
    return _state(talk.said[-1][2]) == "UNAVAILABLE"


def _unloading(rows: Any) -> bool:
    return _state(rows) == "UNLOADING"


@pytest.fixture
def triton(oracle: Path, tmp_path: Path) -> Iterator[Talk]:
    root = tmp_path / "real"
    build(root)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(oracle / "real-tritonserver"), f"--model-repository={root}", f"--http-port={port}", "--allow-grpc=false",
        "--allow-metrics=false", "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false",
    ]  # fmt: skip
    log = tmp_path / "triton.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=2):
                    break
            except OSError:
                threading.Event().wait(0.25)
        yield Talk(f"http://127.0.0.1:{port}", root)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_one_life(triton: Talk, tmp_path: Path, make_engine: Any) -> None:
    life(triton)
    root = tmp_path / "ours"
    build(root)
    engine: InferenceEngine = make_engine(root, gpus=())
    server = serve_engine(engine, ServerOptions(http_port=0, metrics_port=0))
    try:
        ours = Talk(server.http_url.rstrip("/"), root)
        life(ours)
    finally:
        server.close()
    assert [entry[0] for entry in ours.said] == [entry[0] for entry in triton.said]
    different = [(theirs, mine) for theirs, mine in zip(triton.said, ours.said, strict=True) if theirs != mine]
    assert not different, "\n".join(f"{theirs}\n    {mine[1:]}" for theirs, mine in different)
    assert len(triton.said) > 60
