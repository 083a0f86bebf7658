"""A server in a process of its own for fuzzing: whether it lives, what memory it holds, what its log complains of."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from onnx import TensorProto, helper, save

SIZE = int(os.environ.get("WORKBENCH_FUZZ", "20000"))
"""How many inputs the long proofs send: a tenth of their full size, which `make soak` asks for."""

MAX_INPUT = 1 << 20
TYPES = {
    "FP32": TensorProto.FLOAT,
    "INT64": TensorProto.INT64,
    "BYTES": TensorProto.STRING,
    "FP16": TensorProto.FLOAT16,
}
MODELS = {
    "echo": ("FP32", 4),
    "ints": ("INT64", -1),
    "texts": ("BYTES", -1),
    "one_text": ("BYTES", 1),
    "halves": ("FP16", 2),
}
"""Identities INPUT0 -> OUTPUT0 with max_batch_size 8: data type and last dimension."""

SPARE = "spare"
"""One more, that nobody infers with: it may be loaded and unloaded."""

CONFIGS = (
    '{"backend":"onnxruntime","max_batch_size":8}',
    '{"name":"spare","backend":"onnxruntime","max_batch_size":4,'
    '"input":[{"name":"INPUT0","data_type":"TYPE_FP32","dims":[4]}],'
    '"output":[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[4]}],"dynamic_batching":{}}',
    '{"backend":"none"}',
    "{}",
    "[",
)
"""Configurations for loads of it, right and wrong."""

REGION_BYTES = 4096
"""Size of a region of shared memory that exists."""

REPEAT = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb.get_input_tensor_by_name(request, "COUNT").as_numpy().ravel()[0])
            for number in range(min(max(count, 0), 20)):
                sender.send(pb.InferenceResponse([pb.Tensor("NUMBER", np.array([number], np.int32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


ZEROS = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        counts = [int(pb.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]) for request in requests]
        return [pb.InferenceResponse([pb.Tensor("ZEROS", np.zeros(min(count, 1 << 20), np.uint8))]) for count in counts]
"""


def _write_python(root: Path, name: str, source: str, output: str, more: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(source)
    (root / name / "config.pbtxt").write_text(
        f'backend: "python"\n{more}'
        'input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        f"output [ {{ {output} }} ]\n"
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        'parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n'
    )


def write_models(root: Path) -> Path:
    """The repository: ``MODELS``, ``SPARE``, and two with an input COUNT.

    ``repeat`` answers so often, ``zeros`` with so many bytes, up to a MiB.
    """
    for name, (datatype, dim) in {**MODELS, SPARE: MODELS["echo"]}.items():
        shape = [None, None if dim == -1 else dim]
        graph = helper.make_graph(
            [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
            name,
            [helper.make_tensor_value_info("INPUT0", TYPES[datatype], shape)],
            [helper.make_tensor_value_info("OUTPUT0", TYPES[datatype], shape)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        (root / name / "1").mkdir(parents=True)
        save(model, str(root / name / "1" / "model.onnx"))
        kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
        (root / name / "config.pbtxt").write_text(
            'backend: "onnxruntime"\nmax_batch_size: 8\n'
            f'input [ {{ name: "INPUT0" data_type: {kind} dims: [ {dim} ] }} ]\n'
            f'output [ {{ name: "OUTPUT0" data_type: {kind} dims: [ {dim} ] }} ]\n'
            "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        )
    decoupled = "model_transaction_policy { decoupled: true }\n"
    _write_python(root, "repeat", REPEAT, 'name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ]', decoupled)
    _write_python(root, "zeros", ZEROS, 'name: "ZEROS" data_type: TYPE_UINT8 dims: [ -1 ]')
    return root


class FuzzedServer:
    """A running server.

    ``address`` is HOST:PORT of HTTP, ``ready`` the line that it printed when it was, ``region`` the key of shared
    memory that a client may register.
    """

    def __init__(self, process: subprocess.Popen[str], ready: str, log: Path, region: str = "") -> None:
        self.region = region
        self.process = process
        self.ready = ready
        self.log = log
        self.address = self.at("http").removeprefix("http://").rstrip("/")
        self._before = self._peak = self.memory()

    def at(self, name: str) -> str:
        """An address of the line."""
        found = re.search(rf"\b{name}=(\S+)", self.ready)
        assert found, self.ready
        return found[1]

    def memory(self) -> int:
        """Resident bytes of the server and its children."""
        own = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (own, *own.children(recursive=True)))

    def grown(self) -> int:
        """Bytes more than at the start."""
        return self.memory() - self._before

    def forget_peak(self) -> None:
        """From now on ``peak`` counts."""
        self._peak = self.memory()
        with contextlib.suppress(OSError):  # a kernel that keeps none: then it is what ``memory`` has been seen to be
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak(self) -> int:
        """Bytes more than at the start that the server has held at most since ``forget_peak``."""
        self._peak = max(self._peak, self.memory())
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
            self._peak = max(self._peak, int(found[1]) << 10 if found else 0)
        return self._peak - self._before

    def check(self, allowed_bytes: int = 400 << 20) -> None:
        """Fails when it has ended, holds much more memory than at the start, or has logged an unexpected error."""
        text = self.log.read_text(errors="replace")
        assert self.process.poll() is None, text[-3000:]
        assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:3000]
        grown = self.grown()
        assert grown < allowed_bytes, f"{grown / 2**20:.0f} MiB more than at the start"


@contextlib.contextmanager
def fuzzed_server(root: Path, *flags: str) -> Iterator[FuzzedServer]:
    """Serves ``write_models`` with small limits; at the end it must still stop cleanly."""
    write_models(root / "models")
    log = root / "log"
    region = Path(f"/dev/shm/fuzz_{os.getpid()}_{root.name}")
    region.write_bytes(bytes(REGION_BYTES))
    command = [
        sys.executable, "-m", "workbench.server", f"--model-repository={root / 'models'}", "--http-port=0",
        "--metrics-port=0", "--grpc-port=0", f"--http-max-input-size={MAX_INPUT}", "--allow-client-shm=true",
        "--model-control-mode=explicit", "--load-model=*", *flags,
    ]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        try:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if "workbench: ready" in line), "")
            assert ready, log.read_text()[-3000:]
            yield FuzzedServer(process, ready, log, f"/{region.name}")
            process.terminate()
            assert process.wait(60) == 0, log.read_text()[-3000:]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            region.unlink(missing_ok=True)


def float32(values: list[float]) -> list[float]:
    """Numbers as an FP32 tensor holds them."""
    with np.errstate(over="ignore"):
        found: list[float] = np.array(values, np.float64).astype(np.float32).astype(np.float64).tolist()
    return found
