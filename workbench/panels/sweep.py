"""Which configuration meets my goal: a grid measured live, curves as they arrive, the best one applied by a click."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.batches import batch_histogram_info, draw_batch_histogram, update_batch_histogram
from workbench.charts.breakdown import breakdown_info, draw_breakdown, update_breakdown
from workbench.charts.rows import PointRow
from workbench.charts.style import Chart
from workbench.charts.throughput_latency import (
    draw_throughput_latency,
    throughput_latency_info,
    update_throughput_latency,
)
from workbench.errors import InvalidMeasurement, InvalidRequest
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.html import chip, escape
from workbench.panels.live import halves
from workbench.panels.sweep_form import Plan, SweepForm
from workbench.panels.sweep_view import (
    best_html,
    duration,
    estimate_html,
    point_row,
    points_table,
    status_html,
    status_tone,
)
from workbench.panels.views import chosen_model
from workbench.profiling.settings import by_model
from workbench.tuning import Choice, choose

if TYPE_CHECKING:
    import pandas as pd

    from workbench.profiling import Point, Progress, SweepJob, SweepResult
    from workbench.session.results import ConfigureResult
    from workbench.session.server import Server
    from workbench.session.state import Command, SessionSnapshot

AUTO = "the best, or the newest"


class SweepPanel(Panel):
    """A sweep of configuration × load. ``result`` is what was measured, ``frame`` the same as a DataFrame.

    Args:
        server: what is measured; its configuration is restored when the sweep ends.
        model: preset; the first one where it is not given.
        goal_p99_ms: preset of the latency goal.
        store: the directory of the run store; None stores nothing.
    """

    title = "Sweep"

    def __init__(
        self,
        server: Server,
        *,
        model: str | None = None,
        goal_p99_ms: float | None = None,
        store: str | None = "runs",
    ) -> None:
        super().__init__(server)
        names, model = chosen_model(server.session.snapshot(), model)
        self._store = store
        self._job: SweepJob | None = None
        self._stop_event = threading.Event()
        self._choice: Choice | None = None
        self._ended = True
        self._form = SweepForm(names, model, self._form_changed)
        if goal_p99_ms is not None:
            self._form.goal.value = goal_p99_ms
        self._run = W.Button(
            description="Run sweep", button_style="primary", tooltip="Measure all points, applied live"
        )
        self._stop = W.Button(description="Stop", tooltip="End the sweep, keep what was measured", disabled=True)
        self._apply_best = W.Button(description="Apply best", tooltip="Apply it to the running model", disabled=True)
        for button in (self._run, self._stop, self._apply_best):
            button.layout = W.Layout(width="auto", min_width="92px", flex="0 0 auto")
        self._bar = W.FloatProgress(
            min=0, max=1, value=0, layout=W.Layout(width="170px", height="18px", flex="0 0 auto", margin="0 0 0 8px")
        )
        self._progress = W.HTML(layout=W.Layout(flex="1 1 0", min_width="0"))
        self._progress.add_class("wb-status")
        self._best = W.HTML(layout=W.Layout(margin="0 0 0 10px"))
        self._shown = W.Dropdown(options=[AUTO], value=AUTO, description="details of")
        self._shown.layout.width = "420px"
        self._shown.style.description_width = "64px"
        self._table = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._curve = self._chart(draw_throughput_latency, update_throughput_latency, throughput_latency_info([]))
        self._breakdown = self._chart(draw_breakdown, update_breakdown, breakdown_info([]))
        self._batches = self._chart(draw_batch_histogram, update_batch_histogram, batch_histogram_info({}))
        self._run.on_click(lambda _: self.run())
        self._stop.on_click(lambda _: self.stop())
        self._apply_best.on_click(lambda _: self.apply_best())
        self._shown.observe(lambda _: self._details_changed(), "value")
        self._build(self._children())

    def _children(self) -> list[Any]:
        row = W.Layout(width="100%", align_items="center")
        right = W.VBox(
            [
                W.HBox([self._run, self._stop, self._bar, self._progress], layout=row),
                self._curve.view,
                W.HBox([self._apply_best, self._best], layout=row),
            ],
            layout=W.Layout(flex="1 1 0", min_width="0"),
        )
        return [
            W.HBox([self._form.box, right], layout=W.Layout(width="100%", overflow="hidden")),
            W.HTML('<div class="wb-rule"></div>'),
            self._shown,
            halves(self._breakdown.view, self._batches.view),
            self._table,
        ]

    # ------------------------------------------------------------ results

    @property
    def job(self) -> SweepJob | None:
        """The sweep that runs or ran last."""
        return self._job

    @property
    def points(self) -> tuple[Point, ...]:
        """What has been measured so far."""
        return self._job.points if self._job is not None else ()

    @property
    def result(self) -> SweepResult | None:
        """The whole result, once the sweep has ended; ``result.to_frame()`` is a DataFrame."""
        return self._job.result if self._job is not None else None

    @property
    def frame(self) -> pd.DataFrame:
        """The points measured so far, one row each."""
        import pandas as pd

        return pd.DataFrame([point.row() for point in self.points])

    @property
    def choice(self) -> Choice | None:
        """The best configuration under the goal; None where there is none."""
        return self._choice

    @property
    def form(self) -> SweepForm:
        """The widgets of the form."""
        return self._form

    # ------------------------------------------------------------ doing

    def run(self, *, wait: bool = False) -> SweepResult | None:
        """Starts the sweep that the form describes, in the background; ``wait`` waits for the result (for scripts).

        Raises:
            WorkbenchError: only when waiting: what kept it from starting, or broke it off.
        """
        command = self._run_form(tell=wait)
        if not wait or command is None:
            return None
        job: SweepJob = command.wait()
        result = job.wait()
        self.refresh()
        return result

    def _run_form(self, *, tell: bool) -> Command | None:
        with self._lock:
            if self._job is not None and self._job.running:
                return None
            try:
                plan = self._form.plan()
            except InvalidRequest as error:
                self._progress.value = error_html(error)
                if tell:
                    raise
                return None
            self._stop_event = threading.Event()
            self._choice = None
            self._ended = False
            self._busy(True)
            self._bar.value = 0
            self._bar.bar_style = ""
            self._progress.value = chip("starting …", "busy")
            name = f"start sweep of {plan.model}"
            return self._command(name, lambda: self._start(plan), self._started, self._not_started)

    def _start(self, plan: Plan) -> SweepJob:
        return self.state.start_sweep(
            plan.model,
            plan.grid,
            store=self._store,
            on_progress=self._progressed,
            stop=self._stop_event,
            **plan.load,
        )

    def _started(self, job: SweepJob) -> None:
        self._job = job

    def _not_started(self, error: Exception) -> None:
        self._ended = True
        self._busy(False)
        self._progress.value = error_html(error)

    def stop(self) -> None:
        """Ends the sweep; what was measured is kept, the configuration is restored."""
        self._stop_event.set()
        with self._lock:
            self._stop.disabled = True
            self._progress.value = chip("stopping …", "busy")
        self.state.touch()

    def apply_best(self) -> None:
        """Applies the best configuration under the goal to the running model, in memory."""
        with self._lock:
            choice, job = self._choice, self._job
            if choice is None or job is None:
                return
            point = choice.point
            self._apply_best.disabled = True

            def apply() -> ConfigureResult:
                # the steps of an ensemble have settings of their own
                *first, last = by_model(point.settings, point.model) or (point.model,)
                for model in first:
                    self.server.configure(model, *point.edits(model))
                return self.server.configure(last, *point.edits(last))

            def done(result: ConfigureResult) -> None:
                self._apply_best.disabled = False
                text = f"applied: {result.change_class}, config_epoch {result.epoch}, {result.took_ms:.1f} ms"
                self._best.value = f"{chip(text, 'ok')} {self._best_html()}"

            def failed(error: Exception) -> None:
                self._apply_best.disabled = False
                self._best.value = error_html(error)

            self._command(f"apply to {job.model}", apply, done, failed)

    def _progressed(self, progress: Progress) -> None:
        """Called on the sweep's thread when a point ends."""
        with self._lock:
            if not self._closed and not self._ended:
                self._show_progress(progress)
                self._show_points()

    # ------------------------------------------------------------ showing

    def _form_changed(self) -> None:
        with self._lock:
            self._show_estimate()
            if self.points:
                self._choose()
                self._show_points()

    def _details_changed(self) -> None:
        with self._lock:
            self._show_points()

    def _busy(self, busy: bool) -> None:
        self._run.disabled = busy
        self._stop.disabled = not busy
        self._form.lock(busy)

    def _show(self, snapshot: SessionSnapshot) -> None:
        names = snapshot.models.names
        if list(self._form.model.options) != names:
            kept = self._form.model.value
            self._form.model.options = names
            if kept in names:
                self._form.model.value = kept
        self._show_estimate()
        job = self._job
        if job is not None and job.done and not self._ended:
            self._end(job)
        elif job is None and self._ended:
            self._progress.value = self._progress.value or stale_badge(snapshot)
        self._show_points()

    def _end(self, job: SweepJob) -> None:
        self._ended = True
        self._busy(False)
        self._bar.value = job.progress.done / max(1, job.progress.total)
        if job.error is not None:
            self._bar.bar_style = "danger"
            self._progress.value = error_html(job.error)
        elif job.result is not None:
            tone = status_tone(job.result)
            self._bar.bar_style = {"ok": "success", "warn": "warning"}.get(tone, "danger")
            self._progress.value = status_html(job.result)
        self._choose()

    def _show_progress(self, progress: Progress) -> None:
        self._bar.value = progress.fraction
        left = f"about {duration(progress.eta_s)} left" if math.isfinite(progress.eta_s) else ""
        self._progress.value = f'{progress.done} of {progress.total} points <span class="wb-muted">· {left}</span>'

    def _show_estimate(self) -> None:
        try:
            plan = self._form.plan()
        except InvalidRequest as error:
            self._form.estimate.value = chip(error.message, "bad")
            return
        self._form.estimate.value = estimate_html(plan)

    def _goal(self) -> float | None:
        return float(self._form.goal.value) or None

    def _choose(self) -> None:
        """The best point under the goal as it stands, without measuring anew."""
        try:
            self._choice = choose(self.points, p99_ms=self._goal())
        except InvalidMeasurement as error:
            self._choice = None
            self._best.value = f"{chip('none under the goal', 'warn')} {escape(error.message)}. {escape(error.where)}"
        else:
            self._best.value = self._best_html()
        self._apply_best.disabled = self._choice is None or not self._ended

    def _best_html(self) -> str:
        return best_html(self._choice, self.points, self._goal()) if self._choice is not None else ""

    def _show_points(self) -> None:
        points = self.points
        rows = [point_row(point) for point in points]
        best = None
        if self._choice is not None and self._choice.point in points:
            best = rows[points.index(self._choice.point)]
        empty = (
            "Press Run sweep: points appear here as they are measured" if self._ended else "Measuring the first point …"
        )
        self._curve.show(throughput_latency_info(rows, goal_p99_ms=self._goal(), best=best, empty=empty))
        self._show_details(rows, best)
        run_id = self.result.run_id if self.result is not None else ""
        self._table.value = points_table(points, rows, best, run_id) if rows else ""

    def _show_details(self, rows: Sequence[PointRow], best: PointRow | None) -> None:
        names = list(dict.fromkeys(row.configuration for row in rows))
        options = [AUTO, *names]
        if list(self._shown.options) != options:
            kept = self._shown.value if self._shown.value in options else AUTO
            self._shown.options = options
            self._shown.value = kept
        newest = (best or rows[-1]).configuration if rows else ""
        chosen = self._shown.value if self._shown.value != AUTO else newest
        mine = [row for row in rows if row.configuration == chosen]
        empty = "No point of this configuration could be measured" if mine else "No point measured yet"
        title = f"Where the time goes: {chosen}" if chosen else "Where the time goes"
        self._breakdown.show(breakdown_info(mine, title=title, empty=empty))
        counts: dict[tuple[int, str], int] = {}
        for row in mine:
            for key, count in row.histogram.items():
                counts[key] = counts.get(key, 0) + count
        self._batches.show(batch_histogram_info(counts, title="Batch sizes, all loads", empty=empty))

    def _static(self) -> list[str | Chart]:
        blocks: list[str | Chart] = [self._best.value, self._curve.draw_again()]
        return [*blocks, self._breakdown.draw_again(), self._batches.draw_again(), self._table.value]

    def _text(self) -> str:
        if self.result is not None:
            return repr(self.result)
        return repr(self._job) if self._job is not None else f"no sweep yet on {self.server.name}"
