"""Which step of a pipeline takes the time: an ensemble's steps as they follow each other, and what each does now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.breakdown import BreakdownInfo, draw_breakdown, steps_info, update_breakdown
from workbench.charts.rows import COMPONENTS
from workbench.charts.style import Chart
from workbench.errors import InvalidRequest
from workbench.panels.base import Panel
from workbench.panels.html import escape, note, number, state_chip
from workbench.panels.live import effective_config, live_head
from workbench.panels.views import history_of, recent

if TYPE_CHECKING:
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

_X_LABEL = "step (of a request)"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an ensemble: a label of its own, its model, and how many steps lie before it at least."""

    label: str
    model: str
    level: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def graph_of(config: Mapping[str, Any]) -> list[Step]:
    """The steps of an ensemble's configuration, in the order of their levels; empty for another model."""
    written = (config.get("ensemble_scheduling") or {}).get("step", ())
    maker = {name: index for index, step in enumerate(written) for name in step["output_map"].values()}
    levels = [0] * len(written)
    for _ in written:  # as often as the longest path is long, at most
        for index, step in enumerate(written):
            before = [levels[maker[name]] + 1 for name in step["input_map"].values() if name in maker]
            levels[index] = min(max(before, default=0), len(written))
    seen: dict[str, int] = {}
    steps = []
    for index, step in enumerate(written):
        model = str(step["model_name"])
        seen[model] = seen.get(model, 0) + 1
        label = model if seen[model] == 1 else f"{model} #{seen[model]}"
        tensors = (tuple(step["input_map"].values()), tuple(step["output_map"].values()))
        steps.append(Step(label, model, levels[index], *tensors))
    return sorted(steps, key=lambda each: each.level)


class EnsemblePanel(Panel):
    """One ensemble while it serves; ``model`` picks it, the first one where it is not given.

    Raises:
        InvalidRequest: ``model`` is no ensemble that serves.
    """

    title = "Ensemble"

    def __init__(self, server: Server, *, model: str | None = None) -> None:
        super().__init__(server)
        names = ensembles(server.session.snapshot())
        if model is not None and model not in names:
            known = ", ".join(names) or "none"
            raise InvalidRequest(f"'{model}' is no ensemble that serves", hint=f"there are: {known}")
        self._model = W.Dropdown(options=names, value=model or next(iter(names), None), description="ensemble")
        self._model.style.description_width = "64px"
        self._model.layout.width = "300px"
        self._known: tuple[tuple[str, int], list[Step]] | None = None
        self._head = W.HTML()
        self._graph = W.HTML()
        draw = partial(draw_breakdown, x_label=_X_LABEL)
        self._times = self._chart(draw, update_breakdown, _times([], None))
        self._model.observe(lambda _: self.refresh(), "value")
        self._build([W.HBox([self._model, self._head], layout=W.Layout(width="100%")), self._graph, self._times.view])

    @property
    def model(self) -> str:
        """The ensemble that is shown; empty where the server serves none."""
        return str(self._model.value or "")

    def _show(self, snapshot: SessionSnapshot) -> None:
        names = ensembles(snapshot)
        if list(self._model.options) != names:
            kept = self._model.value
            self._model.options = names
            self._model.value = kept if kept in names else next(iter(names), None)
        steps = self._steps(snapshot)
        self._head.value = live_head(snapshot, self.model)
        self._graph.value = graph_html(steps, snapshot)
        self._times.show(_times(steps, snapshot))

    def _steps(self, snapshot: SessionSnapshot) -> list[Step]:
        """The steps, read again only when the configuration has changed."""
        key = (self.model, next((row.epoch for row in snapshot.models if row.name == self.model), -1))
        if self._known is None or self._known[0] != key:
            self._known = (key, graph_of(effective_config(self.server, self.model)))
        return self._known[1]

    def _static(self) -> list[str | Chart]:
        snapshot = self.state.snapshot()
        head = f"<b>{escape(self.model)}</b> {live_head(snapshot, self.model)}"
        return [head, graph_html(self._steps(snapshot), snapshot), self._times.draw_again()]

    def _text(self) -> str:
        snapshot = self.state.snapshot()
        lines = [f"{self.model}, last 3 s, queue + compute of each step (ms):"]
        for step in self._steps(snapshot):
            queue, compute = _queue_and_compute(snapshot, step.model)
            lines.append(f"  {step.level + 1}. {step.label}: {number(queue, 2)} + {number(compute, 2)}")
        return "\n".join(lines)


def ensembles(snapshot: SessionSnapshot) -> list[str]:
    """The ensembles that serve."""
    return list(dict.fromkeys(row.name for row in snapshot.models if row.ready and row.steps))


def graph_html(steps: list[Step], snapshot: SessionSnapshot) -> str:
    """The steps in boxes, those that can run side by side above each other; the one that takes longest is marked."""
    if not steps:
        return note("this server serves no ensemble")
    totals = {step.label: sum(_queue_and_compute(snapshot, step.model)) for step in steps}
    known = {label: total for label, total in totals.items() if total == total}
    slowest = max(known, key=known.__getitem__) if known else ""
    levels: dict[int, list[str]] = {}
    for step in steps:
        levels.setdefault(step.level, []).append(_box(step, snapshot, step.label == slowest))
    columns = "".join(f'<div class="wb-level">{"".join(boxes)}</div>' for boxes in levels.values())
    return f'<div class="wb-graph">{columns}</div>'


def _box(step: Step, snapshot: SessionSnapshot, slowest: bool) -> str:
    row = next((row for row in snapshot.models if row.name == step.model), None)
    columns = history_of(snapshot, step.model)
    queue, compute = _queue_and_compute(snapshot, step.model)
    tensors = f"{', '.join(step.inputs)} → {', '.join(step.outputs)}"
    lines = [
        f"<b>{escape(step.label)}</b> {state_chip(row.state if row is not None else '')}",
        f'<span class="wb-muted">{escape(tensors)}</span>',
        f"queue <b>{number(queue, 2)}</b> + compute <b>{number(compute, 2)}</b> ms",
        " · ".join(
            (
                f"<b>{number(recent(columns, 'throughput'))}</b> infer/s",
                f"mean batch <b>{number(recent(columns, 'mean_batch'), 2)}</b>",
                f"waiting <b>{row.pending if row is not None else 0}</b>",
            )
        ),
    ]
    title = "takes the most time now; of all that ask this model" if slowest else "of all that ask this model"
    body = "<br>".join(lines)
    return f'<div class="wb-step{" wb-slowest" if slowest else ""}" title="{title}">{body}</div>'


def _queue_and_compute(snapshot: SessionSnapshot, model: str) -> tuple[float, float]:
    """Milliseconds in the last seconds; NaN where nothing ran."""
    columns = history_of(snapshot, model)
    return recent(columns, "queue_ms"), sum(recent(columns, f"{part}_ms") for part in COMPONENTS[1:])


def _times(steps: list[Step], snapshot: SessionSnapshot | None) -> BreakdownInfo:
    shown = {}
    for step in steps:
        columns = history_of(snapshot, step.model)
        figures = {f"{part}_ms": recent(columns, f"{part}_ms") for part in COMPONENTS}
        if figures["queue_ms"] == figures["queue_ms"]:
            shown[step.label] = figures
    return steps_info(shown, title="Where the time of a request goes, last 3 s")
