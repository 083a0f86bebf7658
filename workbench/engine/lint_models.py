"""A model directory as the linter sees it: read once, completed as far as files tell, never loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.backends.base import ModelDescription
from workbench.backends.onnx_file import OnnxGraph, read_onnx
from workbench.backends.python import may_auto_complete
from workbench.config import ConfigDocument, Finding, Fix, LintContext, lint_config
from workbench.config.findings import Report
from workbench.config.lint_checker import Checker
from workbench.config.normalization import complete_backend, normalize
from workbench.config.rule import Severity
from workbench.config.rules import RULES
from workbench.config.validation import validate
from workbench.engine.completion import complete_from_description
from workbench.engine.prepare import first_files
from workbench.errors import ConfigError, WorkbenchError
from workbench.repository.models import ModelSource, read_model, select_versions


@dataclass(slots=True)
class LintedModel:
    """One model directory.

    Attributes:
        source: the directory as it was read.
        data: the configuration's bytes (with the fixes made so far); None where there is no config.pbtxt.
        document: None where it does not parse or is absent.
        config: completed and normalised; None where the backend cannot be told.
        unreadable: why there is no ``config``, in Triton's words.
        graphs: what the ONNX files of the served versions say of themselves.
        versions: the versions that would be served.
        missing: those that the version policy names and that are not there.
        others: findings about other files and directories of the model.
    """

    source: ModelSource
    context: LintContext
    data: bytes | None
    document: ConfigDocument | None = None
    config: Any = None
    unreadable: str = ""
    graphs: dict[int, OnnxGraph] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    report: Report = field(default_factory=lambda: Report(b""))
    others: dict[Path, list[Finding]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model's name: that of its directory."""
        return self.source.name

    @property
    def backend(self) -> str:
        """The backend, as far as it can be told."""
        return "" if self.config is None else str(self.config.backend)

    @property
    def config_path(self) -> Path:
        """Where the configuration is, or its directory where there is none."""
        return self.source.directory if self.data is None else self.source.config_path

    @property
    def errors(self) -> list[Finding]:
        """The errors found in the configuration so far, in the order of the file."""
        return [finding for finding in self.report.sorted() if finding.severity == "error"]

    def say(self, rule: str, path: str, text: str, fix: Fix | None = None, severity: Severity | None = None) -> None:
        """A finding at a path of the configuration; at its directory where there is none."""
        if self.document is None:
            self.tell(self.config_path, rule, text, severity)
        else:
            Checker(self.document, self.context, self.report).say(rule, path, text, fix, severity)

    def tell(self, path: Path, rule: str, text: str, severity: Severity | None = None) -> None:
        """A finding about another file or directory of the model."""
        found = Finding(rule, severity or RULES[rule].severity, 1, 1, text)
        self.others.setdefault(path, []).append(found)

    def findings(self) -> Iterator[tuple[Path, list[Finding]]]:
        """What was found, by file; the configuration first, also where nothing is wrong with it."""
        if self.data is not None:
            here = list(self.others.get(self.config_path, ()))
            yield self.config_path, here + self.report.sorted()
        for path in sorted(self.others):
            if self.data is None or path != self.config_path:
                yield path, self.others[path]


def read_linted(
    directory: Path, context: LintContext, overrides: dict[Path, bytes], config_name: str = ""
) -> LintedModel:
    """Reads a model directory and lints its configuration alone.

    Args:
        directory: of the model.
        context: what it is meant for; the directory's name and files are added.
        overrides: contents that stand for those of files (fixes that are not written yet).
        config_name: picks ``configs/NAME.pbtxt`` where there is one.

    Raises:
        ConfigError: the directory or its configuration cannot be read.
    """

    try:
        source = read_model(directory, config_name)
    except WorkbenchError as error:
        raise ConfigError(f"cannot read {directory}: {error.hint or error.message}", where=str(directory)) from error
    files = first_files(source)
    known = (*files, *_libraries(source, files))
    context = replace(context, directory_name=source.name, files=known if source.versions else None)
    data = overrides.get(source.config_path, source.config_bytes)
    model = LintedModel(source, context, data)
    if data is not None:
        model.report = Report(data)
        try:
            model.document = ConfigDocument.parse(data, str(source.config_path))
        except ConfigError as error:
            model.unreadable = error.message
        if not completes_itself(model):
            context = replace(context, auto_complete=False)
        for finding in lint_config(model.document or data, context=context, path=str(source.config_path)):
            model.report.add_at(finding)
    if data is None or model.document is not None:
        _complete(model)
    return model


def completes_itself(model: LintedModel) -> bool:
    """Whether inputs and outputs may be completed at load: not so for Python code without ``auto_complete_config``."""
    raw = None if model.document is None else model.document.message
    name = "model.py" if raw is None else raw.default_model_filename or "model.py"
    python = raw is not None and (raw.backend == "python" or not (raw.backend or raw.platform))
    if not model.source.versions or not (python or raw is None):
        return True
    path = model.source.versions[max(model.source.versions)] / name
    return not path.is_file() or may_auto_complete(path, model.source.directory)


def _libraries(source: ModelSource, files: Collection[str]) -> list[str]:
    """Backends' libraries that the model brings with it, in its own directory."""
    return [path.name for path in source.directory.glob("libtriton_*.so") if path.name not in files]


def _complete(model: LintedModel) -> None:
    """Fills in the rest: versions, what file names tell, and what ONNX files say of themselves."""
    raw = ConfigDocument.parse(b"").message if model.document is None else model.document.message
    gpus = model.context.gpus or ()
    policy = raw.version_policy if raw.HasField("version_policy") else None
    model.versions, model.missing = select_versions(tuple(model.source.versions), policy)
    try:
        config = complete_backend(raw, model.name, first_files(model.source))
    except ConfigError as error:
        model.unreadable = error.message
        return
    model.config = normalize(config, model_name=model.name, gpus=gpus)
    if model.backend == "onnxruntime":
        _read_graphs(model)
    if model.graphs and model.context.auto_complete:
        _complete_io(model)


def _read_graphs(model: LintedModel) -> None:
    for number in model.versions:
        path = model.source.versions[number] / (model.config.default_model_filename or "model.onnx")
        path = path / "model.onnx" if path.is_dir() else path
        if not path.is_file():
            continue
        try:
            model.graphs[number] = read_onnx(path)
        except (WorkbenchError, OSError) as error:
            model.tell(path, "model-fit", getattr(error, "message", str(error)))


def _complete_io(model: LintedModel) -> None:
    graph = model.graphs[max(model.graphs)]
    if graph.shapeless and not model.config.output:  # only ONNX Runtime can tell them
        return
    config = type(model.config)()
    config.CopyFrom(model.config)
    try:
        complete_from_description(config, ModelDescription(graph.inputs, graph.outputs, graph.batching))
    except WorkbenchError as error:
        model.say("model-fit", "max_batch_size", error.message)
        return
    model.config = normalize(config, model_name=model.name, gpus=model.context.gpus or ())


def poll_problem(model: LintedModel) -> str | None:
    """Why Triton would not even take the model into its repository (a poll fails), or None."""
    if model.config is None:
        return model.unreadable
    without_groups = type(model.config)()
    without_groups.CopyFrom(model.config)
    without_groups.ClearField("instance_group")
    try:
        validate(normalize(without_groups), io=False)
    except ConfigError as error:
        return error.message
    if model.config.name != model.name:
        return f"unexpected directory name '{model.name}' for model '{model.config.name}'"
    return None
