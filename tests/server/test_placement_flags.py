"""tritonserver's flags for backends, devices and host policies, on the command line of the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.server.arguments import backend_config, host_policies, parse, without_effect
from workbench.server.main import main

MODEL = """import json
import os

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        told = {"name": self.args["model_instance_name"], "kind": self.args["model_instance_kind"], "cores": cores,
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
        return [pb.InferenceResponse([pb.Tensor("TOLD", np.array([json.dumps(told).encode()]))]) for _ in requests]
"""
CONFIG = """backend: "teller"
input { name: "ANY" data_type: TYPE_FP32 dims: 1 }
output { name: "TOLD" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_GPU gpus: [ 5 ] host_policy: "mine" }
"""
SLICES = Path(__file__).parents[1] / "recorded_devices" / "h200_seven_slices.json"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server started with all of the flags."""
    (tmp_path / "backends" / "teller").mkdir(parents=True)
    (tmp_path / "backends" / "teller" / "model.py").write_text(MODEL)
    (tmp_path / "models" / "told" / "1").mkdir(parents=True)
    (tmp_path / "models" / "told" / "config.pbtxt").write_text(CONFIG)
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    command = [
        sys.executable, "-m", "workbench.server", f"--model-repository={tmp_path / 'models'}", "--http-port=0",
        "--metrics-port=0", "--grpc-port=0", f"--backend-directory={tmp_path / 'backends'}", f"--device-list={SLICES}",
        f"--host-policy=mine,cpu-cores={core}-{core}", "--min-supported-compute-capability=8.9",
    ]  # fmt: skip
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "ready http=" in line, line + (child.stderr.read() if child.stderr else "")
        yield line.split("http=")[1].split()[0]
    finally:
        child.terminate()
        child.communicate(timeout=30)


def post(url: str, body: Any) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as answer:
        return json.load(answer)


def test_a_server_with_all_of_them(address: str) -> None:
    body = {"inputs": [{"name": "ANY", "datatype": "FP32", "shape": [1], "data": [0]}]}
    told = json.loads(post(f"{address}/v2/models/told/infer", body)["outputs"][0]["data"][0])
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    uuid = json.loads(SLICES.read_text())[5]["uuid"]
    assert told == {"name": "told_0_0", "kind": "GPU", "cores": [core], "visible": uuid}


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--host-policy=mine", "--host-policy option format is '<policy name>,<setting>=<value>'. Got mine"),
        ("--host-policy=,cpu-cores=0-0", "Got ,cpu-cores=0-0"),
        ("--host-policy=mine,cpu-cores=", "Got mine,cpu-cores="),
        (
            "--host-policy=mine,nice=3",
            "Unsupported host policy setting 'nice' is specified, supported settings are 'numa-node', 'cpu-cores'",
        ),
        (
            "--backend-config=,a=b",
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            "<setting>=<value>. Got ,a=b",
        ),
        (
            "--backend-config=python,a=",
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got python,a=",
        ),
        ("--min-supported-compute-capability=new", "invalid float value: 'new'"),
    ],
)
def test_a_wrong_flag_is_said_in_words(flag: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-repository=.", flag]) == 2
    assert text in capfd.readouterr().err


def test_a_device_list_that_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = [f"--model-repository={tmp_path}", "--http-port=0", f"--device-list={tmp_path / 'none.json'}"]
    assert main(flags) == 1
    assert "cannot be read" in capfd.readouterr().err


def test_flags_are_read_as_triton_does() -> None:
    args = parse(
        ["--model-repository=.", "--host-policy=a,cpu-cores=0-1", "--host-policy", "a,numa-node=0",
         "--host-policy=a,cpu-cores=2-3", "--backend-directory=/x", "--model-load-thread-count=2",
         "--model-load-retry-count=3", "--model-load-gpu-limit=0:0.5"]
    )  # fmt: skip
    assert host_policies(args.host_policy) == {"a": {"cpu-cores": "2-3", "numa-node": "0"}}
    assert without_effect(args) == ["--model-load-gpu-limit", "--model-load-retry-count"]
    assert backend_config(["a,b=c=d"]) == {"a": {"b": "c=d"}}
