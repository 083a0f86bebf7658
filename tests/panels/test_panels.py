from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from panel_helpers import ask, look, look_away, wait_for

from workbench.errors import NotFound
from workbench.panels import PANELS, panel
from workbench.session.opening import serve


@pytest.mark.parametrize("name", PANELS)
def test_every_panel_has_widgets_a_text_and_a_static_page_without_network(
    name: str, server: Any, tmp_path: Path
) -> None:
    ask(server, 3)
    shown = server.panel(name)
    assert shown.children
    assert len(repr(shown)) > 10
    assert not re.search(r"\bnan\b|-1\.000", repr(shown))
    page = shown.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    head = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.findall(r"<(?:link|img|script)\b", head)
    assert '<script type="text/javascript" src=' not in page
    assert "double" in head or name in ("devices", "ensemble", "sweep")
    data = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"] or name == "logs"  # it has no chart
    assert "<script" not in data["text/html"]
    assert len(data["text/html"]) < 120_000
    shown.close()


def test_an_unknown_panel_names_those_there_are(server: Any) -> None:
    with pytest.raises(NotFound, match="no panel 'overvew'") as caught:
        panel(server, "overvew")
    assert "overview" in caught.value.hint


def test_a_panel_follows_the_session_only_while_it_is_looked_at(server: Any) -> None:
    shown = server.panel("live", model="double")
    assert not shown.subscribed
    look(shown)
    assert shown.subscribed
    ask(server, 5, threads=3)
    wait_for(lambda: shown._batches.info.batches >= 1)
    look_away(shown)
    assert not shown.subscribed
    shown.close()


def test_leaving_never_waits_for_a_refresh_that_waits_for_the_panel(server: Any) -> None:
    shown = server.panel("live", model="double")
    for _ in range(5):
        look(shown)
        shown.state.touch()
        begin = time.monotonic()
        look_away(shown)
        assert time.monotonic() - begin < 2.0
    look(shown)
    shown.close()


def test_a_command_to_a_server_that_has_been_closed_says_so_in_the_panel(server: Any) -> None:
    shown = server.panel("overview")
    server.close()
    shown.act("reload", "double")
    assert "has been closed" in shown._result.value


def test_a_closed_panel_is_told_no_more(server: Any) -> None:
    shown = server.panel("overview")
    look(shown)
    shown.close()
    assert not shown.subscribed
    shown.refresh()  # a flush that was already under way


def test_the_overview_shows_states_reasons_and_figures(server: Any) -> None:
    shown = server.panel("overview")
    look(shown)
    ask(server, 20, threads=2)
    text = wait_for(
        lambda: (t := _html(shown)) and "broken" in t and re.search(r"wb-num\">[1-9][\d.,]*</span>", t) and t
    )
    assert "READY" in text
    assert "no such weights" in text
    assert "1 of 2 ready" in text
    look_away(shown)


def test_unload_and_load_from_the_overview_take_effect_at_the_server(server: Any) -> None:
    shown = server.panel("overview")
    shown.act("unload", "double")
    wait_for(lambda: "done" in shown._result.value)
    assert not server.is_model_ready("double")

    def first_button() -> str:
        shown.refresh()
        return str(shown._rows["double", "1"]._first.description)

    wait_for(lambda: first_button() == "Load")  # it is UNLOADING for a moment
    row = shown._rows["double", "1"]
    assert row._second.disabled
    row._first.click()
    wait_for(lambda: server.is_model_ready("double"))
    wait_for(lambda: "load double: done" in shown._result.value)
    shown.act("load", "broken")
    wait_for(lambda: "no such weights" in shown._result.value)


def test_a_panel_says_when_the_server_has_died(repository: Path) -> None:
    server = serve(repository, models=["double"])
    shown = server.panel("overview")
    look(shown)
    wait_for(lambda: "1 of 2 ready" in shown._head.value, 60)
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: "no fresh data" in shown._head.value, 60)
    assert "double" in _html(shown)  # what was known is still there
    shown._rows["double", "1"]._first.click()
    wait_for(lambda: "failed" in shown._result.value, 60)
    shown.close()
    server.close()


def test_live_hints_come_from_the_measured_batches(server: Any) -> None:
    shown = server.panel("live", model="double")
    assert shown.hints() == ["No batch was executed in the last minute: send requests to see where their time goes."]
    shown.state.poll()
    ask(server, 10)
    shown.refresh()
    assert "The greatest number of requests in flight is 1" in shown.hints()[0]
    assert "batching cannot happen" in shown._hints.value


def test_devices_show_cpu_and_memory_and_say_what_is_missing(server: Any) -> None:
    shown = server.panel("devices")
    text = shown._head.value
    assert "CPU" in text
    gpus = server.devices().get("gpus")
    assert ("no GPU" in text) == (not gpus)
    assert "GiB" in repr(shown)


def test_refreshing_from_many_threads_at_once_is_safe(server: Any) -> None:
    shown = server.panel("live", model="double")
    look(shown)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                shown.refresh()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not errors
    assert not any(t.is_alive() for t in threads)
    shown.close()


def _html(shown: Any) -> str:
    return shown._head.value + "".join(row._cells.value for row in shown._rows.values())
