from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import numpy as np
import pytest
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from workbench.panels.bokeh_view import BokehView, bokehjs_gzip


class Wire:
    """What a view sends, as the page would get it."""

    def __init__(self, view: BokehView) -> None:
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        self.view = view
        view.send = lambda content, buffers=None: self.sent.append((json.loads(json.dumps(content)), buffers or []))

    def page_says(self, **message: Any) -> None:
        self.view._handle_custom_msg(message, [])

    def take(self) -> list[tuple[dict[str, Any], list[bytes]]]:
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def source() -> ColumnDataSource:
    return ColumnDataSource({"x": [0.0], "y": [0.0], "name": ["a"]})


@pytest.fixture
def view(source: ColumnDataSource) -> BokehView:
    fig = figure(height=200)
    fig.line("x", "y", source=source)
    return BokehView(fig, label="a line", watch=[fig.x_range])


def test_nothing_is_sent_before_somebody_looks(view: BokehView, source: ColumnDataSource) -> None:
    wire = Wire(view)
    source.data = {"x": [1.0], "y": [2.0], "name": ["b"]}
    view.flush()
    assert wire.take() == []
    wire.page_says(type="ready", view="v1")
    ((snapshot, _),) = wire.take()
    assert snapshot["type"] == "snap"
    assert snapshot["view"] == "v1"
    assert "2.0" in json.dumps(snapshot["item"])


def test_the_library_comes_from_the_installed_package_when_asked_for(view: BokehView) -> None:
    wire = Wire(view)
    wire.page_says(type="lib?")
    ((answer, buffers),) = wire.take()
    assert answer == {"type": "lib"}
    assert b"Bokeh" in gzip.decompress(buffers[0])
    assert len(bokehjs_gzip()) < 500_000


def test_streamed_numbers_go_as_one_binary_frame(view: BokehView) -> None:
    numbers = ColumnDataSource({"x": [], "y": []})
    view.figure.line("x", "y", source=numbers)
    wire = Wire(view)
    wire.page_says(type="ready", view="v")
    wire.take()
    numbers.stream({"x": np.array([1.0, 2.0]), "y": np.array([3, 4])}, 100)
    numbers.stream({"x": np.array([5.0]), "y": np.array([6.0])}, 100)
    view.flush()
    ((message, buffers),) = wire.take()
    assert message["type"] == "s"
    assert [(p["id"], p["cols"], p["n"], p["roll"]) for p in message["parts"]] == [
        (numbers.id, ["x", "y"], 2, 100),
        (numbers.id, ["x", "y"], 1, 100),
    ]
    assert list(np.frombuffer(buffers[0])) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_order_between_the_two_kinds_is_kept(view: BokehView, source: ColumnDataSource) -> None:
    numbers = ColumnDataSource({"x": [], "y": []})
    view.figure.line("x", "y", source=numbers)
    wire = Wire(view)
    wire.page_says(type="ready", view="v")
    first = wire.take()[0][0]["seq"]
    numbers.stream({"x": [1.0], "y": [1.0]})
    view.figure.height = 300
    numbers.stream({"x": [2.0], "y": [2.0]})
    view.flush()
    sent = [message for message, _ in wire.take()]
    assert [message["type"] for message in sent] == ["s", "p", "s"]
    assert [message["seq"] for message in sent] == [first + 1, first + 2, first + 3]


def test_text_columns_and_models_go_as_a_patch_whose_events_are_a_list(
    view: BokehView, source: ColumnDataSource
) -> None:
    wire = Wire(view)
    wire.page_says(type="ready", view="v")
    wire.take()
    source.stream({"x": [1.0], "y": [1.0], "name": ["ü"]})
    source.data = {"x": np.arange(4.0), "y": np.arange(4.0), "name": list("abcd")}
    view.flush()
    ((message, buffers),) = wire.take()
    assert message["type"] == "p"
    patch = json.loads(message["patch"])
    assert [event["kind"] for event in patch["events"]] == ["ColumnsStreamed", "ColumnDataChanged"]
    assert len(message["ids"]) == len(buffers) == 2
    assert all(f'{{"id":"{name}"}}' in message["patch"] for name in message["ids"])
    assert all(isinstance(buffer, bytes) for buffer in buffers)


def test_a_late_second_view_gets_what_the_first_has_and_the_first_loses_nothing(
    view: BokehView, source: ColumnDataSource
) -> None:
    wire = Wire(view)
    wire.page_says(type="ready", view="v1")
    wire.take()
    source.data = {"x": [7.5], "y": [7.5], "name": ["late"]}
    wire.page_says(type="ready", view="v2")
    patch, snapshot = (message for message, _ in wire.take())
    assert patch["type"] == "p"  # for the first view, before the second one's snapshot
    assert snapshot["type"] == "snap"
    assert snapshot["seq"] == patch["seq"]
    assert view.views == 2


def test_after_goodbye_nothing_is_sent_or_kept(view: BokehView, source: ColumnDataSource) -> None:
    wire = Wire(view)
    wire.page_says(type="ready", view="v")
    wire.page_says(type="bye", view="v")
    wire.take()
    source.data = {"x": [1.0], "y": [1.0], "name": ["n"]}
    view.flush()
    assert wire.take() == []
    assert view.views == 0


def test_zooming_asks_python_for_the_range_and_sends_what_it_changed(source: ColumnDataSource) -> None:
    fig = figure(height=200)
    fig.line("x", "y", source=source)
    seen: list[tuple[str, float, float]] = []

    def on_range(range_id: str, start: float, end: float) -> None:
        seen.append((range_id, start, end))
        source.data = {"x": [start], "y": [end], "name": ["n"]}

    view = BokehView(fig, watch=[fig.x_range], on_range=on_range)
    wire = Wire(view)
    wire.page_says(type="ready", view="v")
    wire.take()
    wire.page_says(type="range", id=fig.x_range.id, start=1, end=2)
    wire.page_says(type="range", id="someone else's", start=1, end=2)
    wire.page_says(type="range", id=fig.x_range.id, start=None, end=None)
    assert seen == [(fig.x_range.id, 1.0, 2.0)]
    assert [message["type"] for message, _ in wire.take()] == ["p"]


def test_closing_frees_the_figure_for_another_view(view: BokehView, source: ColumnDataSource) -> None:
    with pytest.raises(RuntimeError, match="owned by only a single document"):
        BokehView(view.figure)
    view.close()
    view.close()
    again = BokehView(view.figure)
    wire = Wire(again)
    wire.page_says(type="ready", view="v")
    assert wire.take()[0][0]["type"] == "snap"


def test_updates_from_many_threads_are_all_sent_once_and_in_order(view: BokehView) -> None:
    numbers = ColumnDataSource({"x": [], "y": []})
    view.figure.line("x", "y", source=numbers)
    wire = Wire(view)
    wire.page_says(type="ready", view="v")
    wire.take()

    def add(start: int) -> None:
        for i in range(50):
            view.update(lambda i=i: numbers.stream({"x": [float(start + i)], "y": [0.0]}))

    threads = [threading.Thread(target=add, args=(100 * k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sent = wire.take()
    assert [m["seq"] for m, _ in sent] == sorted({m["seq"] for m, _ in sent})
    xs = [float(np.frombuffer(b[0])[0]) for _, b in sent]
    assert sorted(xs) == sorted(float(100 * k + i) for k in range(4) for i in range(50))
    assert xs == list(numbers.data["x"])


def test_the_saved_notebook_holds_neither_library_nor_data(view: BokehView) -> None:
    data, *_ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == "<chart: a line>"
    assert len(json.dumps(view.get_state(), default=str)) < 25_000
