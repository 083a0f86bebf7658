"""Scores to numbers between 0 and 1 and to an order, for Triton's Python backend.

score: fp32 [n, 1] -> scores: fp32 [n], sigmoid(steepness * (score - middle)); order: int64 [n], best first.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Scores as numbers between 0 and 1, and as an order."""

    def initialize(self, args):
        """Reads the parameters."""
        parameters = json.loads(args["model_config"]).get("parameters", {})

        def number(name, default):
            return float(parameters.get(name, {}).get("string_value") or default)

        self.middle, self.steepness = number("middle", 0.5), number("steepness", 10)

    def execute(self, requests):
        """One answer a request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        score = pb_utils.get_input_tensor_by_name(request, "score").as_numpy().reshape(-1)
        scores = 1 / (1 + np.exp(-self.steepness * (score - self.middle)))
        order = np.argsort(-score, kind="stable")
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("scores", scores.astype(np.float32)),
                pb_utils.Tensor("order", order.astype(np.int64)),
            ]
        )
