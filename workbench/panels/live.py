"""Where the time goes now, and is batching working: throughput, latency, queue and compute, batch sizes by reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.batches import draw_batch_histogram, update_batch_histogram
from workbench.charts.strips import draw_strip, update_strip
from workbench.charts.style import Chart
from workbench.errors import WorkbenchError
from workbench.panels.base import Panel, stale_badge
from workbench.panels.hints import Observed, hints
from workbench.panels.html import bullet_list, chip, escape, number
from workbench.panels.views import (
    NOTHING,
    WINDOW_S,
    Floats,
    breakdown_over_time,
    chosen_model,
    flat_histogram,
    histogram_info,
    history_of,
    latency_info,
    recent,
    throughput_info,
)

if TYPE_CHECKING:
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot


class LivePanel(Panel):
    """One model while it serves; ``model`` picks it, the first one where it is not given."""

    title = "Live"

    def __init__(self, server: Server, *, model: str | None = None) -> None:
        super().__init__(server)
        names, model = chosen_model(server.session.snapshot(), model)
        self._model = W.Dropdown(options=names, value=model, description="model")
        self._model.layout.width = "260px"
        self._model.style.description_width = "48px"
        self._known: tuple[tuple[str, int, str], dict[str, Any]] | None = None
        self._head = W.HTML()
        self._hints = W.HTML()
        self._throughput = self._chart(draw_strip, update_strip, throughput_info(None, ""))
        self._latency = self._chart(draw_strip, update_strip, latency_info(None, ""))
        self._breakdown = self._chart(draw_strip, update_strip, breakdown_over_time(None, ""))
        self._batches = self._chart(draw_batch_histogram, update_batch_histogram, histogram_info(None, ""))
        self._model.observe(lambda _: self.refresh(), "value")
        self._build(
            [
                W.HBox([self._model, self._head], layout=W.Layout(width="100%")),
                self._hints,
                halves(self._throughput.view, self._latency.view),
                halves(self._breakdown.view, self._batches.view),
            ]
        )

    @property
    def model(self) -> str:
        """The model that is shown."""
        return str(self._model.value or "")

    def _show(self, snapshot: SessionSnapshot) -> None:
        names = snapshot.models.names
        if list(self._model.options) != names:
            kept = self._model.value
            self._model.options = names
            if kept in names:
                self._model.value = kept
        self._head.value = live_head(snapshot, self.model)
        self._hints.value = bullet_list(self.hints(snapshot))
        self._throughput.show(throughput_info(snapshot, self.model))
        self._latency.show(latency_info(snapshot, self.model))
        self._breakdown.show(breakdown_over_time(snapshot, self.model))
        self._batches.show(histogram_info(snapshot, self.model))

    def hints(self, snapshot: SessionSnapshot | None = None) -> list[str]:
        """What the figures say, in sentences."""
        snapshot = snapshot or self.state.snapshot()
        return hints(observe(snapshot, self.model, self._configuration(snapshot)))

    def _configuration(self, snapshot: SessionSnapshot) -> dict[str, Any]:
        """The model's configuration, read again only when it has changed."""
        row = next((row for row in snapshot.models if row.name == self.model), None)
        key = (self.model, row.epoch if row is not None else -1, row.state if row is not None else "")
        if self._known is None or self._known[0] != key:
            self._known = (key, effective_config(self.server, self.model))
        return self._known[1]

    def _static(self) -> list[str | Chart]:
        snapshot = self.state.snapshot()
        charts = [box.draw_again() for box in (self._throughput, self._latency, self._breakdown, self._batches)]
        return [f"<b>{escape(self.model)}</b> {live_head(snapshot, self.model)}", bullet_list(self.hints()), *charts]

    def _text(self) -> str:
        columns = history_of(self.state.snapshot(), self.model)
        found = {name: recent(columns, name) for name in columns if name != "t_s"}
        # without requests there is no latency, and -1 is a figure that the server does not tell
        parts = [f"{name} {value:.3f}" for name, value in found.items() if not math.isnan(value) and value >= 0]
        return f"{self.model}, last 3 s: {', '.join(parts)}\n" + "\n".join(self.hints())


def halves(*views: Any) -> Any:
    """Widgets beside each other, sharing the width evenly."""
    share = f"{100 / len(views):.2f}%"
    boxes = [W.Box([view], layout=W.Layout(width=share, min_width="0", overflow="hidden")) for view in views]
    return W.HBox(boxes, layout=W.Layout(width="100%", overflow="hidden", align_items="flex-end"))


def effective_config(server: Server, model: str) -> dict[str, Any]:
    """The completed configuration; empty where the model is not loaded."""
    try:
        return dict(server.model_config(model)) if model else {}
    except WorkbenchError:
        return {}


def observe(snapshot: SessionSnapshot, model: str, config: dict[str, Any]) -> Observed:
    """What is known about a model's batching now."""
    window = snapshot.windows.get(model)
    histogram = snapshot.histograms.get(model)
    columns = history_of(snapshot, model)
    compute = sum(recent(columns, f"compute_{part}_ms", 10.0) for part in ("input", "infer", "output"))
    return Observed(
        counts=flat_histogram(histogram.counts) if histogram is not None else {},
        queue_ms=recent(columns, "queue_ms", 10.0),
        compute_ms=compute,
        failed_s=window.failed_s if window is not None else 0.0,
        max_in_flight=_most_in_flight(columns),
        config=config,
    )


def _most_in_flight(columns: Mapping[str, Floats], seconds: float = WINDOW_S) -> int:
    """The greatest number of requests that were in the server at once; -1 where that is not known."""
    values = columns.get("max_in_flight", NOTHING)[-len(columns["t_s"]) :]
    shown = values[columns["t_s"] >= -seconds] if len(values) else values
    return int(shown.max()) if len(shown) and shown.max() > 0 else -1


def live_head(snapshot: SessionSnapshot, model: str) -> str:
    """The figures of the last seconds in one line."""
    columns = history_of(snapshot, model)
    rate = recent(columns, "throughput")
    window = snapshot.windows.get(model)
    running = chip("serving", "ok") if rate == rate and rate > 0 else chip("idle", "off")
    facts = [f"<b>{number(rate)}</b> infer/s", f"mean batch <b>{number(recent(columns, 'mean_batch'), 2)}</b> rows"]
    facts.append(f"p50 <b>{number(recent(columns, 'p50_ms'), 2)}</b> ms")
    facts.append(f"p99 <b>{number(recent(columns, 'p99_ms'), 2)}</b> ms")
    if window is not None and window.failed_s:
        facts.append(chip(f"{window.failed_s:,.1f} failed/s", "bad"))
    line = " <span class='wb-muted'>·</span> ".join(facts)
    style = "padding-left:12px;line-height:28px"
    return f'<div class="wb-head" style="{style}">{running}<span>{line}</span>{stale_badge(snapshot)}</div>'
