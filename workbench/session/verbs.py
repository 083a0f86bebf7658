"""The verbs at the root that take a server: ``wb.profile(server, "m", ...)`` is ``server.profile("m", ...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.records.runs import RunStore

if TYPE_CHECKING:
    from workbench.export import ExportResult
    from workbench.profiling import Point, SweepJob, SweepResult
    from workbench.session.server import Server
    from workbench.tuning.compare_result import CompareResult


def profile(server: Server, model: str, **options: Any) -> Point:
    """Measures one load point; see ``Server.profile``."""
    return server.profile(model, **options)


def sweep(
    server: Server, model: str, grid: Mapping[str, Sequence[Any]] | None = None, **options: Any
) -> SweepResult | SweepJob:
    """Measures a grid of configurations × loads; see ``Server.sweep``."""
    return server.sweep(model, grid, **options)


def compare(server: Server, models: Sequence[str], **options: Any) -> CompareResult:
    """Models of a server side by side; see ``Server.compare``."""
    return server.compare(models, **options)


def export(server: Server, to: str | Path, **options: Any) -> ExportResult:
    """Writes the repository with the configurations as they are applied now; see ``Server.export``."""
    result: ExportResult = server.export(to, **options)
    return result


def panel(server: Server, name: str = "overview", **options: Any) -> Any:
    """A panel for a notebook; see ``Server.panel``."""
    return server.panel(name, **options)


def runs(directory: str | Path = "runs") -> RunStore:
    """The store of runs in a directory: ``wb.runs().frame()``, ``wb.runs().open("latest")``."""
    return RunStore(directory)
