"""Which backend is faster, and does it give the same answers: models side by side, measured in turn."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.side_by_side import Bar, SideBySideInfo, draw_side_by_side, update_side_by_side
from workbench.charts.style import Chart
from workbench.errors import InvalidRequest
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.build_form import BuildForm
from workbench.panels.html import chip, escape, number, table
from workbench.panels.live import halves
from workbench.panels.sweep_view import duration
from workbench.tuning.comparing import CompareResult, ModelFigures

if TYPE_CHECKING:
    from workbench.profiling import Point
    from workbench.session.results import ModelTable
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

HEADERS = (
    "model", "backend", "infer/s", "against the reference", "p50 ms", "p95 ms", "p99 ms", "memory MiB", "load s",
    "first request ms", "max |Δ|", "relative", "top-1 the same", "Kendall τ",
)  # fmt: skip


class ComparePanel(Panel):
    """Models side by side. ``result`` is what was found.

    Args:
        server: what is measured.
        models: preset; those of ``result``, else all that are ready where they are not given.
        reference: whose answers are right; the first by default.
        concurrency: preset of the clients.
        store: the directory of the run store; None stores nothing.
        result: shown at once: what ``Server.compare`` gave.
        options: more of ``Server.compare``: ``inputs``, ``metric``, ``output_names`` and so on.
    """

    title = "Compare"

    def __init__(
        self,
        server: Server,
        *,
        models: list[str] | None = None,
        reference: str = "",
        concurrency: int = 4,
        store: str | None = "runs",
        result: CompareResult | None = None,
        **options: Any,
    ) -> None:
        super().__init__(server)
        self._store = store
        self._options = options
        self._result = result
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()
        table = server.session.snapshot().models
        names = table.names
        if result is not None:
            models = models if models is not None else [each.model for each in result.models]
            reference = reference or result.reference
            concurrency = result.load.concurrency or concurrency
        chosen = [name for name in models if name in names] if models is not None else _ready(table)
        self._models = W.SelectMultiple(
            options=names, value=chosen, rows=min(8, max(3, len(names))), layout=W.Layout(width="230px"),
            tooltip="Two or more: Ctrl or Shift with a click",
        )  # fmt: skip
        self._reference = _labelled(W.Dropdown(options=chosen or names, value=None), "reference")
        self._clients = _labelled(W.BoundedIntText(value=concurrency, min=1, max=16384), "clients")
        self._rounds = _labelled(W.BoundedIntText(value=6, min=2, max=100), "rounds")
        self._seconds = _labelled(W.BoundedFloatText(value=1.0, min=0.1, max=600, step=0.5), "seconds a block")
        self._startup = W.Checkbox(
            value=True, description="memory, loading, first request", indent=False,
            tooltip="Takes a server of its own for each model", layout=W.Layout(width="230px"),
        )  # fmt: skip
        self._run = W.Button(description="Compare", button_style="primary", tooltip="Measure the models in turn")
        self._stop = W.Button(description="Stop", tooltip="End it, keep what was measured", disabled=True)
        for button in (self._run, self._stop):
            button.layout = W.Layout(width="auto", min_width="92px", flex="0 0 auto")
        self._bar = W.FloatProgress(
            min=0, max=1, value=0, layout=W.Layout(width="150px", height="18px", flex="0 0 auto", margin="0 0 0 8px")
        )
        self._said = W.HTML(layout=W.Layout(flex="1 1 0", min_width="0"))
        self._said.add_class("wb-status")
        self._table = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._examples = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._speed = self._chart(draw_side_by_side, update_side_by_side, _speed(None))
        self._latency = self._chart(draw_side_by_side, update_side_by_side, _latency(None))
        self._form = BuildForm(server, self._lock, names, self._built)
        self._models.observe(lambda _: self._chosen(), "value")
        self._run.on_click(lambda _: self.run())
        self._stop.on_click(lambda _: self.stop())
        self._chosen()
        if reference in self._reference.options:
            self._reference.value = reference
        if result is not None:
            self._show_result(result)
        self._build(self._children())

    def _children(self) -> list[Any]:
        row = W.Layout(width="100%", align_items="center")
        form = W.VBox(
            [self._models, self._reference, self._clients, self._rounds, self._seconds, self._startup],
            layout=W.Layout(width="236px", flex="0 0 auto"),
        )
        right = W.VBox(
            [
                W.HBox([self._run, self._stop, self._bar, self._said], layout=row),
                halves(self._speed.view, self._latency.view),
            ],
            layout=W.Layout(flex="1 1 0", min_width="0"),
        )
        return [
            W.HBox([form, right], layout=W.Layout(width="100%", overflow="hidden")),
            W.HTML('<div class="wb-rule"></div>'),
            self._table,
            self._examples,
            W.HTML('<div class="wb-rule"></div>'),
            self._form.box,
        ]

    @property
    def result(self) -> CompareResult | None:
        """What was found last."""
        return self._result

    # ------------------------------------------------------------ doing

    def _chosen(self) -> None:
        with self._lock:
            kept, names = self._reference.value, list(self._models.value)
            self._reference.options = names
            self._reference.value = kept if kept in names else names[0] if names else None

    def run(self, *, wait: bool = False) -> CompareResult | None:
        """Starts what the form describes, in the background; ``wait`` waits for the result (for scripts).

        Raises:
            InvalidRequest: only when waiting: fewer than two models are chosen.
        """
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return None
            names = list(self._models.value)
            if len(names) < 2:
                error = InvalidRequest("choose two models or more", hint="Ctrl or Shift with a click")
                self._said.value = error_html(error)
                if wait:
                    raise error
                return None
            self._stop_event = threading.Event()
            self._busy(True)
            self._bar.value, self._bar.bar_style = 0, ""
            self._said.value = chip("asking each model …", "busy")
            self._thread = threading.Thread(target=self._compare, args=(names,), name="workbench-compare", daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()
        return self._result if wait else None

    def stop(self) -> None:
        """Ends it; what was measured is kept."""
        self._stop_event.set()
        with self._lock:
            self._stop.disabled = True
            self._said.value = chip("stopping …", "busy")

    def _compare(self, names: list[str]) -> None:
        try:
            result = self.server.compare(
                names, reference=str(self._reference.value), concurrency=int(self._clients.value),
                rounds=int(self._rounds.value), duration_s=float(self._seconds.value),
                startup=bool(self._startup.value), store=self._store, stop=self._stop_event, on_block=self._progressed,
                **self._options,
            )  # fmt: skip
        except Exception as error:
            with self._lock:
                self._busy(False)
                self._bar.bar_style = "danger"
                self._said.value = error_html(error)
            return
        with self._lock:
            self._result = result
            self._busy(False)
            self._bar.value = 1
            self._bar.bar_style = "warning" if result.stopped else "success"
            self._show_result(result)

    def _built(self, name: str) -> None:
        """A form was built and is loaded: it is one of those to compare."""
        self.refresh()
        with self._lock:
            if name in self._models.options:
                self._models.value = [*self._models.value, name]

    def _busy(self, busy: bool) -> None:
        self._run.disabled = busy
        self._stop.disabled = not busy
        for widget in (
            self._models, self._reference, self._clients, self._rounds, self._seconds, self._startup,
        ):  # fmt: skip
            widget.disabled = busy

    def _progressed(self, done: int, total: int, point: Point) -> None:
        left = (total - done) * (point.load.duration_s + point.load.warmup_s)
        with self._lock:
            if not self._closed and not self._stop_event.is_set():
                self._bar.value = done / max(1, total)
                about = f"about {duration(left)} left" if left else ""
                self._said.value = f'{done} of {total} blocks <span class="wb-muted">· {about}</span>'

    # ------------------------------------------------------------ showing

    def _show(self, snapshot: SessionSnapshot) -> None:
        names = snapshot.models.names
        if list(self._models.options) != names:
            kept = [name for name in self._models.value if name in names]
            self._models.options = names
            self._models.value = kept
            self._form.show(names)
        if self._result is None and not self._run.disabled:
            self._said.value = self._said.value or stale_badge(snapshot)

    def _show_result(self, result: CompareResult) -> None:
        self._said.value = f"{chip('done', 'ok')} {escape(result.verdict)}"
        if result.stopped:
            self._said.value = f"{chip('stopped', 'warn')} {escape(result.verdict)}"
        self._table.value = _table(result)
        self._examples.value = _worst(result)
        self._speed.show(_speed(result))
        self._latency.show(_latency(result))

    # ------------------------------------------------------------ without a page

    def _static(self) -> list[str | Chart]:
        charts = [self._speed.draw_again(), self._latency.draw_again()]
        if self._result is None:
            return [f"Nothing was compared yet. Chosen: {escape(', '.join(self._models.value) or 'none')}.", *charts]
        return [
            self._said.value, *charts, self._table.value,
            self._examples.value,
        ]  # fmt: skip

    def _text(self) -> str:
        return "Compare: nothing was compared" if self._result is None else repr(self._result)


def _ready(table: ModelTable) -> list[str]:
    return [name for name in table.names if any(row.name == name and row.state == "READY" for row in table)]


def _labelled(widget: Any, label: str) -> Any:
    widget.description = label
    widget.layout = W.Layout(width="230px")
    widget.style.description_width = "104px"
    return widget


def _estimates(result: CompareResult | None, names: tuple[str, ...]) -> tuple[Bar, ...]:
    bars = []
    for each in result.models if result is not None else ():
        for name in names:
            found = each.figures[name]
            if not math.isnan(found.value):
                low, high = (found.value if math.isnan(end) else end for end in (found.low, found.high))
                count = sum(point.valid for point in each.blocks)
                bars.append(Bar(each.model, name.removesuffix("_ms"), found.value, low, high, count))
    return tuple(bars)


_NOTE = "bars: geometric mean of the blocks; lines: 95 % interval"


def _speed(result: CompareResult | None) -> SideBySideInfo:
    return SideBySideInfo(
        "Throughput", "model", _estimates(result, ("throughput",)), _NOTE, "throughput (infer/s)", "infer/s", "mean"
    )


def _latency(result: CompareResult | None) -> SideBySideInfo:
    names = ("p50_ms", "p99_ms")  # the table has p95, too: more bars would hide each other's figures
    return SideBySideInfo("Latency", "model (percentile)", _estimates(result, names), _NOTE, middle="mean")


def _table(result: CompareResult) -> str:
    rows = [_row(each, each.model == result.reference) for each in result.models]
    headers: tuple[str, ...] = HEADERS
    own = [each.drift.metric if each.drift is not None else math.nan for each in result.models]
    if not all(map(math.isnan, own)):
        headers = (*HEADERS, "own metric")
        rows = [
            [*row, number(None) if math.isnan(found) else f"{found:.3g}"] for row, found in zip(rows, own, strict=True)
        ]
    notes = [f"{each.model}: {text}" for each in result.models for text in (each.error, *each.notes, each.startup.why)]
    told = "".join(f'<div class="wb-muted">{escape(text)}</div>' for text in notes if not text.endswith(": "))
    return f'<div class="wb-scroll">{table(headers, rows, left=2)}</div>{told}'


def _row(each: ModelFigures, is_reference: bool) -> list[str]:
    speed, found = each.against.get("throughput"), each.drift
    if each.error:
        against = chip("failed", "bad", each.error)
    elif is_reference or speed is None:
        against = chip("reference", "off")
    elif math.isnan(speed.low):
        against = chip("no verdict", "warn", speed.text)
    elif not speed.faster:
        against = chip("too close to call", "off", speed.text)
    else:
        against = chip(f"{1 + speed.change:.2f} ×", "ok" if speed.faster == "B" else "bad", speed.text)
    outputs = found.outputs if found is not None else ()
    top = [output.top_1 for output in outputs if not math.isnan(output.top_1)]
    tau = [output.kendall_tau for output in outputs if not math.isnan(output.kendall_tau)]
    relative = [output.max_rel for output in outputs if not math.isnan(output.max_rel)]
    return [
        escape(each.model),
        escape(each.backend),
        number(each.figures["throughput"].value),
        against,
        *(number(each.figures[name].value, 2) for name in ("p50_ms", "p95_ms", "p99_ms")),
        number(each.startup.memory_mb, 0),
        number(each.startup.load_s, 2),
        number(each.startup.first_ms),
        f"{found.max_abs:.2g}" if found is not None and not math.isnan(found.max_abs) else number(None),
        f"{max(relative):.2g}" if relative else number(None),
        f"{min(top):.1%}" if top else number(None),
        f"{min(tau):.4f}" if tau else number(None),
    ]


def _worst(result: CompareResult) -> str:
    """The worst example of each model, to be opened."""
    parts = []
    for each in result.models:
        if each.drift is not None and not each.error:
            text = escape(repr(result.worst(each.model)))
            head = f"Where {escape(each.model)} differs most"
            parts.append(f'<details><summary>{head}</summary><pre class="wb-mono">{text}</pre></details>')
    return "".join(parts)
