"""The repositories that ``benchmarks/wire.py`` serves."""

from __future__ import annotations

from pathlib import Path

TENSOR_FLOATS = 1 << 20
"""Floats of the large tensor: 4 MiB."""

MLP_MAX_BATCH = 8

_HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"

_ADD_SUB = (
    _HEAD
    + """    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
)
_BIG = (
    _HEAD
    + """    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
"""
)
_SINK = (
    _HEAD
    + """    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given[:1].copy())]))
        return answers
"""
)
_SOURCE = (
    _HEAD
    + f"""    def initialize(self, args):
        self.made = np.ones({TENSOR_FLOATS}, np.float32)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", self.made)]) for _ in requests]
"""
)
_SMALL = """
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
"""
_THREAD = 'parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n'


def _large(inputs: int, outputs: int) -> str:
    return f"""
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ {inputs} ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {outputs} ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


def write_shared(folder: Path) -> None:
    """What both servers load: ``add_sub`` (16 floats) and ``big`` (a 4 MiB tensor there and back)."""
    _python(folder, "add_sub", _ADD_SUB, _SMALL)
    _python(folder, "big", _BIG, _large(TENSOR_FLOATS, TENSOR_FLOATS))


def write_thread(folder: Path) -> None:
    """``add_sub`` on a thread of the server."""
    _python(folder, "add_sub_thread", _ADD_SUB, _SMALL + _THREAD)


def write_copied(folder: Path) -> None:
    """``sink`` takes a 4 MiB tensor, ``source`` gives one; in processes of their own, and ``_thread`` on threads."""
    for suffix, more in (("", ""), ("_thread", _THREAD)):
        _python(folder, f"sink{suffix}", _SINK, _large(TENSOR_FLOATS, 1) + more)
        _python(folder, f"source{suffix}", _SOURCE, _large(1, TENSOR_FLOATS) + more)


def write_mlp(folder: Path) -> Path:
    """The sample ``mlp_4096`` with dynamic batching; gives its model file."""
    from workbench.samples.graphs import MLP_WIDTH, mlp

    version = folder / "mlp_4096" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(mlp().SerializeToString())
    (folder / "mlp_4096" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime"
max_batch_size: {MLP_MAX_BATCH}
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ {MLP_WIDTH} ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ {MLP_WIDTH} ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""
    )
    return version / "model.onnx"


def write_identity(folder: Path) -> None:
    """``identity``: 16 floats, the example backend of that name."""
    (folder / "identity" / "1").mkdir(parents=True)
    (folder / "identity" / "config.pbtxt").write_text(
        """backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
    )


def _python(folder: Path, name: str, model: str, config: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(model)
    (folder / name / "config.pbtxt").write_text('backend: "python"' + config)
