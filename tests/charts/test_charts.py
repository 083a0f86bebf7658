from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import Axis

from workbench.charts.batches import MAX_BARS, batch_histogram_info, draw_batch_histogram, update_batch_histogram
from workbench.charts.before_after import before_after_info, draw_before_after
from workbench.charts.breakdown import breakdown_info, draw_breakdown, steps_info, update_breakdown
from workbench.charts.palette import QUANTITY, REASON, REASON_LABEL, configuration_style
from workbench.charts.rows import COMPONENTS, PointRow
from workbench.charts.side_by_side import draw_side_by_side, side_by_side_info
from workbench.charts.strips import (
    Series,
    breakdown_strip,
    device_strip,
    draw_strip,
    latency_strip,
    throughput_strip,
    update_strip,
)
from workbench.charts.style import Chart, has_unit
from workbench.charts.throughput_latency import (
    draw_throughput_latency,
    throughput_latency_info,
    update_throughput_latency,
)


def point(configuration: str, load: str, throughput: float, p99_ms: float, **other: Any) -> PointRow:
    parts = {f"{name}_ms": p99_ms / 8 for name in COMPONENTS}
    return PointRow(configuration, load, throughput, p99_ms / 2, p99_ms, **{**parts, **other})


ROWS = [
    point("a", "1", 100.0, 10.0),
    point("a", "8", 300.0, 30.0, valid=False, why_not="the generator lagged"),
    point("a", "16", 350.0, 50.0),
    point("b", "1", 90.0, 12.0),
    point("b", "8", 600.0, 15.0),
]
ROUNDS = [
    {"way": "chain", "p50_ms": 3.0, "p99_ms": 9.0},
    {"way": "ensemble", "p50_ms": 2.0, "p99_ms": 5.0},
    {"way": "chain", "p50_ms": 5.0, "p99_ms": 7.0},
    {"way": "chain", "p50_ms": 3.5, "p99_ms": 8.0},
]
STEPS = {"first": {f"{name}_ms": 1.5 for name in COMPONENTS}, "second": {f"{name}_ms": 0.25 for name in COMPONENTS}}
SECONDS = np.arange(-60.0, 0.1, 0.5)


def all_charts() -> list[Chart]:
    split = {name: np.ones_like(SECONDS) for name in COMPONENTS}
    return [
        draw_throughput_latency(throughput_latency_info(ROWS, goal_p99_ms=20)),
        draw_breakdown(breakdown_info(ROWS)),
        draw_batch_histogram(batch_histogram_info({(1, "delay"): 3, (8, "full"): 9})),
        draw_before_after(before_after_info(ROWS[0], ROWS[-1])),
        draw_side_by_side(side_by_side_info(ROUNDS, "way", ["p50_ms", "p99_ms"], title="Ways")),
        draw_breakdown(steps_info(STEPS, title="Steps"), x_label="step (of a request)"),
        draw_strip(throughput_strip(SECONDS, np.ones_like(SECONDS))),
        draw_strip(latency_strip(SECONDS, {"p50": SECONDS, "p99": SECONDS})),
        draw_strip(breakdown_strip(SECONDS, split)),
        draw_strip(device_strip("CPU", "%", SECONDS, [Series("cpu", "machine", SECONDS)], y_max=100)),
    ]


@pytest.mark.parametrize("chart", all_charts(), ids=lambda chart: chart.title)
def test_every_axis_says_its_unit_and_the_figure_can_be_sent(chart: Chart) -> None:
    axes = list(chart.figure.select({"type": Axis}))
    assert len(axes) >= 2
    assert all(has_unit(axis.axis_label) for axis in axes)
    assert json.dumps(json_item(chart.figure))
    figure, sources = chart
    assert figure is chart.figure
    assert all(len(next(iter(source.data.values()))) for name, source in sources.items() if name != "goal")


def test_ways_side_by_side_show_the_median_and_the_range_of_their_rounds() -> None:
    info = side_by_side_info(ROUNDS, "way", ["p50_ms", "p99_ms"], title="Ways")
    found = {(bar.way, bar.quantity): (bar.low, bar.middle, bar.high, bar.rounds) for bar in info.bars}
    assert found["chain", "p50"] == (3.0, 3.5, 5.0, 3)
    assert found["chain", "p99"] == (7.0, 8.0, 9.0, 3)
    assert found["ensemble", "p50"] == (2.0, 2.0, 2.0, 1)
    chart = draw_side_by_side(info)
    assert list(chart.sources["bars"].data["at"]) == list(found)
    assert list(chart.sources["ranges"].data["ys"][0]) == [3.0, 5.0]
    assert [entry.label for entry in chart.legend] == ["p50", "p99"]
    wide = draw_side_by_side(
        side_by_side_info([*ROUNDS, {"way": "chain", "p50_ms": 900.0}], "way", ["p50_ms"], title="")
    )
    assert max(wide.sources["ranges"].data["ys"][0]) < 10, "bars can be told apart beside a range that goes far"
    assert wide.sources["bars"].data["text"][0].endswith("↑")
    assert wide.sources["bars"].data["high"][0] == 900.0, "what is shown when pointed at"
    empty = draw_side_by_side(side_by_side_info([], "way", ["p50_ms"], title="Ways"))
    assert empty.parts["empty"].visible


