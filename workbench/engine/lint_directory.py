"""Lint of what only a model directory tells: versions, the files that a configuration names, and whether they fit."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.backends.fit import check_fit
from workbench.backends.pytorch_archive import archive_kind
from workbench.config import Edit, Fix
from workbench.config.spelling import closest
from workbench.engine.implicit_states import ImplicitStates
from workbench.engine.instances import check_instance_count
from workbench.engine.lint_models import LintedModel, completes_itself, poll_problem
from workbench.engine.prepare import is_ensemble, missing_labels
from workbench.engine.validation import config_type
from workbench.engine.warmup import check_warmup_size, read_sample_file
from workbench.errors import WorkbenchError
from workbench.protocol import datatypes
from workbench.repository.files import CACHES, EXAMPLE_INPUTS
from workbench.repository.models import NOT_VERSIONS
from workbench.scheduling.sequence_settings import sequence_settings_from_config


def lint_directory(model: LintedModel) -> None:
    """Adds the findings of one model directory; the configuration alone is linted already."""
    _version_directories(model)
    _configuration(model)
    if model.config is None:
        return
    _versions(model)
    if is_ensemble(model.config):
        return
    if poll_problem(model) is None:  # else it is not sure which file is meant
        for number in model.versions:
            _model_file(model, number)
        _fit(model)
    _labels(model)
    _warmup_files(model)
    _sequence_states(model)
    _sizes(model)


# versions


def _version_directories(model: LintedModel) -> None:
    for text in model.source.warnings:
        name = re.search("'([^']*)'", text)
        model.tell(model.source.directory / (name.group(1) if name else ""), "version-directory", text)
    skipped = {*NOT_VERSIONS, *EXAMPLE_INPUTS, *CACHES}
    for path in sorted(model.source.directory.iterdir()):
        if not path.is_dir() or path.name in skipped or path.name.startswith("."):
            continue
        if not re.match(r"\s*[+-]?\d", path.name):
            text = f"ignore version directory '{path.name}' which fails to convert to integral number"
            model.tell(path, "version-directory", text)


def _versions(model: LintedModel) -> None:
    for number in model.missing:
        text = f"version {number} is specified for model '{model.name}', but the version directory is not present"
        model.say("missing-version", "version_policy", text)
    if model.versions:
        return
    text = f"at least one version must be available under the version policy of model '{model.name}'"
    if model.source.versions:
        there = ", ".join(map(str, sorted(model.source.versions)))
        model.say("no-version", "version_policy", f"{text} (there are {there})")
    else:
        what = "it stays empty" if is_ensemble(model.config) else "the model's files go into it"
        model.say("no-version", "version_policy", f"{text} (make the directory {model.name}/1; {what})")


# the configuration


def _configuration(model: LintedModel) -> None:
    if model.document is None and model.data is not None:
        return
    if model.config is None:
        if model.document is None or not model.document.message.HasField("ensemble_scheduling"):
            where = "; if it is no model, move it out of the repository" if model.data is None else ""
            text = f"{model.unreadable} (no backend is named, and no version holds a model file{where})"
            model.say("no-backend", "backend", text)
    elif model.data is None and not model.context.auto_complete:
        path = model.source.config_path
        text = f"failed to open text file for read {path}: No such file or directory"
        model.tell(model.source.directory, "no-config", text, "error")
    elif model.data is None:
        _without_configuration(model)


def _without_configuration(model: LintedModel) -> None:
    backend, directory = model.backend, model.source.directory
    if backend == "python" and not completes_itself(model):
        text = "no config.pbtxt, and model.py has no auto_complete_config: the model has no inputs and outputs"
        model.tell(directory, "no-config", text, "error")
    elif backend == "pytorch" and not _is_exported(model):
        text = "no config.pbtxt, and a PyTorch file does not tell its inputs and outputs: describe them in one"
        model.tell(directory, "no-config", text, "error")
    else:
        model.tell(directory, "no-config", f"no config.pbtxt: backend {backend} completes it when the model is loaded")


def _is_exported(model: LintedModel) -> bool:
    """Whether it is a program of torch.export, the only PyTorch file that tells its inputs and outputs."""
    try:
        files = [folder / model.config.default_model_filename for folder in model.source.versions.values()]
        return bool(files) and all(archive_kind(file) == "export" for file in files)
    except WorkbenchError:
        return False


# files


_FILES = ("onnxruntime", "python", "tensorrt", "pytorch", "openvino", "tensorflow")
"""The backends whose file is known: one in each version directory."""


def _model_file(model: LintedModel, number: int) -> None:
    config, folder = model.config, model.source.versions[number]
    if model.backend not in _FILES or config.runtime or not config.default_model_filename:
        return
    wanted = [config.default_model_filename, *config.cc_model_filenames.values()]
    if any((folder / name).exists() for name in wanted):
        return
    there = _entries(folder)
    suffix = Path(wanted[0]).suffix
    same_kind = [name for name in there if suffix and name.endswith(suffix)]
    better = closest(wanted[0], there) or (same_kind[0] if len(same_kind) == 1 else None)
    shown = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "") or "nothing"
    text = f"{_not_found(model, folder / wanted[0])} (version {number} holds {shown})"
    fix = None
    if better is not None and not (folder / better).is_dir():
        text += f". Did you mean '{better}'?"
        fix = Fix(
            f'Set default_model_filename to "{better}"', (Edit("default_model_filename", "set", better),)
        )  # fmt: skip
    model.say("model-file", "default_model_filename", text, fix if model.document is not None else None)


def _not_found(model: LintedModel, path: Path) -> str:
    """What the backend says."""
    if model.backend == "python":
        return f"Python model file not found in '{path}'"
    return f"unable to find '{path}' for model instance '{model.name}'"


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _fit(model: LintedModel) -> None:
    config = model.config
    if not config.input and not config.output:
        return
    for number in sorted(model.graphs, reverse=True):
        graph = model.graphs[number]
        try:
            check_fit(config, graph.inputs, graph.overridable, graph.outputs, inferred=False, shapeless=graph.shapeless)
        except WorkbenchError as error:
            text, fix = error.message, None
            named = re.search("(input|output|tensor) '([^']*)'", text)
            path = "" if named is None else _tensor_path(model, named.group(2))
            unexpected = re.match("unexpected inference (input|output) '([^']*)', allowed", text)
            if unexpected is not None:
                specs = (*graph.inputs, *graph.overridable) if unexpected.group(1) == "input" else graph.outputs
                better = closest(unexpected.group(2), [spec.name for spec in specs], cutoff=0.6)
                if better is not None:
                    text += f". Did you mean '{better}'?"
                    fix = Fix(f'Set name to "{better}"', (Edit(f"{path}.name", "set", better),))
            model.say("model-fit", path or "input", text, fix)
            return


def _tensor_path(model: LintedModel, name: str) -> str:
    for kind in ("input", "output"):
        for index, tensor in enumerate(getattr(model.config, kind)):
            if tensor.name == name:
                return f"{kind}[{index}]"
    return ""


def _labels(model: LintedModel) -> None:
    for index, text in missing_labels(model.config, model.source.directory):
        name = model.config.output[index].label_filename
        names = [each.name for each in sorted(model.source.directory.iterdir()) if each.is_file()]
        better = closest(name, [each for each in names if each != "config.pbtxt"], cutoff=0.6)
        where = f"output[{index}].label_filename"
        fix = None
        if better is not None:
            text += f". Did you mean '{better}'?"
            fix = Fix(f'Set label_filename to "{better}"', (Edit(where, "set", better),))
        model.say("label-file", where, text, fix)


def _warmup_files(model: LintedModel) -> None:
    for index, sample in enumerate(model.config.model_warmup):
        for key in sorted(sample.inputs):
            item = sample.inputs[key]
            row = datatypes.BY_CONFIG.get(config_type(item))
            if item.WhichOneof("input_data_type") != "input_data_file" or row is None or min(item.dims, default=1) < 0:
                continue
            try:
                read_sample_file(model.config, key, item, model.source.directory, row)
            except WorkbenchError as error:
                text = re.sub(r"^\[request id: [^]]*\] ", "", error.message)
                model.say("warmup-file", f'model_warmup[{index}].inputs["{key}"].input_data_file', text)


def _sequence_states(model: LintedModel) -> None:
    if not model.config.HasField("sequence_batching"):
        return
    try:
        ImplicitStates(sequence_settings_from_config(model.config), model.source.directory)
    except WorkbenchError as error:
        names = [state.input_name for state in model.config.sequence_batching.state]
        index = next((i for i, name in enumerate(names) if f"'{name}'" in error.message), 0)
        model.say("sequence-state", f"sequence_batching.state[{index}]", error.message)
    except (KeyError, ValueError):
        return  # a type or a size that other rules report


def _sizes(model: LintedModel) -> None:
    for check, rule in ((check_warmup_size, "warmup-batch"), (check_instance_count, "instance-count")):
        try:
            check(model.config)
        except WorkbenchError as error:
            model.say(rule, error.where, error.message, None, "error")
