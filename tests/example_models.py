"""The models of Triton's client examples, as far as they can be had without its files: own writing.

``docs/examples/model_repository`` of the server's repository holds ONNX files (TensorFlow graphs until 25.02), which a
Triton without their backend cannot load, and leaves out the weights of its two image models. Here are Python models
with the same names, shapes, types and answers, which the workbench and any Triton with the Python backend load.

Image models are stand-ins: they have the inputs, outputs and labels of the real ones, and score an image by its means.
"""

from __future__ import annotations

import shutil
from pathlib import Path

SIMPLE = ("simple", "simple_dyna_sequence", "simple_identity", "simple_int8", "simple_sequence", "simple_string")
"""What the server's repository has complete."""

IMAGES = ("densenet_onnx", "inception_onnx")
"""What it has without weights."""

_HEAD = """import time

import numpy as np
import triton_python_backend_utils as pb_utils


def given(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
"""


def _answers(body: str) -> str:
    """A model.py that answers every request with ``OUTPUTS``, a dictionary that ``body`` makes of ``request``."""
    return (
        _HEAD
        + "    def execute(self, requests):\n        return [self.answer(request) for request in requests]\n\n"
        + "    def answer(self, request):\n"
        + "".join(f"        {line}\n" for line in body.strip().splitlines())
        + "        return pb_utils.InferenceResponse([pb_utils.Tensor(*item) for item in outputs.items()])\n"
    )


