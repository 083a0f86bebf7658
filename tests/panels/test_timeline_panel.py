"""The panel ``timeline`` without a page: what it follows, what clicks give, what it says where nothing is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from panel_helpers import ask, look, look_away, wait_for

from workbench.errors import InvalidRequest
from workbench.session.kernel import Engine


def click(panel: Any, source: str, key: int) -> None:
    """What the page sends when a glyph is clicked."""
    message = {"type": "select", "id": panel._times.chart.sources[source].id, "key": key}
    panel._times.view._handle_custom_msg(message, [])


def test_it_follows_live_and_holds_still_when_it_is_told_to(server: Engine) -> None:
    panel: Any = server.panel("timeline", model="double", seconds=30)
    assert panel._times.chart.parts["empty"].visible
    look(panel)
    ask(server, 4, threads=3)
    sources = panel._times.chart.sources
    wait_for(lambda: len(sources["requests"].data["seq"]) == 12)
    wait_for(lambda: sum(sources["batches"].data["requests"]) == 12)
    assert not panel._times.chart.parts["empty"].visible
    assert panel._times.chart.title == "Timeline of double"
    assert re.match(r"12 requests, \d+ batches; a request waited \d+\.\d+ ms", panel._times.chart.note)
    assert set(sources["batches"].data["instance"]) == {"double_0_0"}
    assert max(sources["requests"].data["end"]) <= 0, "relative to now"
    panel._follow.value = False
    shown = list(sources["requests"].data["seq"])
    ask(server)
    server.session.poll()
    panel.refresh()
    assert list(sources["requests"].data["seq"]) == shown
    panel._follow.value = True
    wait_for(lambda: len(sources["requests"].data["seq"]) == 13)
    look_away(panel)
    assert not panel.subscribed
    panel.close()


def test_a_click_on_a_request_or_a_batch_shows_a_waterfall(server: Engine) -> None:
    ask(server, 3, threads=4)
    panel: Any = server.panel("timeline", seconds=30)
    look(panel)
    sources = panel._times.chart.sources
    wait_for(lambda: len(sources["requests"].data["seq"]) == 12)
    seq = sources["requests"].data["seq"][5]
    click(panel, "requests", seq)
    wait_for(lambda: panel._falls.chart.title.startswith(f"Request {seq} of double: "))
    assert "on double_0_0 in batch" in panel._falls.chart.note
    assert "queue" in panel._falls.chart.sources["phases"].data["phase"]
    records = server.records()
    batch = int(records.batch_seq.value_counts().index[0])
    inside = records[records.batch_seq == batch]
    slowest = int(inside.seq[(inside.end - inside.arrival).idxmax()])
    click(panel, "batches", batch)
    wait_for(lambda: panel._falls.chart.title.startswith(f"Request {slowest} of"))
    assert f"Request {slowest} of double" in panel.to_html()
    assert f"Request {slowest} of double" in repr(panel)
    look_away(panel)
    panel.close()


def test_a_request_is_found_by_what_is_typed_and_one_that_is_not_is_said(server: Engine) -> None:
    ask(server)
    panel: Any = server.panel("timeline", request=0)
    wait_for(lambda: panel._falls.chart.title.startswith("Request 0 of double"))
    panel._request.value = "nobody<b>"
    wait_for(lambda: "no record of request" in panel._said.value)
    assert "nobody<b>" not in panel._said.value
    panel._request.value = "0"
    wait_for(lambda: panel._said.value == "")
    panel.close()
    with pytest.raises(InvalidRequest, match="seconds must be above 0"):
        server.panel("timeline", seconds=0)


def test_what_came_last_stays_when_nothing_comes_any_more(server: Engine) -> None:
    ask(server, 2)
    panel: Any = server.panel("timeline", model="double", seconds=0.2)

    def idle() -> Any:
        server.session.poll()
        panel.refresh()
        return panel._times.chart.note.startswith("nothing ended for")

    wait_for(idle)
    assert 1 <= len(panel._times.chart.sources["requests"].data["seq"]) <= 2
    assert panel._times.chart.parts["depth"].xaxis[0].axis_label == "time relative to the newest request (ms)"
    panel._model.value = "all models"
    assert panel._times.chart.title == "Timeline of double"
    panel._model.value = "broken"
    assert panel._times.chart.parts["empty"].visible
    panel.close()
