"""Serve, tune and profile Triton model repositories, in a notebook.

``import workbench as wb`` is light and starts nothing: every public name is looked up when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from workbench.config import Edit as Edit
    from workbench.config import Finding as Finding
    from workbench.distributed import Ray as Ray
    from workbench.engine.linting import lint as lint
    from workbench.errors import WorkbenchError as WorkbenchError
    from workbench.export import ExportResult as ExportResult
    from workbench.package import Packaged as Packaged
    from workbench.package import package as package
    from workbench.package.building import BuildOptions as BuildOptions
    from workbench.package.building import Built as Built
    from workbench.package.building import build as build
    from workbench.profiling import Load as Load
    from workbench.profiling import Point as Point
    from workbench.profiling import SweepJob as SweepJob
    from workbench.profiling import SweepResult as SweepResult
    from workbench.profiling.perf_analyzer import read_perf_analyzer as read_perf_analyzer
    from workbench.profiling.trace import Trace as Trace
    from workbench.profiling.trace_files import read_trace as read_trace
    from workbench.session.kernel import Engine as Engine
    from workbench.session.opening import attach as attach
    from workbench.session.opening import connect as connect
    from workbench.session.opening import serve as serve
    from workbench.session.results import ConfigView as ConfigView
    from workbench.session.results import ModelTable as ModelTable
    from workbench.session.results import Result as Result
    from workbench.session.results import Statistics as Statistics
    from workbench.session.timeline import Timeline as Timeline
    from workbench.session.timeline import Waterfall as Waterfall
    from workbench.session.verbs import compare as compare
    from workbench.session.verbs import export as export
    from workbench.session.verbs import panel as panel
    from workbench.session.verbs import profile as profile
    from workbench.session.verbs import runs as runs
    from workbench.session.verbs import sweep as sweep
    from workbench.tuning.model_analyzer import read_model_analyzer as read_model_analyzer

# name -> module that defines it; what is public, and nothing else is.
_PUBLIC: dict[str, str] = {
    "BuildOptions": "workbench.package.building",
    "Built": "workbench.package.building",
    "ConfigView": "workbench.session.results",
    "Edit": "workbench.config",
    "Engine": "workbench.session.kernel",
    "ExportResult": "workbench.export",
    "Finding": "workbench.config",
    "Load": "workbench.profiling",
    "ModelTable": "workbench.session.results",
    "Packaged": "workbench.package",
    "Point": "workbench.profiling",
    "Ray": "workbench.distributed",
    "Result": "workbench.session.results",
    "Statistics": "workbench.session.results",
    "SweepJob": "workbench.profiling",
    "SweepResult": "workbench.profiling",
    "Timeline": "workbench.session.timeline",
    "Trace": "workbench.profiling.trace",
    "Waterfall": "workbench.session.timeline",
    "WorkbenchError": "workbench.errors",
    "attach": "workbench.session.opening",
    "build": "workbench.package.building",
    "compare": "workbench.session.verbs",
    "connect": "workbench.session.opening",
    "export": "workbench.session.verbs",
    "lint": "workbench.engine.linting",
    "package": "workbench.package",
    "panel": "workbench.session.verbs",
    "profile": "workbench.session.verbs",
    "read_model_analyzer": "workbench.tuning.model_analyzer",
    "read_perf_analyzer": "workbench.profiling.perf_analyzer",
    "read_trace": "workbench.profiling.trace_files",
    "runs": "workbench.session.verbs",
    "serve": "workbench.session.opening",
    "sweep": "workbench.session.verbs",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext workbench``: gives a notebook the cell magic ``%%triton_model``."""
    from workbench.panels.magic import register

    register(shell)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class _Root(ModuleType):
    """The package itself: a room must not hide the verb of its name.

    ``wb.export`` is the verb, and ``workbench.export`` a room: when the room is imported, Python would put the module
    in the verb's place.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _PUBLIC and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root
