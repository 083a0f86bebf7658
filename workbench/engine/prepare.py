"""From a model directory (or an override) to the configuration that a load uses: complete, normalise, validate.

Two steps, as in Triton: *polling* needs no framework and fails a load as a whole (``failed to poll from model
repository``); *completing* asks the backend about inputs and outputs and fails one version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.backends.base import Backend, ModelContext, ModelDescription
from workbench.backends.search import PYTHON_RUNTIME
from workbench.config import ConfigDocument, to_json
from workbench.config.normalization import DEFAULT_MAX_BATCH_SIZE, complete_backend, normalize
from workbench.config.validation import counts_below_one, validate, warnings
from workbench.engine.completion import complete_from_description
from workbench.engine.devices import Gpus
from workbench.engine.host import ModelHost
from workbench.engine.instances import check_instance_count
from workbench.engine.options import EngineOptions
from workbench.engine.warmup import check_warmup_size
from workbench.errors import InternalError, InvalidRequest
from workbench.repository.models import ModelSource, select_versions


@dataclass(frozen=True, slots=True)
class Polled:
    """A model as a poll found it: ``raw`` as written, ``config`` completed as far as the core can, its versions."""

    source: ModelSource
    document: ConfigDocument
    raw: Any
    config: Any
    versions: tuple[int, ...]
    missing: tuple[int, ...] = ()
    overridden: bool = False

    def warnings(self) -> Iterator[str]:
        """What Triton's log warns of when this is loaded."""
        for number in self.missing:
            name = self.source.name
            yield f"version {number} is specified for model '{name}', but the version directory is not present"
        yield from (problem.message for problem in warnings(self.config))
        yield from self.notes()

    def notes(self) -> Iterator[str]:
        """What is taken in another way than it is written, which Triton does without a word."""
        yield from (problem.message for problem in counts_below_one(self.document, self.config))


def poll_config(
    source: ModelSource,
    document: ConfigDocument,
    options: EngineOptions,
    gpus_of: Callable[[str], Gpus],
    *,
    overridden: bool = False,
) -> Polled:
    """Completes by file names, normalises and validates without inputs and outputs.

    ``gpus_of`` gives the GPUs that models of a backend may be placed on.

    Raises:
        WorkbenchError: the configuration is refused (section 10).
    """
    if source.config_bytes is None and not overridden and not options.auto_complete:
        raise InternalError(f"failed to open text file for read {source.config_path}: No such file or directory")
    raw = document.message
    # what file names tell is filled in even without auto-completion (GetNormalizedModelConfig)
    config = complete_backend(document.message, source.name, first_files(source))
    gpus = gpus_of(config.backend).numbers
    config = normalize(config, model_name=source.name, gpus=gpus)
    check_instance_count(config)
    check_warmup_size(config)
    checked = type(config)()
    checked.CopyFrom(config)
    if not is_ensemble(config):
        # instance groups are checked with each version, when its backend is known (backend_model.cc)
        checked.ClearField("instance_group")
    validate(normalize(checked, gpus=gpus), gpus=gpus, io=not options.auto_complete)
    if config.name != source.name:
        raise InvalidRequest(
            f"unexpected directory name '{source.name}' for model '{config.name}', directory name must equal model name"
        )
    policy = config.version_policy if config.HasField("version_policy") else None
    versions, missing = select_versions(tuple(source.versions), policy)
    return Polled(source, document, raw, config, versions, missing, overridden)


def is_ensemble(config: Any) -> bool:
    """Whether a configuration is an ensemble's."""
    return bool(config.platform == "ensemble")


def make_context(polled: Polled, version: int, config: Any, host: ModelHost, options: EngineOptions) -> ModelContext:
    """What a backend gets to open one version with this configuration."""
    return ModelContext(
        name=polled.source.name,
        version=version,
        config=config,
        config_json=config_json(config),
        model_dir=polled.source.directory,
        version_dir=polled.source.versions.get(version, polled.source.directory / str(version)),
        host=host,
        # the settings of a Python-based backend are those of the Python backend
        backend_config=backend_settings(
            options.backend_config, "python" if config.runtime == PYTHON_RUNTIME else config.backend
        ),
        python_execution=options.python_execution,
    )


def backend_settings(settings: Mapping[str, Mapping[str, str]], backend: str) -> dict[str, str]:
    """The settings of one backend: those for all (empty name), then its own."""
    return {**settings.get("", {}), **settings.get(backend, {})}


