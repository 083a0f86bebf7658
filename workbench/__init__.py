"""Serve, tune and profile Triton model repositories, in a notebook.

``import workbench as wb`` is light and starts nothing: every public name is looked up when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> module that defines it; the only list of what is public.
_PUBLIC: dict[str, str] = {
    "Engine": "workbench.session.kernel",
    "attach": "workbench.session.opening",
    "connect": "workbench.session.opening",
    "serve": "workbench.session.opening",
}

__all__ = ["__version__", *sorted(_PUBLIC)]

if TYPE_CHECKING:
    from workbench.session.kernel import Engine as Engine
    from workbench.session.opening import attach as attach
    from workbench.session.opening import connect as connect
    from workbench.session.opening import serve as serve


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
