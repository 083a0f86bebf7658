"""Class labels of a model's outputs, from the ``label_filename`` in its directory or, for ensembles, in a step's."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.protocol.classification import classify
from workbench.protocol.tensors import Tensor

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine


def classified(engine: InferenceEngine, config: Any, tensor: Tensor, classes: int) -> Tensor:
    """An output as its best ``classes`` classes, with the model's labels; see ``workbench.protocol.classification``."""
    return classify(tensor, classes, batched=config.max_batch_size > 0, labels=labels_of(engine, config, tensor.name))


def labels_of(engine: InferenceEngine, config: Any, output: str) -> tuple[str, ...]:
    """The labels of an output by element index; empty where the configuration names no file or it cannot be read.

    Labels that an ensemble's output lacks are those of the step that makes it (5.11).
    """
    name = next((item.label_filename for item in config.output if item.name == output), "")
    if not name:
        return _of_the_step(engine, config, output)
    for repository in engine.options.repositories:
        directory = (Path(repository) / config.name).resolve()
        path = (directory / name).resolve()
        if path.is_relative_to(directory) and path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    return ()


def _of_the_step(engine: InferenceEngine, config: Any, output: str) -> tuple[str, ...]:
    for step in config.ensemble_scheduling.step:
        for tensor, target in step.output_map.items():
            if target == output:
                try:
                    return labels_of(engine, engine.model_config(step.model_name, step.model_version), tensor)
                except WorkbenchError:  # it has been unloaded meanwhile
                    return ()
    return ()


@lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in path.read_text("utf-8", "replace").splitlines())
    except OSError:
        return ()