def complete_io(
    polled: Polled, version: int, backend: Backend, host: ModelHost, options: EngineOptions, gpus: Gpus
) -> Any:
    """The configuration of one version, inputs and outputs completed by the backend, normalised and validated.

    Blocks (a framework may read the model file).

    Raises:
        WorkbenchError: the file is missing or broken, or the completed configuration is refused.
    """
    config = type(polled.config)()
    config.CopyFrom(polled.config)
    config.runtime = getattr(backend, "runtime", "") or config.runtime
    if options.auto_complete:
        context = make_context(polled, version, config, host, options)
        completed = backend.auto_complete(context)
        if completed is not None:
            config = completed
        elif not (config.input or config.batch_input) or not config.output:
            described: ModelDescription | None = backend.describe(context)
            if described is not None:
                default = int(context.backend_config.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE))
                complete_from_description(config, described, default)
    config = _settle(config, polled.source.name, gpus)
    check_labels(config, polled.source.directory)
    return config


def missing_labels(config: Any, model_dir: Path) -> Iterator[tuple[int, str]]:
    """The outputs whose label file is not in the model directory: their indexes, and Triton's text."""
    for index, output in enumerate(config.output):
        path = model_dir / output.label_filename
        if output.label_filename and not path.is_file():
            yield index, f"failed to open text file for read {path}: No such file or directory"


def check_labels(config: Any, model_dir: Path) -> None:
    """Refuses a configuration whose label files cannot be read, as Triton does when it loads the model.

    Raises:
        InternalError: with Triton's text.
    """
    for index, text in missing_labels(config, model_dir):
        raise InternalError(text, where=f"output[{index}].label_filename")


def overlay(before: Any, before_raw: Any, after_raw: Any, gpus: Gpus) -> Any:
    """A normalised configuration with the top-level fields replaced in which two raw ones differ.

    For edits in place: what the backend completed stays, nothing is asked again.

    Raises:
        WorkbenchError: the result is refused.
    """
    config = type(before)()
    config.CopyFrom(before)
    for field in before_raw.DESCRIPTOR.fields:
        if _field(before_raw, field) != _field(after_raw, field):
            config.ClearField(field.name)
            part = type(before)()
            part.CopyFrom(after_raw)
            for other in part.DESCRIPTOR.fields:
                if other.name != field.name:
                    part.ClearField(other.name)
            config.MergeFrom(part)
    _redo_batching(config, after_raw)
    return _settle(config, config.name, gpus)


def _redo_batching(config: Any, raw: Any) -> None:
    """The batcher anew from what is written: normalisation derives its preferred size from max_batch_size."""
    if raw.HasField("dynamic_batching"):
        config.dynamic_batching.CopyFrom(raw.dynamic_batching)
        return
    completed = config.HasField("dynamic_batching")
    config.ClearField("dynamic_batching")
    lacks_io = not (raw.input or raw.batch_input) or not raw.output
    if (completed or (lacks_io and config.backend == "onnxruntime")) and config.max_batch_size > 1:
        config.dynamic_batching.SetInParent()


def changed_fields(before: Any, after: Any) -> list[str]:
    """The top-level fields in which two messages differ."""
    return [field.name for field in before.DESCRIPTOR.fields if _field(before, field) != _field(after, field)]


def _field(message: Any, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    return list(value) if hasattr(value, "extend") else dict(value) if hasattr(value, "keys") else value


def config_json(config: Any) -> str:
    """A configuration as Triton's JSON text."""
    return json.dumps(to_json(config), ensure_ascii=False, separators=(",", ":"))


def _settle(config: Any, name: str, gpus: Gpus) -> Any:
    """Normalises and validates."""
    config = normalize(config, model_name=name, gpus=gpus.numbers)
    validate(config, gpus=gpus.numbers, min_compute_capability=gpus.minimum)
    return config


def first_files(source: ModelSource) -> tuple[str, ...]:
    """The names in the first version directory, by which Triton tells the backend."""
    if not source.versions:
        return ()
    try:
        return tuple(sorted(path.name for path in source.versions[min(source.versions)].iterdir()))
    except OSError:
        return ()


def read_document(source: ModelSource) -> ConfigDocument:
    """The document of a model directory; an empty one without a config.pbtxt.

    Raises:
        ConfigError: it cannot be parsed.
    """
    return ConfigDocument.parse(source.config_bytes or b"", str(source.config_path))
