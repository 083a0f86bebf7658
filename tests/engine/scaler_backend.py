"""A Python-based backend ``scaler``: its models multiply by their factor.json, and tell what they were told."""

from __future__ import annotations

from pathlib import Path

SHARED = """import json
import os

import numpy as np
import triton_python_backend_utils as pb
from scaling import scaled


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "factor.json")
        self.factor = 1.0
        if os.path.exists(path):
            with open(path) as file:
                self.factor = json.load(file)["factor"]
        self.told = {key: args[key] for key in args if key != "model_config"}
        self.told["runtime"] = json.loads(args["model_config"])["runtime"]
        self.told["directory"] = pb.get_model_dir()

    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb.get_input_tensor_by_name(request, "X").as_numpy()
            told = np.array([[json.dumps(self.told).encode()]] * len(given), dtype=np.object_)
            answers.append(pb.InferenceResponse([pb.Tensor("Y", scaled(given, self.factor)), pb.Tensor("TOLD", told)]))
        return answers
"""
HELPER = "def scaled(given, factor):\n    return given * given.dtype.type(factor)\n"


def write(directory: Path, model: str = SHARED) -> None:
    """Puts the two files of the backend into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.py").write_text(model)
    (directory / "scaling.py").write_text(HELPER)
