"""A cascade for Triton's Python backend: a small model answers, a big one only where the small one is unsure.

bytes: int32 [rows, 2048] -> target_label: fp32 [rows, 214], escalated: bool [rows, 1].
The rows of all requests of a call go to the small model together, and those whose best probability is below the
threshold go on to the big model together, in one call. To make a cascade of two other models, change their names in the
configuration, the names of the tensors below, and what the small one sees (``_view``).

The threshold is the parameter of the configuration, or the request's own. Metric ``router_rows``: how many rows each of
the two answered.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

INPUT, OUTPUT = "bytes", "target_label"
SMALL_LENGTH = 512


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self.small = parameters["small"]["string_value"]
        self.big = parameters["big"]["string_value"]
        self.threshold = float(parameters.get("threshold", {}).get("string_value") or 0.8)
        self.family = pb_utils.MetricFamily(
            name="router_rows", description="Rows that each model answered", kind=pb_utils.MetricFamily.COUNTER
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.answered = {
            name: self.family.Metric(labels={**labels, "answered_by": name}) for name in (self.small, self.big)
        }
        pb_utils.Logger.log_info(
            f"{args['model_name']}: {self.big} answers where {self.small} is below {self.threshold}"
        )

    def execute(self, requests):
        # What is wrong with one request must not fail the others: an error takes the place of its response.
        errors = [None] * len(requests)
        inputs = [pb_utils.get_input_tensor_by_name(request, INPUT).as_numpy() for request in requests]
        owner = np.repeat(np.arange(len(requests)), [len(rows) for rows in inputs])
        rows = np.concatenate(inputs)
        thresholds = np.zeros(len(requests))
        for index, request in enumerate(requests):
            try:
                thresholds[index] = self._threshold(request)
            except ValueError as error:
                errors[index] = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)

        answers, error = self._ask(self.small, self._view(rows))
        if error is not None:
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        unsure = answers.max(axis=1) < thresholds[owner]
        if unsure.any():
            better, error = self._ask(self.big, rows[unsure])
            if error is None:
                answers[unsure] = better
            else:
                pb_utils.Logger.log_warn(f"{self.big} failed for {unsure.sum()} rows: {error.message()}")
                for index in np.unique(owner[unsure]):
                    errors[index] = errors[index] or error
        pb_utils.Logger.log_verbose(f"{self.big} is asked for {unsure.sum()} of {len(rows)} rows")

        responses = []
        for index in range(len(requests)):
            if errors[index] is not None:
                responses.append(pb_utils.InferenceResponse(error=errors[index]))
                continue
            mine = owner == index
            escalated = int(unsure[mine].sum())
            self.answered[self.big].increment(escalated)
            self.answered[self.small].increment(int(mine.sum()) - escalated)
            outputs = [
                pb_utils.Tensor(OUTPUT, answers[mine]),
                pb_utils.Tensor("escalated", unsure[mine].reshape(-1, 1)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses

    def _threshold(self, request):
        given = json.loads(request.parameters()).get("threshold")
        if given is None:
            return self.threshold
        try:
            return float(given)
        except ValueError:
            raise ValueError(f"the parameter 'threshold' must be a number, got '{given}'") from None

    @staticmethod
    def _view(rows):
        """What the small model sees: the two ends of what the big one sees."""
        half = SMALL_LENGTH // 2
        return np.concatenate([rows[:, :half], rows[:, -half:]], axis=1)

    @staticmethod
    def _ask(model, rows):
        """Answers and None, or None and an error."""
        request = pb_utils.InferenceRequest(
            model_name=model,
            inputs=[pb_utils.Tensor(INPUT, np.ascontiguousarray(rows))],
            requested_output_names=[OUTPUT],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = request.exec()
        if response.has_error():
            return None, response.error()
        # A copy: the memory of a response belongs to the server.
        return np.array(pb_utils.get_output_tensor_by_name(response, OUTPUT).as_numpy()), None
