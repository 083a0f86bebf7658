"""Placement, host policies and Python-based backends on a real Triton (2.51) and here: the same texts and answers.

Rows of differences, each with its reason, are in ``DIFFERENT``.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from real_triton import real_triton
from scaler_backend import SHARED, write

from workbench.engine import EngineOptions, InferenceEngine
from workbench.server import ServerOptions, serve_engine
from workbench.server.arguments import host_policies

pytestmark = [
    pytest.mark.full,
    pytest.mark.oracle,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="the real Triton runs on Linux"),
]

TOLD = SHARED.replace(
    '        self.told["directory"] = pb.get_model_dir()\n',
    """        self.told["model_repository"] = os.path.basename(args["model_repository"])
        self.told["directory"] = "/".join(pb.get_model_dir().split("/")[-2:])
        self.told["module"] = __name__
        self.told["cores"] = sorted(os.sched_getaffinity(0))
""",
)
"""The backend's file with more of what its models see, and no path of this machine's."""

CONFIGS = {
    "triple": 'backend: "scaler"',
    "stated": 'backend: "scaler" runtime: "model.py"',
    "own": 'backend: "python"',
    "nobody": 'backend: "nobody"',
    "other_library": 'backend: "scaler" runtime: "libtriton_other.so"',
    "nobodys_file": 'backend: "nobody" runtime: "model.py"',
    "pythons_file": 'backend: "python" runtime: "model.py"',
    "escaping": 'backend: "scaler" runtime: "../other.so"',
    "escaping_to_a_file": 'backend: "scaler" runtime: "../elsewhere/libtriton_other.so"',
    "escaping_backend": 'backend: "../scaler"',
    "pinned": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "first" }',
    "unknown": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "nobody" }',
    "named": 'backend: "python" instance_group { name: "group" kind: KIND_CPU }',
    "second": ('backend: "python" instance_group [ { kind: KIND_CPU passive: true }, { kind: KIND_MODEL } ]'),
    "no_range": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "no_range" }',
    "no_range_behind": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "no_range_behind" }',
    "odd_range": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "odd_range" }',
    "no_number": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "no_number" }',
    "no_node": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "no_node" }',
    "no_core": 'backend: "python" instance_group { kind: KIND_CPU host_policy: "no_core" }',
    "gpu": 'backend: "python" instance_group { kind: KIND_GPU gpus: [ 0 ] }',
    "any_gpu": 'backend: "python" instance_group { kind: KIND_GPU }',
    "model_gpu": 'backend: "python" instance_group { kind: KIND_MODEL gpus: [ 0 ] }',
    "cpu_gpu": 'backend: "python" instance_group { gpus: [ 0 ] }',
    "count_zero": 'backend: "python" instance_group { count: 0 kind: KIND_CPU }',
    "count_below": 'backend: "python" instance_group { count: -3 }',
}
DIFFERENT = {
    "no_core": "the real text ends in the words of an unrelated errno ('Success'), ours in why the system refuses",
    "no_node": "what the system says of a node that is not there depends on its kernel and rights",
}


def _policies() -> list[str]:
    first = min(os.sched_getaffinity(0))
    return [
        f"first,cpu-cores={first}-{first}", "no_range,cpu-cores=0", "no_range_behind,cpu-cores=0-0,7",
        "odd_range,cpu-cores=x-2", "no_number,numa-node=x", "no_node,numa-node=40", "no_core,cpu-cores=900-901",
    ]  # fmt: skip


def _write(root: Path) -> tuple[Path, Path]:
    backend = root / "backends" / "scaler"
    write(backend, TOLD)
    for name, config in CONFIGS.items():
        version = root / "models" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config + "\n")
        if "elsewhere" in config:
            (version.parent / "elsewhere").mkdir()
            (version.parent / "elsewhere" / "libtriton_other.so").write_bytes(b"none")
        if '"python"' in config:
            write(version, TOLD)
        else:
            (version / "factor.json").write_text('{"factor": 3}')
    return root / "models", root / "backends"


def _say(url: str, root: Path, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text, status = answer.read().decode(), answer.status
    except urllib.error.HTTPError as error:
        text, status = error.read().decode(), error.code
    return status, json.loads(text.replace(str(root), "ROOT") or "null")


def _story(address: str, root: Path) -> dict[str, Any]:
    said: dict[str, Any] = {}
    question = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    for name in CONFIGS:
        loaded = _say(f"{address}/v2/repository/models/{name}/load", root, {})
        said[name] = [loaded]
        if loaded[0] == 200:
            said[name].append(_say(f"{address}/v2/models/{name}/config", root, None))
            said[name].append(_say(f"{address}/v2/models/{name}/infer", root, question))
    said["index"] = sorted(map(str, _say(f"{address}/v2/repository/index", root, {})[1]))
    return said


@pytest.fixture(scope="module")
def stories(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both say."""
    root = tmp_path_factory.mktemp("real")
    models, backends = _write(root)
    home = Path(os.environ.get("REAL_TRITON_HOME") or Path.home() / ".cache" / "real-triton")
    options = [
        "--model-control-mode=explicit", f"--backend-directory={backends}",
        *(f"--host-policy={each}" for each in _policies()),
    ]  # fmt: skip
    (python,) = home.glob("lib/python*/site-packages/pytriton/tritonserver/backends/python")
    (backends / "python").symlink_to(python)
    with real_triton(oracle, models, root / "log", options) as address:
        real = _story(address.http, root)
    root = tmp_path_factory.mktemp("ours")
    models, backends = _write(root)
    (backends / "python").mkdir()
    policies = host_policies(_policies())
    engine = InferenceEngine(
        EngineOptions((models,), load_models=(), gpus=(), backend_directory=backends, host_policies=policies)
    )
    engine.start()
    try:
        with serve_engine(engine, ServerOptions(http_port=0, metrics_port=0)) as server:
            ours = _story(server.http_url.rstrip("/"), root)
    finally:
        engine.stop(10)
    return real, ours


@pytest.mark.parametrize("name", [*CONFIGS, "index"])
def test_both_say_the_same(name: str, stories: tuple[dict[str, Any], dict[str, Any]]) -> None:
    real, ours = (story[name] for story in stories)
    if name == "index":
        real, ours = (
            [row for row in rows if not any(f"'{each}'" in row for each in DIFFERENT)] for rows in (real, ours)
        )
    if name in DIFFERENT:
        (real_code, real_text), (code, text) = real[0], ours[0]
        assert text["error"].rpartition(": ")[0] == real_text["error"].rpartition(": ")[0]
        real, ours = real_code, code
    assert ours == real
