"""Requests and batches over some seconds: latency of each request, what instances executed and why, who waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, FixedTicker

from workbench.charts.palette import BLUE as OK
from workbench.charts.palette import CONFIGURATION, REASON, REASON_LABEL, VERMILION
from workbench.charts.style import Chart, Columns, Frame, LegendEntry, add_empty_text, add_hover, make_figure, models
from workbench.records.timeline import TimelineData
from workbench.records.waiting import queue_depth, short_number

MAX_BARS = 4000
"""Batches, and requests, in one chart: more are painted too slowly."""
LABEL_LETTERS = 15
LEFT = 108
DOTS_HEIGHT, DEPTH_HEIGHT, ROW_HEIGHT = 118, 126, 24
_BATCH = (
    "left",
    "right",
    "row",
    "colour",
    "batch",
    "instance",
    "rows",
    "requests",
    "reason",
    "waited",
    "ran",
    "batch_seq",
)
_REQUEST = ("end", "total", "colour", "request", "model", "status", "waited", "ran", "where", "seq")
_DEPTH = ("xs", "ys", "line_color", "model")


@dataclass(frozen=True, slots=True)
class TimelineInfo:
    """What is drawn: columns in ms of time, and the row of each instance, from above.

    ``low`` and ``high`` are the ends of the time axis; ``seq`` of each dot and ``batch_seq`` of each bar are those of
    the records.
    """

    title: str
    note: str
    x_label: str
    low: float
    high: float
    rows: tuple[str, ...]
    batches: Columns
    requests: Columns
    depth: Columns
    legend: tuple[LegendEntry, ...]
    empty: str

    @property
    def height(self) -> int:
        """Pixels."""
        return DOTS_HEIGHT + self.rows_height + DEPTH_HEIGHT

    @property
    def rows_height(self) -> int:
        """Pixels of the part with the instances."""
        return 30 + ROW_HEIGHT * max(2, len(self.rows))


def timeline_info(data: TimelineData, *, window_s: float | None = None, limit: int = MAX_BARS) -> TimelineInfo:
    """What a timeline looks like.

    Args:
        data: the records.
        window_s: with it the time axis ends now and begins so long before; without it, it is that of the records and
            begins at 0.
        limit: batches and requests shown at most, the newest; the note says what is left out.
    """
    batches, requests = data.batches, data.requests
    newest = np.argsort(batches["done"], kind="stable")[-limit:]
    ended = np.argsort(requests["end"], kind="stable")[-limit:]
    cut = len(newest) < len(batches["done"]) or len(ended) < len(requests["end"])
    stamps = np.concatenate([batches["acquired"][newest], requests["arrival"][ended]])
    if window_s is not None:
        zero, low, high = data.now_ns, -1000.0 * window_s, 0.0
    else:
        zero = int(stamps.min()) if len(stamps) else data.now_ns
        low, high = 0.0, max(1.0, (data.span_ns[1] - zero) / 1e6)
    rows = {key: place for place, key in enumerate(data.instances)}
    waits = data.waits
    several = len({model for model, _ in rows}) > 1
    reasons = [reason for reason in REASON if reason in set(batches["reason"][newest].tolist())]
    legend = [LegendEntry(REASON_LABEL[reason], REASON[reason]) for reason in reasons]
    depth = _depth_columns(data, zero, low)
    if several:
        legend += [LegendEntry(f"waiting: {name}", colour, "line")
                   for name, colour in zip(depth["model"], depth["line_color"], strict=True)]  # fmt: skip
    note = f"{len(requests['seq']):,} requests, {len(batches['done']):,} batches"
    if len(requests["seq"]):
        note += f"; a request waited {(waits.busy + waits.free).mean() / 1e6:.2f} ms on average"
        whole = float((waits.busy + waits.free).sum())
        if whole:
            note += f", {waits.busy.sum() / whole:.0%} of it for a busy instance"
    if cut:
        note += f"; drawn: the newest {max(len(newest), len(ended)):,}"
    return TimelineInfo(
        title=_title(data),
        note=note,
        x_label="time relative to now (ms)" if window_s is not None else "time (ms)",
        low=low,
        high=high,
        rows=tuple(_shortened(label) for _, label in rows),
        batches=_batch_columns(data, newest, rows, zero),
        requests=_request_columns(data, ended, zero),
        depth=depth,
        legend=tuple(legend),
        empty="No request ended here",
    )


def _title(data: TimelineData) -> str:
    names = [data.model] if data.model else sorted(set(data.requests["model"].tolist()))
    if not names:
        return "Timeline"
    return f"Timeline of {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def _shortened(label: str) -> str:
    return label if len(label) <= LABEL_LETTERS else f"{label[: LABEL_LETTERS - 6]}…{label[-5:]}"


def _batch_columns(data: TimelineData, chosen: Any, rows: dict[tuple[str, str], int], zero: int) -> Columns:
    batches, waits = data.batches, data.waits
    waited, count = np.zeros(len(batches["done"])), np.zeros(len(batches["done"]))
    known = waits.batch >= 0
    np.add.at(waited, waits.batch[known], ((waits.busy + waits.free) / 1e6)[known])
    np.add.at(count, waits.batch[known], 1)
    models_of, instances = batches["model"][chosen].tolist(), batches["instance"][chosen].tolist()
    place = [rows[key] for key in zip(models_of, instances, strict=True)]
    reasons = batches["reason"][chosen].tolist()
    return {
        "left": (batches["acquired"][chosen] - zero) / 1e6,
        "right": (batches["done"][chosen] - zero) / 1e6,
        "row": [len(rows) - 0.5 - at for at in place],
        "colour": [REASON.get(reason, REASON["unknown"]) for reason in reasons],
        "batch": [short_number(number) for number in batches["batch_seq"][chosen].tolist()],
        "instance": instances,
        "rows": batches["rows"][chosen].tolist(),
        "requests": batches["requests"][chosen].tolist(),
        "reason": [REASON_LABEL.get(reason, reason) for reason in reasons],
        "waited": waited[chosen] / np.maximum(count[chosen], 1),
        "ran": (batches["done"][chosen] - batches["acquired"][chosen]) / 1e6,
        "batch_seq": batches["batch_seq"][chosen].tolist(),
    }


def _request_columns(data: TimelineData, chosen: Any, zero: int) -> Columns:
    requests, waits = data.requests, data.waits
    status = requests["status"][chosen].tolist()
    ran = np.maximum(requests["compute_end"] - requests["compute_start"], 0)
    numbers, ids = requests["seq"][chosen].tolist(), requests["request_id"][chosen].tolist()
    return {
        "end": (requests["end"][chosen] - zero) / 1e6,
        "total": (requests["end"] - requests["arrival"])[chosen] / 1e6,
        "colour": [OK if each == "ok" else VERMILION for each in status],
        "request": [f"{seq} {name[:40]}".strip() for seq, name in zip(numbers, ids, strict=True)],
        "model": requests["model"][chosen].tolist(),
        "status": [each.lower() for each in status],
        "waited": (waits.busy + waits.free)[chosen] / 1e6,
        "ran": ran[chosen] / 1e6,
        "where": requests["instance"][chosen].tolist(),
        "seq": numbers,
    }


def _depth_columns(data: TimelineData, zero: int, low: float) -> Columns:
    """Steps: each change is two points."""
    out: Columns = {name: [] for name in _DEPTH}
    for index, (model, (times, depth)) in enumerate(sorted(queue_depth(data.requests, data.waits).items())):
        at = (times[-2 * MAX_BARS :] - zero) / 1e6
        level = depth[-2 * MAX_BARS :]
        before = np.concatenate([[level[0] if len(at) < len(times) else 0], level[:-1]])
        xs, ys = np.repeat(at, 2), np.column_stack([before, level]).ravel()
        shown = xs >= low
        out["xs"].append(xs[shown].tolist())
        out["ys"].append(ys[shown].tolist())
        out["line_color"].append(CONFIGURATION[index % len(CONFIGURATION)])
        out["model"].append(model)
    return out


def draw_timeline(info: TimelineInfo) -> Chart:
    """Three figures with one time axis, and their sources ``requests``, ``batches`` and ``depth``."""
    x_range = models.Range1d(info.low, info.high)
    tools = "xpan,xwheel_zoom,xbox_zoom,reset,tap"
    dots = make_figure(Frame("", "latency (ms)", DOTS_HEIGHT, x_range=x_range, tools=tools))
    bars = make_figure(Frame("", "", info.rows_height, x_range=x_range, y_max=1, tools=tools))
    depth = make_figure(Frame(info.x_label, "queue (reqs)", DEPTH_HEIGHT, x_range=x_range, tools=tools))
    for fig in (dots, bars, depth):
        fig.min_border_left = LEFT
        fig.min_border_top = 6
        fig.min_border_bottom = 8
        fig.lod_threshold = None  # with it bars turn grey and vanish while a hand moves them
    dots.xaxis.visible = bars.xaxis.visible = False
    bars.yaxis.axis_label = "instance"
    bars.ygrid.grid_line_color = None
    sources = {
        "requests": ColumnDataSource({name: [] for name in _REQUEST}),
        "batches": ColumnDataSource({name: [] for name in _BATCH}),
        "depth": ColumnDataSource({name: [] for name in _DEPTH}),
    }
    dot = dots.scatter(
        "end", "total", source=sources["requests"], size=5, fill_color="colour", line_color="colour", fill_alpha=0.55,
        nonselection_fill_alpha=0.55, nonselection_line_alpha=1,
    )  # fmt: skip
    bar = bars.hbar(
        y="row", left="left", right="right", height=0.72, source=sources["batches"], fill_color="colour",
        line_color="#ffffff", line_width=0.5, nonselection_fill_alpha=1, nonselection_line_alpha=1,
    )  # fmt: skip
    line = depth.multi_line("xs", "ys", source=sources["depth"], line_color="line_color", line_width=1.5)
    parts = [("waited", "@waited{0,0.00} ms"), ("ran", "@ran{0,0.00} ms")]
    about = [("request", "@request"), ("model", "@model @where"), ("latency", "@total{0,0.00} ms"), *parts]
    add_hover(dots, [dot], [*about, ("status", "@status")])
    in_it = [("batch", "@batch on @instance"), ("in it", "@requests requests, @rows rows"), ("left because", "@reason")]
    add_hover(bars, [bar], [*in_it, ("its requests waited", "@waited{0,0.00} ms"), ("ran", "@ran{0,0.00} ms")])
    add_hover(depth, [line], [("model", "@model"), ("waiting", "$y{0,0}")])
    whole = column(dots, bars, depth, sizing_mode="stretch_width", spacing=0)
    empty = add_empty_text(bars, info.empty)
    chart = Chart(
        whole, sources, info.title, info.height,
        parts={"empty": empty, "x": x_range, "bars": bars, "depth": depth},
    )  # fmt: skip
    update_timeline(chart, info)
    return chart


def update_timeline(chart: Chart, info: TimelineInfo) -> None:
    """Brings a drawn chart up to date; what a hand has zoomed to stays, unless the window is another one."""
    x_range: Any = chart.parts["x"]
    if (x_range.reset_start, x_range.reset_end) != (info.low, info.high):
        x_range.update(start=info.low, end=info.high, reset_start=info.low, reset_end=info.high)
    bars: Any = chart.parts["bars"]
    count = max(1, len(info.rows))
    labels = {count - 0.5 - index: label for index, label in enumerate(info.rows)}
    axis = bars.yaxis[0]
    if axis.major_label_overrides != labels or bars.y_range.end != count:
        axis.ticker = FixedTicker(ticks=sorted(labels))
        axis.major_label_overrides = labels
        bars.y_range.end = count
        bars.height = info.rows_height
    below: Any = chart.parts["depth"]
    below.xaxis.axis_label = info.x_label
    chart.title, chart.note, chart.legend, chart.height = info.title, info.note, info.legend, info.height
    for name in ("requests", "batches", "depth"):
        chart.fill(name, getattr(info, name))
    empty: Any = chart.parts["empty"]
    empty.visible = not info.batches["batch_seq"] and not info.requests["seq"]
