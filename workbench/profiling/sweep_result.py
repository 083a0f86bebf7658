"""What a sweep gives: its progress while it runs, its points at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from workbench.profiling.best import best_and_tied, usable_points
from workbench.profiling.claims import too_few
from workbench.profiling.point import Point
from workbench.records.runs import Run, RunStore

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is. ``point`` is the newest one, None at the start; ``eta_s`` is a guess at first."""

    done: int
    total: int
    eta_s: float
    point: Point | None = None

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.done / self.total if self.total else 1.0


@dataclass(frozen=True, slots=True)
class SweepResult(Sequence[Point]):
    """The points of a sweep in the order of measuring; failed ones are among them, with their ``error``.

    ``stopped`` says that it was ended early, ``restored`` that the original configuration is applied again;
    ``error`` what broke it off or kept it from being restored.
    """

    model: str
    grid: Mapping[str, Sequence[Any]]
    points: tuple[Point, ...]
    total: int
    stopped: bool = False
    restored: bool = True
    error: str = ""
    run_id: str = ""

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Point]: ...
    def __getitem__(self, index: int | slice) -> Point | Sequence[Point]:
        return self.points[index]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def to_frame(self) -> pd.DataFrame:
        """A tidy table, one row a point: the grid's values, the load, the figures, the verdict."""
        import pandas as pd

        return pd.DataFrame([point.row() for point in self.points])

    def best(self, *, p99_ms: float | None = None, p50_ms: float | None = None) -> Point | None:
        """The valid point with the highest throughput among those that meet the goal and lost no request.

        None when no point does. Points that overlap within their intervals are too close to call: then the one with the
        lower p99 is taken. ``tuning.choose`` follows the same rule and says why in words.

        Raises:
            InvalidMeasurement: they were measured on different kinds of device, which are not compared.
        """
        holding = [
            point
            for point in usable_points(self.points)
            if (p99_ms is None or point.p99_ms <= p99_ms) and (p50_ms is None or point.p50_ms <= p50_ms)
        ]
        return best_and_tied(holding)[0] if holding else None

    def save(self, store: RunStore, *, title: str = "") -> str:
        """Writes the points as a run of the store and gives its id."""
        with store.create("sweep", model=self.model, title=title, grid=dict(self.grid)) as run:
            for point in self.points:
                write_point(run, point, "")
            run.finish(self.status)
            return run.id

    @property
    def status(self) -> str:
        """``done``, ``stopped`` or ``failed``."""
        if self.error:
            return "failed"
        return "stopped" if self.stopped else "done"

    def __repr__(self) -> str:
        head = f"Sweep of {self.model}: {len(self.points)} of {self.total} points, {self.status}"
        if self.error:
            head += f" ({self.error})"
        if not self.points:
            return head
        names = (*self.grid, "load", "infer/s", "p50 ms", "p99 ms", "mean batch", "verdict")
        cells = [names]
        for point in self.points:
            throughput, p50, p99, batch = (
                f"{value:.2f}" for value in (point.throughput, point.p50_ms, point.p99_ms, point.mean_batch)
            )
            settings = (str(point.settings.get(path)) for path in self.grid)
            p99 += "?" if point.n and too_few(point.n, point.p99_worth) else ""
            cells.append((*settings, point.load.label, throughput, p50, p99, batch, point.verdict))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
        return "\n".join([head, *rows, *self._why_not()])

    def _why_not(self) -> list[str]:
        """Why points failed or must not be believed, each reason once, and which p99 rest on too few requests."""
        reasons = (p.error or "; ".join(p.reasons) for p in self.points if not p.valid)
        lines = [f"  ! {reason}" for reason in dict.fromkeys(reasons) if reason]
        few = dict.fromkeys(too_few(p.n, p.p99_worth) for p in self.points if p.n)
        return lines + [f"  ? {text}" for text in list(filter(None, few))[:3]]


def write_point(run: Run, point: Point, key: str, instead_of: Sequence[int] = ()) -> int:
    """Adds a point to a run, in place of rows that it outdates, and gives its number there."""
    return run.add_point(point.to_json(), row=point.row(), key=key, config=point.config or None, instead_of=instead_of)