_SUMS = _answers("""
a, b = given(request, "INPUT0"), given(request, "INPUT1")
outputs = {"OUTPUT0": a + b, "OUTPUT1": a - b}
""")
_TEXT_SUMS = _answers("""
a, b = given(request, "INPUT0").astype(np.int32), given(request, "INPUT1").astype(np.int32)
outputs = {"OUTPUT0": (a + b).astype(str).astype(object), "OUTPUT1": (a - b).astype(str).astype(object)}
""")
_IDENTITY = _answers('outputs = {"OUTPUT0": given(request, "INPUT0")}')
_SEQUENCE = _answers("""
outputs = {"OUTPUT": (given(request, "INPUT") + given(request, "START")) * given(request, "READY")}
""")
_DYNA_SEQUENCE = _answers("""
last = given(request, "END") * given(request, "CORRID").astype(np.int32)
outputs = {"OUTPUT": (given(request, "INPUT") + given(request, "START") + last) * given(request, "READY")}
""")
_STRING_DYNA_SEQUENCE = _answers("""
key = given(request, "CORRID").ravel()[0]
sums = self.__dict__.setdefault("sums", {})
before = 0 if given(request, "START").any() else sums[key]
sums[key] = before + given(request, "INPUT")
outputs = {"OUTPUT": (sums[key] + given(request, "END") * int(key)).astype(np.int32)}
""")
_DENSENET = _answers("""
image = given(request, "data_0")
outputs = {"fc6_1": np.resize(image.mean(axis=(2, 3)), (1, 1000, 1, 1)).astype(np.float32)}
""")
_INCEPTION = _answers("""
image = given(request, "input:0")
outputs = {"InceptionV3/Predictions/Softmax:0": np.resize(image.mean(axis=(1, 2)), (1, 1001)).astype(np.float32)}
""")
_SCORES_OF_FILE = _answers("""
files = given(request, "INPUT").ravel()
histograms = [np.bincount(np.frombuffer(file, np.uint8), minlength=1001)[:1001] for file in files]
outputs = {"OUTPUT": np.stack(histograms).astype(np.float32)}
""")
_REPEAT = (
    _HEAD
    + """    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for index, (value, delay) in enumerate(zip(given(request, "IN"), given(request, "DELAY"))):
                time.sleep(delay / 1000)
                out = pb_utils.Tensor("OUT", np.array([value], np.int32))
                sender.send(pb_utils.InferenceResponse([out, pb_utils.Tensor("IDX", np.array([index], np.uint32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)


def _tensors(kind: str, tensors: dict[str, str]) -> str:
    rows = (f'  {{ name: "{name}" {rest} }}' for name, rest in tensors.items())
    return f"{kind} [\n" + ",\n".join(rows) + "\n]\n"


def _pair(data_type: str, dims: str = "16") -> str:
    each = f"data_type: {data_type} dims: [ {dims} ]"
    return _tensors("input", {"INPUT0": each, "INPUT1": each}) + _tensors("output", {"OUTPUT0": each, "OUTPUT1": each})


def _one(name: str, data_type: str, dims: str) -> str:
    each = f"data_type: {data_type} dims: [ {dims} ]"
    return _tensors("input", {"INPUT" + name: each}) + _tensors("output", {"OUTPUT" + name: each})


def _controls(*kinds: str, corrid: str = "TYPE_UINT64") -> str:
    rows = [
        f'{{ name: "{kind}" control [ {{ kind: CONTROL_SEQUENCE_{kind} '
        + (f"data_type: {corrid}" if kind == "CORRID" else "int32_false_true: [ 0, 1 ]")
        + " } ] }"
        for kind in kinds
    ]
    return "  control_input [\n    " + ",\n    ".join(rows) + "\n  ]\n"


def _oldest(corrid: str) -> str:
    return (
        "sequence_batching {\n  max_sequence_idle_microseconds: 10000000\n"
        "  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }\n"
        + _controls("START", "END", "READY", "CORRID", corrid=corrid)
        + "}\n"
    )


_INTS = "data_type: TYPE_INT32 dims: "
_REPEAT_CONFIG = (
    "max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n"
    + _tensors("input", {"IN": _INTS + "[ -1 ]", "DELAY": "data_type: TYPE_UINT32 dims: [ -1 ]",
                         "WAIT": "data_type: TYPE_UINT32 dims: [ 1 ]"})
    + _tensors("output", {"OUT": _INTS + "[ 1 ]", "IDX": "data_type: TYPE_UINT32 dims: [ 1 ]"})
)  # fmt: skip
_STRING_DYNA_CONFIG = "max_batch_size: 8\n" + _oldest("TYPE_STRING") + _one("", "TYPE_INT32", "1")
_DENSENET_CONFIG = "max_batch_size: 0\n" + _tensors(
    "input", {"data_0": "data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] "
              "reshape { shape: [ 1, 3, 224, 224 ] }"}
) + _tensors(
    "output", {"fc6_1": "data_type: TYPE_FP32 dims: [ 1000 ] reshape { shape: [ 1, 1000, 1, 1 ] } "
               'label_filename: "densenet_labels.txt"'}
)  # fmt: skip
_INCEPTION_CONFIG = "max_batch_size: 0\n" + _tensors(
    "input", {"input:0": "data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 299, 299, 3 ] "
              "reshape { shape: [ 1, 299, 299, 3 ] }"}
) + _tensors(
    "output", {"InceptionV3/Predictions/Softmax:0": "data_type: TYPE_FP32 dims: [ 1001 ] "
               'reshape { shape: [ 1, 1001 ] } label_filename: "inception_labels.txt"'}
)  # fmt: skip
_SCORES_CONFIG = (
    "max_batch_size: 8\n"
    + _tensors("input", {"INPUT": "data_type: TYPE_STRING dims: [ 1 ]"})
    + _tensors("output", {"OUTPUT": "data_type: TYPE_FP32 dims: [ 1001 ]"})
)
_ENSEMBLE_CONFIG = (
    'name: "preprocess_inception_ensemble"\nplatform: "ensemble"\nmax_batch_size: 8\n'
    + _tensors("input", {"INPUT": "data_type: TYPE_STRING dims: [ 1 ]"})
    + _tensors("output", {"OUTPUT": 'data_type: TYPE_FP32 dims: [ 1001 ] label_filename: "inception_labels.txt"'})
    + """ensemble_scheduling {
  step [
    {
      model_name: "scores_of_file" model_version: -1
      input_map { key: "INPUT" value: "INPUT" }
      output_map { key: "OUTPUT" value: "OUTPUT" }
    }
  ]
}
"""
)

_DYNA_CONFIG = "max_batch_size: 8\n" + _oldest("TYPE_UINT64") + _one("", "TYPE_INT32", "1")
_SEQUENCE_CONFIG = (
    "max_batch_size: 8\nsequence_batching {\n" + _controls("START", "READY") + "}\n" + _one("", "TYPE_INT32", "1")
)
_MODELS = {
    "simple": ("max_batch_size: 8\n" + _pair("TYPE_INT32"), _SUMS),
    "simple_int8": ("max_batch_size: 8\n" + _pair("TYPE_INT8"), _SUMS),
    "simple_string": ("max_batch_size: 8\n" + _pair("TYPE_STRING"), _TEXT_SUMS),
    "simple_identity": ("max_batch_size: 8\n" + _one("0", "TYPE_STRING", "-1"), _IDENTITY),
    "simple_sequence": (_SEQUENCE_CONFIG, _SEQUENCE),
    "simple_dyna_sequence": (_DYNA_CONFIG, _DYNA_SEQUENCE),
    "simple_string_dyna_sequence": (_STRING_DYNA_CONFIG, _STRING_DYNA_SEQUENCE),
    "custom_identity_int32": ("max_batch_size: 8\n" + _one("0", "TYPE_INT32", "-1"), _IDENTITY),
    "repeat_int32": (_REPEAT_CONFIG, _REPEAT),
    "densenet_onnx": (_DENSENET_CONFIG, _DENSENET),
    "inception_onnx": (_INCEPTION_CONFIG, _INCEPTION),
    "scores_of_file": (_SCORES_CONFIG, _SCORES_OF_FILE),
}

BACKENDS = {
    "simple_string_dyna_sequence": "dyna_sequence",
    "custom_identity_int32": "identity",
    "repeat_int32": "repeat",
}
"""Triton's example backends that its tests use for these models."""

_LABELS = {"densenet_onnx": ("densenet", 1000), "inception_onnx": ("inception", 1001)}


def write_equivalent(folder: Path, name: str, backend: str = "python") -> None:
    """Writes a model of ours into a repository: in Python, or the configuration for an example backend."""
    config, code = _MODELS[name]
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "{backend}"\n{config}')
    if backend == "python":
        (folder / name / "1" / "model.py").write_text(code)
    if name in _LABELS:
        _write_labels(folder / name, *_LABELS[name])


def write_ensemble(folder: Path) -> None:
    """``preprocess_inception_ensemble``, a stand-in too: it scores the bytes of the file."""
    write_equivalent(folder, "scores_of_file")
    (folder / "preprocess_inception_ensemble" / "1").mkdir(parents=True)
    (folder / "preprocess_inception_ensemble" / "config.pbtxt").write_text(_ENSEMBLE_CONFIG)
    _write_labels(folder / "preprocess_inception_ensemble", "inception", 1001)


def write_given(folder: Path, name: str, source: Path) -> None:
    """Copies a model of Triton's example repository."""
    shutil.copytree(source / name, folder / name)


def _write_labels(directory: Path, kind: str, count: int) -> None:
    (directory / f"{kind}_labels.txt").write_text("".join(f"CLASS {number}\n" for number in range(count)))
