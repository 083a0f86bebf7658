"""From inputs to the requests that a load sends, and the plan of which of them is sent when."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.profiling.class_requests import NO_PRIORITIES, Inputs, Models, Prepared
from workbench.profiling.input_files import is_table
from workbench.profiling.input_requests import RANDOM_INPUTS, requests_of
from workbench.profiling.load import Load
from workbench.profiling.plan import ClassPlan, Plan
from workbench.profiling.replayed_requests import of_trace
from workbench.profiling.target import Target
from workbench.profiling.trace import Trace
from workbench.protocol.tensors import InferenceRequest
from workbench.repository.files import sha256_of

__all__ = ["NO_PRIORITIES", "RANDOM_INPUTS", "Inputs", "Prepared", "identity", "prepare"]


def identity(inputs: Inputs) -> Any:
    """What tells inputs apart in the keys of points: hashes of files and tables, arrays as they are."""
    if isinstance(inputs, str | Path):
        with contextlib.suppress(OSError, ValueError):  # a text that is no path
            path = Path(inputs).expanduser()
            if path.is_dir():
                files = sorted(each for each in path.rglob("*") if each.is_file())
                return {str(each.relative_to(path)): sha256_of(each) for each in files}
            if path.is_file():
                return sha256_of(path)
        return str(inputs)
    if isinstance(inputs, Trace):
        return hashlib.sha256(inputs.to_bytes()).hexdigest()
    if is_table(inputs):
        return _of_table(inputs)
    if isinstance(inputs, Mapping):
        return {str(name): identity(value) for name, value in inputs.items()}
    return inputs


def _of_table(table: Any) -> str:
    """The hash of a DataFrame's names and cells, numbers to the last bit."""
    digest = hashlib.sha256()
    for at, name in enumerate(table.columns):
        column = table.iloc[:, at]
        digest.update(f"{name}\0{column.dtype}\0{len(column)}\0".encode())
        values = column.to_numpy()
        for cell in [values] if values.dtype.kind in "fiub" else values.tolist():
            numbers = isinstance(cell, np.ndarray) and cell.dtype.kind in "fiub"
            digest.update(f"{cell.dtype.str}{cell.shape}".encode() if numbers else repr(cell).encode())
            digest.update(cell.tobytes() if numbers else b"\0")
    return digest.hexdigest()


def prepare(target: Target, model: str, config: Mapping[str, Any], load: Load, inputs: Inputs = None) -> Prepared:
    """The requests for a load point.

    Args:
        target: the server.
        model: the model that is measured.
        config: its configuration.
        load: what to send; its classes may go to other models.
        inputs: what to send in them.

    Raises:
        ConfigError: the example inputs cannot be read, or shapes are not known.
        NotFound: there is no such file of inputs.
        InvalidRequest: the load's batch size does not fit the model, or inputs do not.
    """
    if load.trace:
        return of_trace(Models(target, model, config), load, inputs)
    models = Models(target, model, config)
    names = [name for name, _ in load.mix] or [""]
    by_class = bool(load.mix) and isinstance(inputs, Mapping) and bool(inputs) and set(inputs) <= set(names)
    requests: list[InferenceRequest] = []
    classes: list[ClassPlan] = []
    sources: list[str] = []
    notes: list[str] = []
    for name, part in zip(names, load.parts, strict=True):
        given = part.inputs or (inputs.get(name) if by_class else inputs)
        made = requests_of(models, part, given)
        classes.append(made.plan(name, len(requests), part, models))
        requests += made.expanded(part, models)
        sources.append(made.source)
        notes += [*made.notes, *models.without_priorities(part)]
    plan = Plan(tuple(classes))
    source = ", ".join(dict.fromkeys(sources))
    return Prepared(tuple(requests), classes[0].rows, source, tuple(dict.fromkeys(notes)), plan)
