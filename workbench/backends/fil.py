"""Triton's FIL backend (forests): XGBoost, LightGBM and treelite files; scikit-learn's pickles where that is allowed.

On a CPU the scores come from treelite's GTIL, which is what Triton's backend runs there: what is tuned here holds
there. The models' own libraries are faster at batches (XGBoost from eight rows on; LightGBM at all sizes), with answers
equal to a unit in the last place; ``WORKBENCH_FIL_ENGINE: native`` takes them, and so does Triton's own
``use_experimental_optimizations`` where they are installed. All of them release the GIL, so instances are threads.

On a GPU nvforest runs the trees, in a process of its own: it holds the GIL, and its requirements do not go with those
of the rest (EXECUTION_ENV_PATH names an environment that has it).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import Instance, InstanceSpec, LoadedModel, ModelContext, TensorSpec
from workbench.backends.batches import TensorInstance
from workbench.backends.fil_config import (
    INPUT,
    OUTPUT,
    PICKLE,
    FilSettings,
    FilShapes,
    check_shapes,
    model_path,
    read_settings,
    read_shapes,
    removed_parameters,
)
from workbench.backends.fil_forest import Forest, load_forest
from workbench.backends.fil_process.fil_scores import answer
from workbench.backends.python import ENVIRONMENT_PARAMETER, PythonModel
from workbench.errors import BackendError, InvalidRequest

_GPU_MODEL = Path(__file__).parent / "fil_process" / "model.py"


def _has_nvforest() -> bool:
    return importlib.util.find_spec("nvforest") is not None


class FilBackend:
    """Triton's ``fil``."""

    name = "fil"

    def __init__(self) -> None:
        import treelite  # noqa: F401  # the backend is not there without it

    @property
    def uses_gpus(self) -> bool:
        """Whether nvforest is installed, so that KIND_AUTO means a GPU where there is one."""
        return _has_nvforest()

    def describe(self, context: ModelContext) -> None:
        """None: Triton's backend completes nothing, inputs and outputs are to be configured."""
        return

    def auto_complete(self, context: ModelContext) -> None:
        """None, as ``describe``."""
        return

    def open(self, context: ModelContext) -> LoadedModel:
        """Reads the model and compares the configuration with it.

        Raises:
            WorkbenchError: a parameter is wrong, the file is missing or broken, the two do not fit.
        """
        return _FilModel(context)


class _FilModel:
    reads_max_batch_size = False
    any_thread = True

    def __init__(self, context: ModelContext) -> None:
        config = context.config
        settings = read_settings(config, context.backend_config)
        shapes = read_shapes(config)
        path = model_path(context, settings)

        def warn(text: str) -> None:
            context.host.log("warning", text, model=context.name)

        for text in removed_parameters(config):
            warn(text)
        self._context, self._settings, self._shapes = context, settings, shapes
        self._forest = load_forest(path, settings, warn)
        check_shapes(config, settings, shapes, self._forest.features, self._forest.classes)
        self.details = {"engine": self._forest.engine}
        self._on_gpus: PythonModel | None = None
        if any(group.kind == group.KIND_GPU for group in config.instance_group):
            self._on_gpus = _gpu_model(context, settings, shapes, path, self._forest.classes)
            self.traffic = self._on_gpus.traffic

    def create_instance(self, spec: InstanceSpec) -> Instance:
        if spec.kind == "KIND_GPU":
            if self._on_gpus is None:
                raise InvalidRequest(f"instance {spec.name} has kind KIND_GPU, the model was opened for a CPU")
            return self._on_gpus.create_instance(spec)
        return _FilInstance(self._context, self._forest, self._settings, self._shapes)

    def close(self) -> None:
        if self._on_gpus is not None:
            self._on_gpus.close()


class _FilInstance(TensorInstance):
    def __init__(self, context: ModelContext, forest: Forest, settings: FilSettings, shapes: FilShapes) -> None:
        dims = tuple(context.config.input[0].dims)
        inputs = [TensorSpec(INPUT, "FP32", (-1, *dims) if context.config.max_batch_size > 0 else dims)]
        super().__init__(context, inputs, [TensorSpec(OUTPUT, "FP32", (-1, *shapes.tail))])
        self._forest: Forest | None = forest
        self._features = shapes.features
        self._rule: dict[str, Any] = _rule(settings, shapes)

    def prepare(self, feeds: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """The rows, in the precision of the model's thresholds."""
        assert self._forest is not None
        return self._forest.widen(feeds[INPUT].reshape(-1, self._features))

    def run(self, prepared: NDArray[Any]) -> NDArray[Any]:
        """The forest's scores."""
        assert self._forest is not None
        try:
            return self._forest.scores(prepared)
        except Exception as error:
            raise BackendError(f"{self._forest.engine}: {error}") from error

    def take(self, raw: NDArray[Any]) -> Sequence[NDArray[np.float32]]:
        """What is answered of the scores."""
        return [answer(raw, **self._rule)]

    def free(self) -> None:
        """Lets the model go."""
        self._forest = None


def _rule(settings: FilSettings, shapes: FilShapes) -> dict[str, Any]:
    """The arguments of ``fil_scores.answer``."""
    return {
        "values": shapes.values,
        "tail": shapes.tail,
        "classifier": settings.classifier,
        "predict_proba": settings.predict_proba,
        "threshold": settings.threshold,
    }


def _gpu_model(
    context: ModelContext, settings: FilSettings, shapes: FilShapes, path: Path, classes: int
) -> PythonModel:
    """The model for nvforest's processes.

    Raises:
        InvalidRequest: nvforest is not there, or cannot read the file.
    """
    if settings.model_type == PICKLE:
        raise InvalidRequest(
            f"model '{context.name}': a pickle is served on a CPU only", hint="make a treelite_checkpoint of it"
        )
    if ENVIRONMENT_PARAMETER not in context.config.parameters and not _has_nvforest():
        raise InvalidRequest(
            f"model '{context.name}' has instances of KIND_GPU, but nvforest, which runs trees there, is not installed",
            hint="set kind: KIND_CPU; or make an environment with nvforest-cu12 (it does not go with this one's "
            f"packages) and name it in the parameter {ENVIRONMENT_PARAMETER}",
        )
    about = json.loads(context.config_json)
    about["workbench_fil"] = {
        "path": str(path),
        "classes": classes,
        "settings": asdict(settings),
        "rule": _rule(settings, shapes),
    }
    changed = replace(context, config_json=json.dumps(about), python_execution="process")
    return PythonModel(changed, _GPU_MODEL, _GPU_MODEL)
