"""The module of BokehView in a bare page: real BokehJS, a real figure, and messages that tests can hold back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from workbench.panels.bokeh_view import BokehView

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><html><body data-jp-theme-light="true"><div id="above" style="height:0"></div>
<div id="a" style="width:600px"></div><div id="b" style="width:600px"></div></body></html>"""

HARNESS = """async (source) => {
    const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
    const widget = (await import(url)).default();
    window.models = [];
    window.make = (traits, place) => {
        const listeners = [];
        const model = {
            sent: [], listeners,
            get: (name) => traits[name],
            on: (event, callback) => listeners.push([event, callback]),
            off: (event, callback) => {
                const at = listeners.findIndex(([e, c]) => e === event && c === callback);
                if (at >= 0) listeners.splice(at, 1);
            },
            send: (message) => { model.sent.push(message); },
        };
        models.push(model);
        model.stopModel = widget.initialize({model});
        if (place) model.stopView = widget.render({model, el: document.getElementById(place)});
        return models.length - 1;
    };
    window.deliver = (index, message, buffers) => {
        const views = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
        const callbacks = models[index].listeners.filter(([event]) => event === 'msg:custom').map(([, call]) => call);
        for (const callback of callbacks) callback(message, views);
    };
}"""


class Bench:
    """A page with the module in it, and views in Python whose messages this carries when told to."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.views: list[BokehView] = []
        self.outgoing: list[list[tuple[dict[str, Any], list[bytes]]]] = []
        page.set_content(PAGE)
        page.evaluate(HARNESS, str(BokehView._esm))

    def show(self, view: BokehView, place: str) -> int:
        sent: list[tuple[dict[str, Any], list[bytes]]] = []
        view.send = lambda content, buffers=None: sent.append((content, buffers or []))
        self.views.append(view)
        self.outgoing.append(sent)
        names = ("_bokeh_version", "_height", "_label", "_watch", "_header", "_select")
        traits = {name: getattr(view, name) for name in names}
        return int(self.page.evaluate("([traits, place]) => make(traits, place)", [traits, place]))

    def sent_by_page(self, index: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.page.evaluate("(i) => models[i].sent.splice(0)", index)
        return found

    def carry(self, rounds: int = 4) -> None:
        """Takes messages both ways until both sides are quiet."""
        for _ in range(rounds):
            for index, view in enumerate(self.views):
                for message in self.sent_by_page(index):
                    view._handle_custom_msg(message, [])
                self.deliver(index)
            self.page.wait_for_timeout(60)

    def deliver(self, index: int) -> None:
        """Hands over all that Python has sent, at once."""
        packed = [
            [json.loads(json.dumps(content)), [base64.b64encode(b).decode() for b in buffers]]
            for content, buffers in self.outgoing[index]
        ]
        self.outgoing[index].clear()
        self.page.evaluate("([i, all]) => { for (const [m, b] of all) deliver(i, m, b); }", [index, packed])

    def drawn(self, place: str) -> None:
        self.page.wait_for_selector(f"#{place}[data-state=drawn]", timeout=10_000)

    def data(self, place: str) -> dict[str, str]:
        found: dict[str, str] = self.page.evaluate("(id) => ({...document.getElementById(id).dataset})", place)
        return found


@pytest.fixture
def bench(page: Any) -> Iterator[Bench]:
    yield Bench(page)
    assert page.seen.errors == []
    assert page.seen.external == []


def line() -> tuple[BokehView, ColumnDataSource]:
    source = ColumnDataSource({"x": [0.0], "y": [0.0]})
    fig = figure(height=120, sizing_mode="stretch_width", x_axis_label="time (s)", y_axis_label="latency (ms)")
    fig.line("x", "y", source=source)
    return BokehView(fig, watch=[fig.x_range]), source


def draw(bench: Bench, place: str) -> tuple[int, BokehView, ColumnDataSource]:
    view, source = line()
    index = bench.show(view, place)
    bench.carry(8)
    bench.drawn(place)
    return index, view, source


def test_two_charts_share_one_library_and_rows_arrive_in_order(bench: Bench) -> None:
    view, source = line()
    other, _ = line()
    bench.show(view, "a")
    bench.show(other, "b")
    asked = [m for i in (0, 1) for m in bench.page.evaluate("(i) => models[i].sent", i) if m["type"] == "lib?"]
    assert len(asked) == 1
    bench.carry(10)
    bench.drawn("a")
    bench.drawn("b")
    assert json.loads(bench.data("a")["axes"]) == ["time (s)", "latency (ms)"]
    for i in range(1, 6):
        view.update(lambda i=i: source.stream({"x": np.array([float(i)]), "y": np.array([2.0 * i])}, 4))
    bench.deliver(0)
    bench.page.wait_for_function("() => document.getElementById('a').dataset.seq === '5'")
    assert bench.data("a")["frames"] == "1"  # drawn together, not one by one
    assert list(source.data["x"]) == [2.0, 3.0, 4.0, 5.0]


def test_if_the_widget_that_asked_for_the_library_goes_away_the_next_one_asks(bench: Bench) -> None:
    bench.page.clock.install()
    first, _ = line()
    second, _ = line()
    gone = bench.show(first, "a")
    waiting = bench.show(second, "b")
    assert [m["type"] for m in bench.sent_by_page(gone)] == ["lib?"]
    bench.page.evaluate("(i) => { models[i].stopView(); models[i].stopModel(); }", gone)
    assert bench.sent_by_page(waiting) == []
    bench.page.clock.run_for(5000)
    assert [m["type"] for m in bench.sent_by_page(waiting)] == ["lib?"]
    assert "Waiting for the kernel" in bench.page.locator("#b").inner_text()
    second._handle_custom_msg({"type": "lib?"}, [])
    bench.deliver(waiting)
    bench.page.clock.resume()
    bench.carry(8)
    bench.drawn("b")


def test_a_chart_off_screen_keeps_little_and_asks_for_everything_when_it_is_seen(bench: Bench) -> None:
    index, view, source = draw(bench, "a")
    bench.page.evaluate("() => { document.getElementById('above').style.height = '4000px'; }")
    bench.page.wait_for_timeout(200)
    frames = bench.data("a").get("frames")
    for i in range(200):
        view.update(lambda i=i: source.stream({"x": np.array([float(i)]), "y": np.array([1.0])}, 50))
    bench.deliver(index)
    bench.page.wait_for_timeout(200)
    assert bench.data("a").get("frames") == frames  # nothing is drawn that nobody sees
    bench.page.evaluate("() => { document.getElementById('above').style.height = '0'; }")
    bench.page.wait_for_timeout(200)
    assert [m["type"] for m in bench.page.evaluate("(i) => models[i].sent", index)] == ["ready"]
    bench.carry()
    bench.drawn("a")


def test_zooming_is_told_to_python_and_its_own_changes_are_not_sent_back(bench: Bench) -> None:
    index, view, source = draw(bench, "a")
    view.update(lambda: source.stream({"x": np.array([10.0]), "y": np.array([1.0])}))
    bench.deliver(index)
    bench.page.wait_for_timeout(250)
    assert bench.sent_by_page(index) == []
    box = bench.page.locator("#a canvas").first.bounding_box()
    bench.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    bench.page.mouse.down()
    bench.page.mouse.move(box["x"] + box["width"] / 2 + 90, box["y"] + 40, steps=5)
    bench.page.mouse.up()
    bench.page.wait_for_timeout(250)
    told = bench.sent_by_page(index)
    assert told
    assert {m["type"] for m in told} == {"range"}
    assert told[-1]["start"] < 0


def test_a_click_tells_the_key_of_what_was_clicked_again_and_again(bench: Bench) -> None:
    source = ColumnDataSource({"left": [0.0], "right": [1.0], "key": [3_000_000_017]})
    fig = figure(height=120, sizing_mode="stretch_width", tools="tap")
    fig.hbar(y=0.5, left="left", right="right", height=1, source=source)
    clicked: list[tuple[str, Any]] = []
    view = BokehView(fig, select={str(source.id): "key"}, on_select=lambda *told: clicked.append(told))
    index = bench.show(view, "a")
    bench.carry(8)
    bench.drawn("a")
    box = bench.page.locator("#a canvas").first.bounding_box()
    for number in (1, 2):
        bench.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 50)
        bench.page.wait_for_timeout(400)
        bench.carry()
        assert clicked == [(str(source.id), 3_000_000_017)] * number
    view._handle_custom_msg({"type": "select", "id": "another", "key": 1}, [])
    assert len(clicked) == 2
    assert bench.sent_by_page(index) == []


def test_theme_follows_the_page_and_cleaning_up_says_goodbye(bench: Bench) -> None:
    index, view, _ = draw(bench, "a")
    assert bench.data("a")["theme"] == "light"
    bench.page.evaluate("() => { document.body.dataset.jpThemeLight = 'false'; }")
    bench.page.wait_for_selector("#a[data-theme=dark]", timeout=5000)
    bench.page.evaluate("(i) => { models[i].stopView(); models[i].stopModel(); }", index)
    assert bench.page.evaluate("(i) => models[i].listeners.length", index) == 0
    bench.carry()
    assert view.views == 0
    assert bench.page.locator("#a canvas").count() == 0
