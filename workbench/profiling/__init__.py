"""Load, measurement and sweeps against a Target.

The names below are loaded when first asked for: the load generator's process imports only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.profiling.ab_result import ABResult
    from workbench.profiling.claims import Claim, requests_needed
    from workbench.profiling.interleaving import ABOptions, ab
    from workbench.profiling.job import SweepJob
    from workbench.profiling.load import Load
    from workbench.profiling.measuring import Measurer, measure
    from workbench.profiling.point import Point
    from workbench.profiling.samples import Samples
    from workbench.profiling.sweep_result import Progress, SweepResult
    from workbench.profiling.sweeping import SweepOptions, sweep
    from workbench.profiling.target import Configurable, InKernelTarget, ServerTarget, Target, WorkbenchTarget
    from workbench.profiling.verdict import MeasureOptions

_HOMES = {
    "ABOptions": "interleaving",
    "ABResult": "ab_result",
    "Claim": "claims",
    "Configurable": "target",
    "InKernelTarget": "target",
    "Load": "load",
    "MeasureOptions": "verdict",
    "Measurer": "measuring",
    "Point": "point",
    "Progress": "sweep_result",
    "Samples": "samples",
    "ServerTarget": "target",
    "SweepJob": "job",
    "SweepOptions": "sweeping",
    "SweepResult": "sweep_result",
    "Target": "target",
    "WorkbenchTarget": "target",
    "ab": "interleaving",
    "measure": "measuring",
    "requests_needed": "claims",
    "sweep": "sweeping",
}

__all__ = [
    "ABOptions",
    "ABResult",
    "Claim",
    "Configurable",
    "InKernelTarget",
    "Load",
    "MeasureOptions",
    "Measurer",
    "Point",
    "Progress",
    "Samples",
    "ServerTarget",
    "SweepJob",
    "SweepOptions",
    "SweepResult",
    "Target",
    "WorkbenchTarget",
    "ab",
    "measure",
    "requests_needed",
    "sweep",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'workbench.profiling' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"workbench.profiling.{home}"), name)
