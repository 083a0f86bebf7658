"""One small repository of Python models, served by the workbench and, where it can be, by the real Triton."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_triton import real_triton

CONFIG = """\
name: "echo"
backend: "python"
max_batch_size: 4
input [
  { name: "X" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "T" data_type: TYPE_STRING dims: [ 1 ] }
]
output [
  { name: "X_OUT" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "T_OUT" data_type: TYPE_STRING dims: [ 1 ] }
]
dynamic_batching { max_queue_delay_microseconds: 100 }
"""

MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            t = pb_utils.get_input_tensor_by_name(request, "T").as_numpy()
            if x.size and x[0, 0] == 13:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("thirteen is refused")))
            else:
                outputs = [pb_utils.Tensor("X_OUT", x), pb_utils.Tensor("T_OUT", t)]
                responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""


EXAMPLES = '{"data": [{"X": [1, 2, 3, 4], "T": ["one"]}, {"X": [5, 6, 7, 8], "T": ["zwei"]}]}'


@dataclass(frozen=True)
class Addresses:
    """Where a server answers; ``grpc`` is empty where it has none."""

    http: str
    grpc: str = ""
    token: str = ""
    pid: int = 0
    root: Path = Path()


def write_repository(root: Path) -> Path:
    directory = root / "echo" / "1"
    directory.mkdir(parents=True)
    (root / "echo" / "config.pbtxt").write_text(CONFIG)
    (directory / "model.py").write_text(MODEL)
    (root / "echo" / "example_inputs.json").write_text(EXAMPLES)
    return root


@pytest.fixture(scope="session")
def workbench_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A server of the workbench in a process of its own."""
    root = write_repository(tmp_path_factory.mktemp("models"))
    log = (tmp_path_factory.mktemp("log") / "server.log").open("w+")
    command = [sys.executable, "-m", "workbench.server", "--model-repository", str(root), "--http-port", "0"]
    command += ["--metrics-port", "0", "--grpc-port", "0"]
    command += ["--token", "secret", "--model-control-mode", "explicit", "--load-model", "*"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "workbench: ready" in line:
                break
        else:
            log.seek(0)
            pytest.fail(f"the server did not come up: {log.read()[-2000:]}")
        http = next(part.removeprefix("http=") for part in line.split() if part.startswith("http="))
        yield Addresses(http, token="secret", pid=process.pid, root=root)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        log.close()


@pytest.fixture(scope="session")
def triton_server(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The real tritonserver on the same repository."""
    root = write_repository(tmp_path_factory.mktemp("triton_models"))
    log = tmp_path_factory.mktemp("triton_log") / "log"
    with real_triton(oracle, root, log, ["--model-control-mode=explicit", "--load-model=*"]) as running:
        yield Addresses(running.http, f"grpc://{running.grpc}", pid=running.pid, root=root)
