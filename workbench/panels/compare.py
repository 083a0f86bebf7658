"""Which backend is faster, and does it give the same answers: models side by side, measured in turn."""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.side_by_side import Bar, SideBySideInfo, draw_side_by_side, update_side_by_side
from workbench.charts.style import Chart
from workbench.errors import InvalidRequest, NotFound, WorkbenchError
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.build_form import BuildForm
from workbench.panels.html import NONE, chip, escape, number, table, table_of, table_row
from workbench.panels.live import halves
from workbench.panels.sweep_view import duration
from workbench.profiling import Load
from workbench.tuning.compare_result import FIGURES, CompareResult, ModelFigures, estimate_text, shown_figures
from workbench.tuning.comparing import Step
from workbench.tuning.drift import OutputDrift

if TYPE_CHECKING:
    from workbench.profiling import Point
    from workbench.session.results import ModelTable
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

_CLIENTS = "clients"


class ComparePanel(Panel):
    """Models side by side. ``result`` is what was found.

    Args:
        server: what is measured.
        model: whose other forms are looked for: preset are the ready models that take the same inputs, and it as the
            reference.
        models: preset; those of ``result``, else the ready ones that take the same inputs, where they are not given.
        reference: whose answers are right; the first by default.
        concurrency: preset of the clients.
        store: the directory of the run store; None stores nothing.
        result: shown at once: what ``Server.compare`` gave.
        options: more of ``Server.compare``: ``inputs``, ``metric``, ``output_names`` and so on.

    Raises:
        NotFound: a model of ``model`` or ``models`` is not there.
    """

    title = "Compare"

    def __init__(
        self,
        server: Server,
        *,
        model: str = "",
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
        self._load: Any = options.pop("load", None)
        if self._load is None and "rate" not in options and result is not None and result.load.has_open:
            self._load = result.load
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()
        table = server.session.snapshot().models
        names = table.names
        if result is not None:
            models = models if models is not None else [each.model for each in result.models]
            reference = reference or result.reference
            concurrency = result.load.concurrency if result.load.kind == "closed" else concurrency
        for name in (*([model] if model else ()), *(models or ())):
            if name not in names and result is None:
                raise NotFound(f"there is no model '{name}'", hint=f"there are {', '.join(names) or 'none'}")
        if models is None:
            models = _alike(server, table, model)
        chosen, reference = [name for name in models if name in names], reference or model
        self._models = W.SelectMultiple(
            options=names, value=chosen, rows=min(8, max(3, len(names))), layout=W.Layout(width="230px"),
            tooltip="Two or more: Ctrl or Shift with a click",
        )  # fmt: skip
        self._reference = _labelled(W.Dropdown(options=chosen or names, value=None), "reference")
        self._loads = _labelled(W.Dropdown(options=self._load_names(), tooltip="How requests are sent"), "load")
        self._loads.value = self._loads.options[-1]
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
        self._said.add_class("wb-whole")
        self._table = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._examples = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self._speed = self._chart(draw_side_by_side, update_side_by_side, _speed(None))
        self._latency = self._chart(draw_side_by_side, update_side_by_side, _latency(None))
        first = reference or (chosen[0] if chosen else "")
        self._form = BuildForm(server, self._lock, names, self._built, model=first)
        self._models.observe(lambda _: self._chosen(), "value")
        self._loads.observe(lambda _: self._busy(False), "value")
        self._run.on_click(lambda _: self.run())
        self._stop.on_click(lambda _: self.stop())
        self._chosen()
        self._busy(False)
        if reference in self._reference.options:
            self._reference.value = reference
        if result is not None:
            self._show_result(result)
        self._build(self._children())

    def _children(self) -> list[Any]:
        row = W.Layout(width="100%", align_items="center")
        form = W.VBox(
            [*self._fields(), self._startup],
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

    def _fields(self) -> list[Any]:
        loads = [self._loads] if len(self._loads.options) > 1 else []
        return [self._models, self._reference, *loads, self._clients, self._rounds, self._seconds]

    def _load_names(self) -> list[str]:
        """The loads to choose from: clients, and the one that was given."""
        if "rate" in self._options:
            return [_CLIENTS, f"{self._options['rate']:g}/s"]
        return [_CLIENTS] if self._load is None else [_CLIENTS, getattr(self._load, "label", "as given")]

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

    def _of_load(self) -> dict[str, Any]:
        """The load and its blocks as ``Server.compare`` takes them."""
        seconds = float(self._seconds.value)
        if self._loads.value == _CLIENTS:
            rest = {name: option for name, option in self._options.items() if name != "rate"}
            return {**rest, "concurrency": int(self._clients.value), "duration_s": seconds}
        if self._load is None:
            return {**self._options, "duration_s": seconds}
        load = replace(self._load, duration_s=seconds) if isinstance(self._load, Load) else self._load
        return {**self._options, "load": load}

    def _compare(self, names: list[str]) -> None:
        try:
            result = self.server.compare(
                names, reference=str(self._reference.value), rounds=int(self._rounds.value),
                startup=bool(self._startup.value), store=self._store, stop=self._stop_event, show_progress=False,
                on_block=self._progressed, on_step=self._stepped, **self._of_load(),
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
        for widget in (*self._fields(), self._startup):
            widget.disabled = busy
        self._clients.disabled = busy or self._loads.value != _CLIENTS

    def _stepped(self, step: Step) -> None:
        with self._lock:
            if not self._closed and not self._stop_event.is_set():
                self._bar.value = step.done / max(1, step.total)
                self._said.value = f"{chip('busy', 'busy')} {escape(step.text)}"

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
        self._said.value = (
            f'{_state(result)} {escape(result.verdict)} <span class="wb-muted">({escape(result.load.label)})</span>'
        )
        if result.unstored:
            self._said.value += f" {chip('!', 'warn')} {escape(result.unstored)}"
        self._table.value = _tables(result)
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


def _alike(server: Server, table: ModelTable, model: str = "") -> list[str]:
    """The ready models that take inputs of the same types (others cannot be asked the same) as a model, or the most."""
    groups: dict[Any, list[str]] = {}
    for name in table.names:
        if any(row.name == name and row.ready for row in table):
            with contextlib.suppress(WorkbenchError):
                inputs = server.model_config(name).get("input", ())
                types = sorted((str(each.get("data_type")), len(each.get("dims", ()))) for each in inputs)
                groups.setdefault(tuple(types), []).append(name)
    if model:
        return next((names for names in groups.values() if model in names), [model])
    return max(groups.values(), key=len, default=[])


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
    """The figure that decides."""
    if result is not None and result.metric != "throughput":
        bars = _estimates(result, (result.metric,))
        return SideBySideInfo("Mean latency", "model", bars, f"{_NOTE}; the load sets the throughput", middle="mean")
    bars = _estimates(result, ("throughput",))
    return SideBySideInfo("Throughput", "model", bars, _NOTE, "throughput (infer/s)", "infer/s", "mean")


def _latency(result: CompareResult | None) -> SideBySideInfo:
    names = ("p50_ms", "p99_ms")  # the table has p95, too: more bars would hide each other's figures
    return SideBySideInfo("Latency", "model (percentile)", _estimates(result, names), _NOTE, middle="mean")


def _tables(result: CompareResult) -> str:
    """Speed and start of each model; its answers; and what is to be known of them."""
    figures = shown_figures(result.metric)
    headers = [
        "model",
        "backend",
        FIGURES[figures[0]],
        "against the reference",
        *(FIGURES[name] for name in figures[1:]),
    ]
    headers += ["memory MiB", "load s", "first request ms"]
    lines = []
    for each in result.models:
        lines.append(table_row(_row(each, result, figures), left=2))
        told = [f"{chip('!', 'warn')} {escape(text)}" for text in each.problems]
        told += [f'<span class="wb-muted">{escape(text)}</span>' for text in each.remarks]
        lines += [
            f'<tr class="wb-reason"><td class="wb-left" colspan="{len(headers)}">{text}</td></tr>' for text in told
        ]
    parts = [_scrolled(table_of(headers, lines, left=2))]
    answers = [(each, output) for each in result.models if each.drift is not None for output in each.drift.outputs]
    if answers:
        own = any(each.drift is not None and not math.isnan(each.drift.metric) for each in result.models)
        names = [name for name in _ANSWERS if own or name != "own metric"]
        parts.append(_scrolled(table(names, [_answers(each, output, own) for each, output in answers], left=4)))
    return "".join(parts)


def _scrolled(text: str) -> str:
    return f'<div class="wb-wide">{text}</div>'


def _row(each: ModelFigures, result: CompareResult, figures: list[str]) -> list[str]:
    return [
        escape(each.model),
        escape(each.backend),
        estimate_text(each.figures[figures[0]]).replace("-", NONE),
        _against(each, result),
        *(number(each.figures[name].value, 2) for name in figures[1:]),
        number(each.startup.memory_mb, 0),
        number(each.startup.load_s, 2),
        number(each.startup.first_ms),
    ]


def _state(result: CompareResult) -> str:
    """How it ended."""
    if result.error:
        return chip("failed", "bad")
    if result.running:
        return chip("running", "busy")
    if not result.stopped:
        return chip("done", "ok")
    return f"{chip('broken off' if result.interrupted else 'stopped', 'warn')} {escape(result.progress)}:"


def _against(each: ModelFigures, result: CompareResult) -> str:
    """The figure that decides as a multiple of the reference's, or why there is none."""
    found = each.against.get(result.metric)
    if each.error:
        return chip("failed", "bad", each.error)
    if result.running:
        return NONE
    if found is None:
        return chip("reference", "off")
    if math.isnan(found.low):
        return chip("no verdict", "warn", found.text)
    if not found.faster:
        return chip("too close to call", "off", found.text)
    return chip(f"{1 + found.change:.2f} ×", "ok" if found.faster == "B" else "bad", found.text)


_ANSWERS = (
    "model",
    "output",
    "what it is",
    "how it is used: the same?",
    "examples",
    "max\u00a0|\u2060Δ\u2060|",
    "relative",
    "own metric",
)


def _answers(each: ModelFigures, output: OutputDrift, own: bool) -> list[str]:
    found = each.drift
    assert found is not None
    kind = f"{output.kind}: {output.why}" if output.kind else NONE
    metric = [number(None) if math.isnan(found.metric) else f"{found.metric:.3g}"]
    return [
        escape(each.model),
        escape(output.output),
        f'<div class="wb-whole wb-muted">{escape(kind)}</div>',
        f'<div class="wb-whole">{escape(output.used_by)}</div>',
        str(found.examples),
        *(number(None) if math.isnan(x) else f"{x:.2g}" for x in (output.max_abs, output.max_rel)),
        *(metric if own else []),
    ]


def _worst(result: CompareResult) -> str:
    """The worst example of each model, to be opened; a run of the store keeps none."""
    parts = []
    for each in result.models:
        if each.drift is not None and not each.error and each.model in result.answers:
            text = escape(repr(result.worst(each.model)))
            head = f"Where {escape(each.model)} differs most"
            parts.append(f'<details><summary>{head}</summary><pre class="wb-mono">{text}</pre></details>')
    return "".join(parts)
