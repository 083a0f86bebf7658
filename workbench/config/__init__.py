"""config.pbtxt: lossless syntax tree, edits, conversion, Triton's normalisation, validation and linting.

Names are imported when first used, so ``import workbench.config`` is cheap.

====================  =================================================================================================
Name                  What
====================  =================================================================================================
``ConfigDocument``    ``parse(data: bytes, path="")``, ``.edit(edits)``, ``.data``, ``.message``, ``.diff(other)``,
                      ``.locate(path)``
``Edit``              ``Edit(path, op="set"|"remove"|"insert", value)``; ``parse_edit("path=json")`` for ``--set``
``edits_between``     ``edits_between(before, after) -> list[Edit]``
``to_json``           ``to_json(message, defaults=True) -> dict``: as GET /v2/models/M/config; ``defaults=False`` as written
``from_json``         ``from_json(json) -> ModelConfig``: the load API's config override
``to_text``           ``to_text(message) -> str``: normalised text
``ParseError``        what ``parse`` raises: a ``ConfigError`` with ``faults``
====================  =================================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.config.convert import from_json, to_json, to_text
    from workbench.config.difference import edits_between
    from workbench.config.document import ConfigDocument
    from workbench.config.path import Edit, parse_edit, parse_path
    from workbench.config.syntax import ParseError
    from workbench.config.tokens import Span, SyntaxFault

_HOMES = {
    "ConfigDocument": "document",
    "Edit": "path",
    "ParseError": "syntax",
    "Span": "tokens",
    "SyntaxFault": "tokens",
    "edits_between": "difference",
    "from_json": "convert",
    "parse_edit": "path",
    "parse_path": "path",
    "to_json": "convert",
    "to_text": "convert",
}

__all__ = [
    "ConfigDocument",
    "Edit",
    "ParseError",
    "Span",
    "SyntaxFault",
    "edits_between",
    "from_json",
    "parse_edit",
    "parse_path",
    "to_json",
    "to_text",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
