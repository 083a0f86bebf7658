"""Timeline and waterfall as figures: what is drawn of which records, in which place and colour, with units."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from record_helpers import MS, START, Book, busy_instance

from workbench.charts.palette import REASON
from workbench.charts.picture import LEFT, RIGHT, WIDTH, to_svg
from workbench.charts.style import has_unit
from workbench.charts.timeline import draw_timeline, timeline_info, update_timeline
from workbench.charts.waterfall import PHASE_COLOUR, draw_waterfall, update_waterfall
from workbench.records.timeline import timeline_of
from workbench.records.waterfall import waterfall_of

SVG = "{http://www.w3.org/2000/svg}"


def test_batches_are_bars_of_their_instances_in_the_colour_of_their_reason() -> None:
    chart = draw_timeline(timeline_info(timeline_of(busy_instance().columns(), START)))
    figure, sources = chart
    bars: dict[str, Any] = dict(sources["batches"].data)
    columns = (bars[name] for name in ("batch", "left", "right", "row", "colour"))
    place = {batch: rest for batch, *rest in zip(*columns, strict=True)}
    assert place[19] == [9.0, 14.0, 1.5, REASON["delay"]]
    assert place[17] == [0.0, 6.0, 1.5, REASON["full"]]
    assert place[20][2] == 0.5, "m_1 is the lower row"
    assert figure.children[1].yaxis[0].major_label_overrides == {1.5: "m_0", 0.5: "m_1"}
    assert bars["waited"][bars["batch"].index(19)] == pytest.approx((7 + 0.5) / 2)
    dots = sources["requests"].data
    assert dict(zip(dots["seq"], dots["total"], strict=True))[1] == 12.5
    latency, _, queue = figure.children
    for axis in (latency.yaxis[0], queue.yaxis[0], queue.xaxis[0]):
        assert has_unit(axis.axis_label)
    assert "6 requests, 4 batches" in chart.note
    picture = to_svg(chart)
    assert picture.count("<rect") == 4
    assert ">m_0</text>" in picture
    assert f'height="{chart.height}"' in picture


def test_a_picture_ends_where_its_window_does() -> None:
    """Batches that began before it, or end after it, cover neither names nor what is beside."""
    columns = busy_instance().columns()
    timeline = draw_timeline(timeline_info(timeline_of(columns, START + 10 * MS), window_s=0.004))
    picture = ElementTree.fromstring(to_svg(timeline))
    seen = []
    for frame in picture.iter(f"{SVG}svg"):
        for bar in frame.findall(f"{SVG}rect"):
            left, width = float(frame.get("x", 0)), float(frame.get("width", 0))
            assert frame.get("overflow") == "hidden"
            assert frame.get("viewBox") == f"{left:g} 0 {width:g} {frame.get('height')}"  # nothing moves
            assert left >= LEFT - 4
            assert left + width <= WIDTH - RIGHT + 4
            seen.append(float(bar.get("x", 0)) < left)
    assert any(seen), "one begins before the window"
    assert len(seen) == len(list(picture.iter(f"{SVG}rect")))


def test_of_very_many_the_newest_are_drawn_and_the_note_says_so() -> None:
    info = timeline_info(timeline_of(busy_instance().columns(), START), limit=2)
    assert sorted(info.batches["batch"]) == [18, 19]
    assert info.requests["seq"] == [2, 1]
    assert info.note.endswith("drawn: the newest 2")


def test_a_live_one_is_relative_to_now_and_keeps_the_zoom_of_a_hand() -> None:
    columns = busy_instance().columns()
    chart = draw_timeline(timeline_info(timeline_of(columns, START + 20 * MS), window_s=0.05))
    assert list(chart.sources["requests"].data["end"])[-1] == pytest.approx(-5.5)
    x: Any = chart.parts["x"]
    assert (x.start, x.end) == (-50, 0)
    x.update(start=-20, end=-10)
    update_timeline(chart, timeline_info(timeline_of(columns, START + 21 * MS), window_s=0.05))
    assert (x.start, x.end) == (-20, -10)
    update_timeline(chart, timeline_info(timeline_of(columns, START + 21 * MS), window_s=0.1))
    assert (x.start, x.end) == (-100, 0)
    empty = draw_timeline(timeline_info(timeline_of(Book().columns(), START), window_s=1))
    assert empty.parts["empty"].visible
    assert "No request ended here" in to_svg(empty)


def test_a_waterfall_has_a_row_a_bar_and_says_where_the_time_went() -> None:
    data = waterfall_of(busy_instance().columns(), 1)
    chart = draw_waterfall(data)
    drawn = chart.sources["phases"].data
    rows = list(zip(drawn["row"], drawn["phase"], drawn["left"], drawn["right"], drawn["colour"], strict=True))
    assert rows[0] == (3.5, "queue", 0.0, 7.0, PHASE_COLOUR["queue"])
    assert (2.5, "other batch", 0.0, 4.0, PHASE_COLOUR["other batch"]) in rows
    figure: Any = chart.figure
    assert figure.yaxis[0].major_label_overrides == {
        3.5: "1 m", 2.5: "↳ batch 17 on m_0", 1.5: "↳ batch 18 on m_0", 0.5: "2 m",
    }  # fmt: skip
    assert has_unit(figure.xaxis[0].axis_label)
    assert chart.note == data.sentence
    assert "queue" in [entry.label for entry in chart.legend]
    assert to_svg(chart).count("<rect") == len(rows)
    update_waterfall(chart, None)
    assert chart.parts["empty"].visible
    assert "Click on a request" in to_svg(chart)
