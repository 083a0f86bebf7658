"""Lint of texts about Triton: tutorials, answers, notebooks, model.py, requests, commands, metrics, manifests.

Names are imported when first used, as in ``workbench.config``.

- ``lint_text(data, path=..., context=TextContext(release, config))`` -> findings whose lines and columns count
  characters of the file; ``fix_text`` -> the mended file and what remains.
- ``blocks(data, path=...)`` -> how a file was divided: ``Passage`` s; ``is_text(name)`` -> whether it is such a file.

A block of config.pbtxt is judged by the rules of ``workbench.config.lint``; the others have theirs in ``rules``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.config.texts.documents import TextContext, blocks, fix_text, is_text, lint_text
    from workbench.config.texts.source import Passage

__all__ = ["Passage", "TextContext", "blocks", "fix_text", "is_text", "lint_text"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "source" if name == "Passage" else "documents"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
