"""TensorRT as it is installed: the package ``tensorrt`` (10 or later), else ``tensorrt_rtx``.

Both have the same classes. The engines of one are not for the other: a plan of TensorRT-RTX runs under TensorRT-RTX
only, and NVIDIA's Triton has the enterprise runtime. ``tensorrt_rtx`` installs from PyPI whole; of ``tensorrt``, PyPI
has the bindings, and its libraries come from NVIDIA's own index or its containers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from workbench.errors import Unsupported

NAMES = ("tensorrt", "tensorrt_rtx")
"""The packages, the one whose engines NVIDIA's Triton loads first."""
INSTALL = {
    "tensorrt": "pip install tensorrt from NVIDIA's own package index (its installation guide), or an NVIDIA container",
    "tensorrt_rtx": "pip install tensorrt_rtx (the extra tensorrt)",
}

_OLDEST_MAJOR = 10


@dataclass(frozen=True, slots=True)
class Library:
    """An imported package; ``name`` is one of ``NAMES``."""

    module: Any
    name: str
    version: str

    @property
    def title(self) -> str:
        """As people call it, with its version."""
        return f"{'TensorRT-RTX' if self.rtx else 'TensorRT'} {self.version}"

    @property
    def rtx(self) -> bool:
        """Whether its engines are for the RTX runtime."""
        return self.name == "tensorrt_rtx"

    @property
    def weakly_typed(self) -> bool:
        """Whether the builder chooses precisions itself (BuilderFlag.FP16, ...); else those of the graph hold."""
        return hasattr(self.module.BuilderFlag, "FP16")


def find_library(name: str | None = None) -> Library:
    """The package of this name, else the first one that can be imported.

    Raises:
        Unsupported: there is none, or it is older than TensorRT 10; the text says why for each.
    """
    reasons = []
    for each in (name,) if name else NAMES:
        try:
            return _import(each)
        except Unsupported as error:
            reasons.append(error.message)
    raise Unsupported("; ".join(reasons), hint=INSTALL["tensorrt_rtx" if name is None else name])


@lru_cache(maxsize=len(NAMES))
def _import(name: str) -> Library:
    try:
        module = importlib.import_module(name)
        version = str(module.__version__)
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        why = "is not installed" if getattr(error, "name", None) == name else f"cannot be imported: {error}"
        raise Unsupported(f"the package {name} {why}", hint=INSTALL[name]) from error
    if name == "tensorrt" and int(version.partition(".")[0]) < _OLDEST_MAJOR:
        raise Unsupported(
            f"the package tensorrt is of version {version}, and {_OLDEST_MAJOR} is the oldest that is supported",
            hint=INSTALL[name],
        )
    return Library(module, name, version)


@dataclass(slots=True)
class Messages:
    """What TensorRT logged: (severity in lower case, text). ``told`` gets each warning and error as it comes."""

    told: Callable[[str, str], None] | None = None
    lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, severity: str, text: str) -> None:
        """Keeps a line."""
        if severity in ("internal_error", "error", "warning"):
            self.lines.append((severity, text))
            if self.told is not None:
                self.told(severity, text)

    def errors(self) -> list[str]:
        """The errors, each once, in their order."""
        return list(dict.fromkeys(text for severity, text in self.lines if severity.endswith("error")))


def make_logger(library: Library, messages: Messages) -> Any:
    """A logger of the library that writes into ``messages``. It must outlive what is made with it."""
    base: Any = library.module.ILogger

    def log(self: Any, severity: Any, text: str) -> None:
        messages.add(str(severity.name).lower(), text)

    return type("Logger", (base,), {"__init__": lambda self: base.__init__(self), "log": log})()
