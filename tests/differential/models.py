"""Python models of the differential suite, and how they come into a repository."""

from __future__ import annotations

from pathlib import Path

GATED = '''import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """OUT is IN; writes down which requests came together.

    Request parameters: hold waits for the file MODEL.ID.open beside the models; wait sleeps for so many
    milliseconds; do is error, raise or nothing.
    """

    def initialize(self, args):
        self.name = args["model_name"]
        self.root = os.path.dirname(args["model_repository"].rstrip("/"))

    def execute(self, requests):
        with open(os.path.join(self.root, self.name + ".batches"), "a") as file:
            file.write(json.dumps([request.request_id() for request in requests]) + "\\n")
        asked = [json.loads(request.parameters() or "{}") for request in requests]
        for request, parameters in zip(requests, asked):
            path = os.path.join(self.root, self.name + "." + request.request_id() + ".open")
            for _ in range(60000 if parameters.get("hold") else 0):
                if os.path.exists(path):
                    break
                time.sleep(0.001)
            time.sleep(parameters.get("wait", 0) / 1000)
        if any(parameters.get("do") == "raise" for parameters in asked):
            raise RuntimeError("told to")
        answers = []
        for request, parameters in zip(requests, asked):
            given = pb.get_input_tensor_by_name(request, "IN")
            if parameters.get("do") == "error":
                answers.append(pb.InferenceResponse(error=pb.TritonError("told to")))
            elif parameters.get("do") == "nothing":
                answers.append(pb.InferenceResponse([]))
            else:
                answers.append(pb.InferenceResponse([pb.Tensor("OUT", given.as_numpy())]))
        return answers
'''

IN = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 }\n'
OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: 2 }\n'


def put(
    root: Path,
    name: str,
    extra: str = "",
    *,
    size: int = 8,
    count: int = 1,
    inputs: str = IN,
    outputs: str = OUT,
    source: str | None = GATED,
    versions: tuple[str, ...] = ("1",),
    platform: str = 'backend: "python"',
) -> None:
    """Writes a model: ``size`` is max_batch_size, ``count`` the number of instances (0: none is said)."""
    group = f"instance_group {{ kind: KIND_CPU count: {count} }}\n" if count else ""
    for version in versions:
        (root / name / version).mkdir(parents=True)
        if source is not None:
            (root / name / version / "model.py").write_text(source)
            # in its place, so that the first import does not change the directory: Triton's next load would be anew
            (root / name / version / "__pycache__").touch()
    (root / name / "config.pbtxt").write_text(f"{platform}\nmax_batch_size: {size}\n{inputs}{outputs}{group}{extra}\n")


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    """A step of an ensemble: model's name of a tensor to the ensemble's."""
    maps = "".join(f'input_map {{ key: "{key}" value: "{value}" }} ' for key, value in inputs.items())
    maps += "".join(f'output_map {{ key: "{key}" value: "{value}" }} ' for key, value in outputs.items())
    return f'step {{ model_name: "{model}" model_version: {version} {maps}}}\n'


def put_ensemble(
    root: Path, name: str, *steps: str, extra: str = "", size: int = 8, inputs: str = IN, outputs: str = OUT
) -> None:
    """Writes an ensemble of steps (see ``step``)."""
    put(
        root, name, f"ensemble_scheduling {{ {''.join(steps)} }}\n{extra}", size=size, count=0, inputs=inputs,
        outputs=outputs, source=None, platform='platform: "ensemble"',
    )  # fmt: skip
