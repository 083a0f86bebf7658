"""config.pbtxt: lossless syntax tree, edits, conversion, Triton's normalisation, validation and linting.

Names are imported when first used: importing the package is cheap. ``message`` is an ``inference.ModelConfig``.

- ``ConfigDocument.parse(data: bytes, path="")`` -> document; ``.edit(edits)`` -> document; ``.data``, ``.text``,
  ``.message``, ``.diff(other)`` -> str, ``.locate(path, nearest=False)`` -> ``Span`` | None. Raises ``ParseError``.
- ``Edit(path, op="set"|"remove"|"insert", value)`` with ``to_json``/``from_json``; ``parse_edit("path=json")``;
  ``edits_between(before, after)`` -> list of edits.
- ``to_json(message, defaults=True)`` -> dict as GET /v2/models/M/config (``defaults=False``: as written);
  ``from_json(dict | str)`` -> message (the load API's override); ``to_text(message)`` -> normalised text.
- ``complete_backend(message, directory_name, files)`` -> message; ``normalize(message, model_name="", gpus=())`` ->
  message; ``validate(message, gpus=(), io=True)`` raises ``ValidationError``; ``problems(...)`` yields all of them.
- ``change_class(old, new, backend_reads_max_batch_size=True)`` -> ``ConfigChange(kind, reasons, triton, paths)``, kind
  one of none, live, instances, reload.
- ``lint_config(document | bytes, triton_release="25.03", directory_name=None, cores=None)`` -> list of ``Finding(rule,
  severity, line, column, message, fix)``; ``apply_fixes(data, findings)`` -> bytes; ``fix_all(data)`` -> bytes and what
  remains; ``RULES``: rule id -> ``Rule(severity, explanation, fix)``.

The order when a model is loaded: ``complete_backend`` -> ``normalize`` -> ``validate(io=False)`` -> (the engine, from
what the backend says of the model file) inputs and outputs -> ``normalize`` -> ``validate`` -> (the backend) the fit.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.config.change import ConfigChange, change_class
    from workbench.config.convert import from_json, to_json, to_text
    from workbench.config.difference import edits_between
    from workbench.config.document import ConfigDocument
    from workbench.config.findings import Finding, Fix, LintContext, apply_fixes
    from workbench.config.lint import fix_all, lint_config
    from workbench.config.normalization import DEFAULT_MAX_BATCH_SIZE, complete_backend, normalize
    from workbench.config.path import Edit, parse_edit, parse_path
    from workbench.config.problem import Problem
    from workbench.config.rule import Rule
    from workbench.config.rules import RULES
    from workbench.config.syntax import ParseError
    from workbench.config.tokens import Span, SyntaxFault
    from workbench.config.validation import ValidationError, problems, validate

_HOMES = {
    "ConfigChange": "change",
    "ConfigDocument": "document",
    "DEFAULT_MAX_BATCH_SIZE": "normalization",
    "Edit": "path",
    "Finding": "findings",
    "Fix": "findings",
    "LintContext": "findings",
    "ParseError": "syntax",
    "Problem": "problem",
    "RULES": "rules",
    "Rule": "rule",
    "Span": "tokens",
    "SyntaxFault": "tokens",
    "ValidationError": "validation",
    "apply_fixes": "findings",
    "change_class": "change",
    "complete_backend": "normalization",
    "edits_between": "difference",
    "fix_all": "lint",
    "from_json": "convert",
    "lint_config": "lint",
    "normalize": "normalization",
    "parse_edit": "path",
    "parse_path": "path",
    "problems": "validation",
    "to_json": "convert",
    "to_text": "convert",
    "validate": "validation",
}

__all__ = [
    "DEFAULT_MAX_BATCH_SIZE",
    "RULES",
    "ConfigChange",
    "ConfigDocument",
    "Edit",
    "Finding",
    "Fix",
    "LintContext",
    "ParseError",
    "Problem",
    "Rule",
    "Span",
    "SyntaxFault",
    "ValidationError",
    "apply_fixes",
    "change_class",
    "complete_backend",
    "edits_between",
    "fix_all",
    "from_json",
    "lint_config",
    "normalize",
    "parse_edit",
    "parse_path",
    "problems",
    "to_json",
    "to_text",
    "validate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
