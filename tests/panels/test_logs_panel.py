"""The panel ``logs`` without a page: what it shows, what its filters do, and what a click gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from panel_helpers import wait_for, write_model

from workbench.errors import InvalidRequest, WorkbenchError
from workbench.panels.logs import as_request
from workbench.session.kernel import Engine

CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            pb_utils.Logger.log_info(f"<script>asked</script> {x[0, 0]:g}")
            if x[0, 0] < 0:
                raise ValueError("<b>below zero</b>")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
        return answers
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Engine]:
    write_model(tmp_path / "repository", "talks", code=CODE)
    write_model(tmp_path / "repository", "double")
    engine = Engine(tmp_path / "repository")
    yield engine
    engine.close()


def ask(server: Engine, value: float, id: str) -> None:
    try:
        server.infer("talks", {"IN": np.array([[value, 0]], np.float32)}, id=id)
    except WorkbenchError:
        assert value < 0


class Page:
    """A page that shows the panel: what the list has been sent."""

    def __init__(self, panel: Any) -> None:
        self.panel = panel
        self.rows: dict[str, dict[str, Any]] = {}
        self.messages = 0
        panel._list.send = self._take
        self.say(type="ready", view="v")

    def _take(self, message: dict[str, Any], buffers: Any = None) -> None:
        self.messages += 1
        if message["reset"]:
            self.rows.clear()
        self.rows.update({row["k"]: row for row in message["rows"]})

    def say(self, **message: Any) -> None:
        self.panel._list._handle_custom_msg(message, [])

    def texts(self) -> list[str]:
        return [row["x"] for row in sorted(self.rows.values(), key=lambda row: row["n"])]


def test_it_follows_live_and_sends_only_what_is_new(server: Engine) -> None:
    panel = server.panel("logs", model="talks")
    page = Page(panel)
    assert panel.subscribed
    ask(server, 1, "first")
    wait_for(lambda: any(text.startswith("ok in") for text in page.texts()))
    assert "<script>asked</script> 1" in page.texts(), "the page makes text of it, not HTML"
    row = next(row for row in page.rows.values() if "asked" in row["x"])
    wait_for(lambda: page.rows[row["k"]]["r"].endswith(" ms"))
    assert row["q"] == '0 "first"'
    assert row["w"] == "model.py:10"
    sent = page.messages
    server.session.poll()
    panel.refresh()
    assert page.messages == sent, "nothing new, nothing sent"
    panel._follow.value = False
    ask(server, 2, "second")
    server.session.poll()
    panel.refresh()
    assert page.messages == sent
    assert "paused" in panel._head.value
    panel._follow.value = True
    wait_for(lambda: "<script>asked</script> 2" in page.texts())
    page.say(type="bye", view="v")
    assert not panel.subscribed
    panel.close()


def test_filters_make_another_list_and_a_wrong_one_is_said(server: Engine) -> None:
    for value, id in ((1, "good"), (-1, "bad")):
        ask(server, value, id)
    panel = server.panel("logs")
    page = Page(panel)
    wait_for(lambda: len([row for row in page.rows.values() if row["s"] == "request"]) == 2)
    panel._request.value = "bad"
    assert {row["q"] for row in page.rows.values()} == {'1 "bad"'}
    (error,) = [row for row in page.rows.values() if row["s"] == "error"]
    assert 'raise ValueError("<b>below zero</b>")' in error["b"]
    assert error["f"]
    panel._request.value, panel._words.value = "", "nothing says this"
    assert page.rows == {}
    assert panel._list._empty == "No line fits these filters."
    panel._words.value, panel._level.value = "", "error"
    assert {row["l"] for row in page.rows.values()} == {"error"}
    panel._slower.value = "fast"
    assert "fast&#x27; is no time" in panel._head.value
    panel.refresh()
    assert "fast&#x27; is no time" in panel._head.value, "until it is mended"
    panel._slower.value = "100000"
    assert "is no time" not in panel._head.value
    assert page.rows == {}
    panel._clear.click()
    assert len(page.rows) > 6
    with pytest.raises(InvalidRequest):
        server.panel("logs", level="loud")
    panel.close()


def test_a_click_gives_the_record_its_split_of_time_and_how_to_run_it_again(server: Engine) -> None:
    ask(server, -1, "bad<i>")
    panel = server.panel("logs", request="bad<i>")
    page = Page(panel)
    wait_for(lambda: any(row["s"] == "request" for row in page.rows.values()))
    key = next(row["k"] for row in page.rows.values() if row["s"] == "error")
    page.say(type="select", key=key)
    wait_for(lambda: "server.replay(0)" in panel._detail.value)
    html = panel._detail.value
    for words in ("Request 0", "talks version 1", "talks_0", "compute infer", "server.logs(request=0)", "below zero"):
        assert words in html
    assert "<i>" not in html
    assert "<b>below" not in html
    panel._only.click()
    assert panel._request.value == "0"
    page = panel.to_html()
    assert "&lt;script&gt;asked&lt;/script&gt;" in page
    assert "<script>asked" not in page
    assert "ValueError" in page
    assert "below zero" in repr(panel)
    panel.close()


def test_a_request_is_typed_as_a_number_or_an_id() -> None:
    assert [as_request(text) for text in ("", " 17 ", "abc", '"17"', "١")] == [None, 17, "abc", "17", "١"]