def test_steps_show_their_parts_and_say_the_sum_of_each() -> None:
    chart = draw_breakdown(steps_info(STEPS, title="Steps"), x_label="step (of a request)")
    assert list(chart.sources["breakdown"].data["label"]) == ["first", "second"]
    assert list(chart.sources["breakdown"].data["total"]) == [6.0, 1.0]
    assert chart.note == "first 6.0 ms, second 1.0 ms"


def test_lines_leave_out_what_is_not_valid_and_points_show_it_hollow() -> None:
    info = throughput_latency_info(ROWS, goal_p99_ms=20.0, best=ROWS[-1])
    assert [line.configuration for line in info.lines] == ["a", "b"]
    assert info.lines[0].throughput == (100.0, 350.0)
    assert info.lines[0].p99_ms == (10.0, 50.0)
    chart = draw_throughput_latency(info)
    points = chart.sources["points"].data
    hollow = [load for load, fill in zip(points["load"], points["fill"], strict=True) if fill == 0]
    assert hollow == ["8", "8"]
    assert "not valid: the generator lagged" in points["verdict"]
    assert list(points["marker"]).count("star") == 1
    goal: Any = chart.parts["goal"]
    assert goal.visible
    assert goal.location == 20.0
    assert [entry.label for entry in chart.legend] == ["a", "b", "goal: p99 ≤ 20 ms"]


def test_points_that_arrive_later_are_drawn_and_the_words_go_away() -> None:
    chart = draw_throughput_latency(throughput_latency_info([], empty="Press Run sweep"))
    empty: Any = chart.parts["empty"]
    assert empty.visible
    assert empty.text == "Press Run sweep"
    for count in range(1, len(ROWS) + 1):
        update_throughput_latency(chart, throughput_latency_info(ROWS[:count]))
        assert len(chart.sources["points"].data["throughput"]) == 2 * count
    assert not empty.visible
    assert len(chart.sources["lines"].data["xs"]) == 4


def test_an_update_with_the_same_data_changes_nothing() -> None:
    info = throughput_latency_info(ROWS)
    chart = draw_throughput_latency(info)
    before = chart.sources["points"].data
    update_throughput_latency(chart, info)
    assert chart.sources["points"].data is before


def test_two_configurations_never_look_the_same_until_forty_eight() -> None:
    assert len({configuration_style(i) for i in range(48)}) == 48


def test_the_histogram_stacks_by_reason_and_says_the_mean() -> None:
    info = batch_histogram_info({(1, "delay"): 2, (8, "full"): 3, (8, "preferred"): 1, (4, "full"): 0})
    assert info.labels == ("1", "8")
    assert info.counts["full"] == (0, 3)
    assert info.counts["preferred"] == (0, 1)
    assert info.reasons == ("full", "preferred", "delay")
    assert info.mean_rows == pytest.approx((2 * 1 + 4 * 8) / 6)
    chart = draw_batch_histogram(info)
    assert list(chart.sources["batches"].data["total"]) == [2, 4]
    assert [entry.label for entry in chart.legend] == [REASON_LABEL[r] for r in ("full", "preferred", "delay")]
    assert "mean 5.67 rows" in chart.note
    update_batch_histogram(chart, batch_histogram_info({}))
    empty: Any = chart.parts["empty"]
    assert empty.visible
    assert chart.legend == ()


def test_many_batch_sizes_become_ranges_and_no_batch_is_lost() -> None:
    histogram = {(rows, "full"): rows for rows in range(1, 130)}
    info = batch_histogram_info(histogram)
    assert len(info.labels) <= MAX_BARS
    assert info.labels[0] == "1–7"
    assert sum(info.counts["full"]) == sum(histogram.values()) == info.batches


def test_an_unknown_reason_is_counted_not_dropped() -> None:
    assert batch_histogram_info({(2, "unknown"): 5}).batches == 5
    assert batch_histogram_info({(2, "never heard of"): 5}).counts["unknown"] == (5,)


def test_the_breakdown_numbers_loads_that_repeat_and_skips_what_is_not_known() -> None:
    rows = [*ROWS, PointRow("c", "1", 1.0, 1.0, 1.0)]
    info = breakdown_info(rows)
    assert info.labels == ("1", "8", "16", "1 #2", "8 #2")
    chart = draw_breakdown(info)
    assert chart.sources["breakdown"].data["total"][0] == pytest.approx(5.0)
    update_breakdown(chart, breakdown_info([]))
    assert list(chart.sources["breakdown"].data["label"]) == []


def test_a_strip_shows_its_window_and_says_in_words_that_it_is_empty() -> None:
    chart = draw_strip(throughput_strip(SECONDS, np.full_like(SECONDS, np.nan), window_s=30.0))
    empty: Any = chart.parts["empty"]
    assert empty.visible
    assert empty.text == "No request in the last 30 s"
    update_strip(chart, throughput_strip(SECONDS, np.ones_like(SECONDS), window_s=30.0))
    assert not empty.visible
    assert -31.0 <= min(chart.sources["strip"].data["seconds"]) <= -30.0


def test_before_and_after_give_the_ratio() -> None:
    info = before_after_info(ROWS[0], ROWS[-1])
    assert info.throughput_ratio == pytest.approx(6.0)
    assert info.p99_ratio == pytest.approx(1.5)
    assert "throughput × 6.00 (100.0 → 600.0 infer/s)" in info.text


def test_colours_of_one_chart_differ() -> None:
    assert len(set(REASON.values())) == len(REASON)
    assert len({QUANTITY[name] for name in COMPONENTS}) == len(COMPONENTS)
