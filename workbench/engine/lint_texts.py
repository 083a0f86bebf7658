"""Texts under the linter: lone files, and the files of a model that its configuration is known for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from workbench.config import Finding, LintContext
from workbench.config.texts import TextContext, lint_text
from workbench.engine.lint_models import LintedModel, read_linted
from workbench.repository.example_inputs import FILE_NAME

Read = Callable[[Path], bytes]
"""Gives a file's bytes, with the fixes made so far."""


def lint_lone_text(path: Path, data: bytes, context: LintContext) -> list[Finding]:
    """A file that is given alone: a tutorial, a notebook, a request; a model.py with its model's configuration."""
    directory = path.parent.parent if path.parent.name.isdecimal() else path.parent
    config = None
    if path.suffix in (".py", ".json") and (directory / "config.pbtxt").is_file():
        config = read_linted(directory, context, {}).config
    return lint_text(data, path=str(path), context=TextContext(context.triton_release, config))


def lint_model_files(model: LintedModel, read: Read) -> Iterator[tuple[Path, list[Finding]]]:
    """A Python model's code in each version that is served, and the example inputs."""
    context = TextContext(model.context.triton_release, model.config)
    paths: list[Path] = []
    if model.backend == "python":
        name = model.config.default_model_filename or "model.py"
        paths += [model.source.versions[number] / name for number in model.versions if name.endswith(".py")]
    paths.append(model.source.directory / FILE_NAME)
    for path in paths:
        if path.is_file():
            yield path, lint_text(read(path), path=str(path), context=context)
