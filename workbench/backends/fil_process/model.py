"""A forest on a GPU, by nvforest: a Python model that the FIL backend runs in a process of its own."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

NAMES = {"xgboost": "xgboost_legacy"}
"""``model_type`` of Triton -> nvforest's, where it is another one."""


class TritonPythonModel:
    """One instance on one device."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the model onto the instance's device."""
        about = json.loads(args["model_config"])["workbench_fil"]
        settings, self.rule, self.classes = about["settings"], about["rule"], about["classes"]
        self.rule["tail"] = tuple(self.rule["tail"])
        self.utils: Any = importlib.import_module("triton_python_backend_utils")
        self.answer: Any = importlib.import_module("fil_scores").answer  # beside this file
        nvforest: Any = importlib.import_module("nvforest")
        kind = settings["model_type"]
        self.forest = nvforest.load_model(
            about["path"],
            model_type=NAMES.get(kind, kind),
            device="gpu" if args["model_instance_kind"] == "GPU" else "cpu",
            device_id=int(args["model_instance_device_id"]),
            layout=settings["layout"],
            default_chunk_size=settings["chunk_size"],
            precision="single",
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Runs the batch as one call."""
        rows = [self.utils.get_input_tensor_by_name(request, "input__0").as_numpy() for request in requests]
        table = np.concatenate(rows)
        if len(table):
            scores = np.asarray(self.scores(table.reshape(len(table), -1)))
            scores = scores.reshape(len(scores), -1)
        else:  # a request without rows has an answer without rows
            scores = np.empty((0, self.classes))
        found = self.answer(scores, **self.rule)
        ends = np.cumsum([len(each) for each in rows])
        return [
            self.utils.InferenceResponse([self.utils.Tensor("output__0", found[end - len(each) : end])])
            for end, each in zip(ends, rows, strict=True)
        ]

    def scores(self, table: Any) -> Any:
        """Probabilities of a classifier (one column for a binary one), else predictions, as numpy has them."""
        if not hasattr(self.forest, "predict_proba"):
            found = self.forest.predict(table)
        else:
            found = self.forest.predict_proba(table)
            if self.classes == 1 and found.ndim == 2 and found.shape[1] == 2:
                found = found[:, 1:]
        return found.get() if hasattr(found, "get") else found  # from cupy
