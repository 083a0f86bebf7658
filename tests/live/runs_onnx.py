"""Models for ONNX Runtime in the real Triton, whose binary here has no backend for it."""

from __future__ import annotations

from pathlib import Path

from workbench.config import ConfigDocument, parse_edit

# The binary has no backend for ONNX Runtime: its place is taken by the Python backend, with the same file.
RUNS_ONNX = """\
import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [each["name"] for each in config["input"]]
        self.outputs = [each["name"] for each in config["output"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options)

    def execute(self, requests):
        return [self.run(request) for request in requests]

    def run(self, request):
        feeds = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
        found = zip(self.outputs, self.session.run(self.outputs, feeds))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, array) for name, array in found])
"""


def on_the_python_backend(folder: Path) -> None:
    """Lets the Python backend run the model's very file."""
    document = ConfigDocument.parse((folder / "config.pbtxt").read_bytes())
    edited = document.edit([parse_edit('backend="python"'), parse_edit('default_model_filename="model.py"')])
    (folder / "config.pbtxt").write_bytes(edited.data)
    (folder / "1" / "model.py").write_text(RUNS_ONNX)
