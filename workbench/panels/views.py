"""From the session's snapshot to what the charts and tables of the panels show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.charts.batches import BatchHistogramInfo, batch_histogram_info
from workbench.charts.rows import COMPONENTS
from workbench.charts.strips import StripInfo, breakdown_strip, latency_strip, throughput_strip

if TYPE_CHECKING:
    from workbench.session.state import SessionSnapshot

Floats = NDArray[np.float64]
WINDOW_S = 60.0
NOTHING: Floats = np.empty(0)


def chosen_model(snapshot: SessionSnapshot, wanted: str | None) -> tuple[list[str], str | None]:
    """The names to choose from, and the one to begin with: the one wanted, else the first that serves."""
    names = snapshot.models.names
    if wanted is not None:
        return (names if wanted in names else [*names, wanted]), wanted
    ready = [row.name for row in snapshot.models if row.ready]
    first = next(iter(ready or names), None)
    return names, first


def history_of(snapshot: SessionSnapshot | None, model: str) -> Mapping[str, Floats]:
    """A model's columns over the last minutes; empty ones where it was never seen."""
    known = snapshot.history.get(model) if snapshot is not None else None
    if known is not None:
        return known
    names = ("t_s", "throughput", "p50_ms", "p99_ms", *(f"{name}_ms" for name in COMPONENTS))
    return dict.fromkeys(names, NOTHING)


def throughput_info(snapshot: SessionSnapshot | None, model: str) -> StripInfo:
    """A model's inferences a second."""
    columns = history_of(snapshot, model)
    return throughput_strip(columns["t_s"], columns["throughput"], WINDOW_S)


def latency_info(snapshot: SessionSnapshot | None, model: str) -> StripInfo:
    """A model's p50 and p99, where the server keeps records; else the words say that it does not."""
    columns = history_of(snapshot, model)
    return latency_strip(columns["t_s"], {"p50": columns["p50_ms"], "p99": columns["p99_ms"]}, WINDOW_S)


def breakdown_over_time(snapshot: SessionSnapshot | None, model: str) -> StripInfo:
    """Where the time of a model's requests goes."""
    columns = history_of(snapshot, model)
    return breakdown_strip(columns["t_s"], {name: columns[f"{name}_ms"] for name in COMPONENTS}, WINDOW_S)


def all_models_throughput(snapshot: SessionSnapshot | None) -> StripInfo:
    """Inferences a second of all models together, on the times of the model that is known for longest."""
    histories = list(snapshot.history.values()) if snapshot is not None else []
    if not histories:
        return throughput_strip(NOTHING, NOTHING, WINDOW_S)
    longest = max(histories, key=lambda columns: len(columns["t_s"]))
    total = np.zeros_like(longest["t_s"])
    for columns in histories:
        own = columns["throughput"]
        total[len(total) - len(own) :] += np.nan_to_num(own)
    return throughput_strip(longest["t_s"], total, WINDOW_S)


def histogram_info(snapshot: SessionSnapshot | None, model: str) -> BatchHistogramInfo:
    """A model's executed batches of the last minute by size and reason."""
    histogram = snapshot.histograms.get(model) if snapshot is not None else None
    counts = flat_histogram(histogram.counts) if histogram is not None else {}
    seconds = histogram.seconds if histogram is not None else WINDOW_S
    empty = f"No batch executed in the last {seconds:g} s"
    return batch_histogram_info(counts, title=f"Batch sizes, last {seconds:g} s", empty=empty)


def flat_histogram(counts: Mapping[str, Mapping[Any, int]]) -> dict[tuple[int, str], int]:
    """``counts[reason][rows]`` by (rows, reason)."""
    return {(int(rows), reason): int(n) for reason, by_rows in counts.items() for rows, n in by_rows.items()}


def recent(columns: Mapping[str, Floats], name: str, seconds: float = 3.0) -> float:
    """The mean of a column over the last seconds; NaN where nothing was measured."""
    values = columns.get(name, NOTHING)[columns["t_s"] >= -seconds]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")
