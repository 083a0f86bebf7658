from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from panel_helpers import CONFIG, ask, wait_for

from workbench.errors import WorkbenchError
from workbench.panels.config_check import check, findings_html
from workbench.panels.config_form import DYNAMIC, FIELDS, INSTANCES

DELAY = "dynamic_batching.max_queue_delay_microseconds"
TEXT = CONFIG.format(name="double")


@pytest.fixture
def shown(server: Any) -> Any:
    panel = server.panel("config", model="double")
    yield panel
    panel.close()


def idle(shown: Any) -> None:
    wait_for(lambda: all(command.done for command in shown.state.snapshot().commands))


def test_the_form_edits_the_text_and_keeps_its_comments(shown: Any) -> None:
    assert shown.text == TEXT
    shown.form[DELAY].value = 2500
    assert shown.text == TEXT.replace("max_queue_delay_microseconds: 100 ", "max_queue_delay_microseconds: 2500 ")
    shown.form["max_batch_size"].value = 16
    assert "max_batch_size: 16\n" in shown.text
    assert shown.text.startswith("# The one line that people keep.")
    assert shown.form[INSTANCES].value == 1


def test_the_text_edits_the_form(shown: Any) -> None:
    shown.text = TEXT.replace("100  # short", "700\n  preferred_batch_size: [ 2, 4 ]")
    assert shown.form[DELAY].value == 700
    assert shown.form["dynamic_batching.preferred_batch_size"].value == "2, 4"
    shown.form["dynamic_batching.preferred_batch_size"].value = "4 8"
    assert "4, 8" in shown.text
    shown.form["dynamic_batching.preferred_batch_size"].value = ""
    assert "preferred_batch_size" not in shown.text


def test_switching_dynamic_batching_off_locks_what_belongs_to_it(shown: Any) -> None:
    shown.form[DYNAMIC].value = False
    assert "dynamic_batching" not in shown.text
    assert all(shown.form[field.path].disabled for field in FIELDS if field.group)
    shown.form[DYNAMIC].value = True
    assert "dynamic_batching" in shown.text
    assert not shown.form[DELAY].disabled


def test_a_syntax_error_is_marked_while_typing_and_nothing_can_be_applied(shown: Any) -> None:
    shown.text = TEXT.replace("max_batch_size: 8", "max_batch_sise: 8")
    found = shown._findings.value
    assert 'has no field named "max_batch_sise"' in found.replace("&quot;", '"')
    assert "line 4" in found
    assert "<mark>max_batch_sise</mark>" in found
    assert shown._apply.disabled
    assert shown.form[DELAY].disabled
    shown.apply()
    assert shown.server.config("double").epoch == 1
    shown.text = TEXT
    assert "valid" in shown._findings.value
    assert not shown.form[DELAY].disabled


def test_triton_refusals_are_shown_with_their_place() -> None:
    draft = check(TEXT.replace("100  # short", "100\n  preferred_batch_size: [ 64 ]"), "double")
    assert not draft.ok
    text = findings_html(draft)
    assert "dynamic batching preferred size must be <= max batch size" in text.replace("&lt;", "<")
    assert "<mark>" in text
    assert draft.fixes
    assert check(draft.fixed(), "double").ok


def test_the_plan_says_class_and_what_triton_would_do(shown: Any) -> None:
    shown.form[DELAY].value = 900
    wait_for(lambda: "Apply is" in shown._plan.value)
    assert "live: applied in place" in shown._plan.value
    assert "Real Triton" in shown._plan.value
    assert "+  max_queue_delay_microseconds: 900" in shown._plan.value
    assert shown.server.config("double").epoch == 1
    shown.form[INSTANCES].value = 2
    wait_for(lambda: "instances: added or drained" in shown._plan.value)


def test_apply_changes_the_server_and_not_the_file_then_save_after_the_diff(shown: Any, repository: Path) -> None:
    file = repository / "double" / "config.pbtxt"
    shown.form[DELAY].value = 3000
    shown._apply.click()
    wait_for(lambda: "applied" in shown._result.value and "config_epoch" in shown._result.value)
    assert shown.server.model_config("double")["dynamic_batching"]["max_queue_delay_microseconds"] in (3000, "3000")
    assert file.read_text() == TEXT
    shown.refresh()
    assert "applied, not saved" in shown._head.value
    assert not shown._save.disabled
    shown._save.click()
    assert shown._save.description == "Write config.pbtxt"
    assert "+  max_queue_delay_microseconds: 3000" in shown._plan.value
    assert file.read_text() == TEXT
    shown._save.click()
    wait_for(lambda: "saved" in shown._result.value)
    assert file.read_text() == TEXT.replace("100  #", "3000  #")
    assert shown._save.disabled


def test_revert_goes_back_to_the_file_here_and_at_the_server(shown: Any) -> None:
    shown.text = TEXT.replace("max_batch_size: 8", "max_batch_size: 4")
    shown._revert.click()
    assert shown.text == TEXT
    shown.form[DELAY].value = 3000
    shown._apply.click()
    wait_for(lambda: "config_epoch" in shown._result.value)
    shown._revert.click()
    wait_for(lambda: shown.text == TEXT)
    assert not shown.server.config("double").dirty


def test_what_another_panel_applied_is_taken_over_but_a_draft_stays(shown: Any) -> None:
    idle(shown)
    shown.server.configure("double", f"{DELAY}=1234")
    shown.refresh()
    wait_for(lambda: "1234" in shown.text)
    idle(shown)
    shown.text = shown.text.replace("max_batch_size: 8", "max_batch_size: 2")
    idle(shown)
    shown.server.configure("double", f"{DELAY}=4321")
    shown.refresh()
    idle(shown)
    assert "max_batch_size: 2" in shown.text


def test_comments_alone_are_said_not_to_be_carried(shown: Any) -> None:
    shown.text = TEXT + "# a thought\n"
    assert "Only comments or layout differ" in shown._plan.value
    assert shown._apply.disabled


def test_applying_under_load_loses_no_request(shown: Any) -> None:
    import threading

    load = threading.Thread(target=lambda: ask(shown.server, 60, threads=4))
    load.start()
    for delay in (0, 5000, 200):
        shown.form[DELAY].value = delay
        shown._apply.click()
        wait_for(lambda d=delay: f"microseconds: {d}" in shown.server.config("double").text)
        idle(shown)
    load.join(60)
    (entry,) = shown.server.statistics("double")["model_stats"]
    assert entry["inference_stats"]["success"]["count"] == 240
    assert entry["inference_stats"]["fail"]["count"] == 0


def test_a_broken_file_is_mended_saved_and_loaded_in_the_panel(server: Any, repository: Path) -> None:
    file = repository / "double" / "config.pbtxt"
    server.unload("double")
    file.write_text(TEXT.replace("max_batch_size: 8", "max_batch_sise: 8"))
    with pytest.raises(WorkbenchError):
        server.load("double")
    server.session.poll()
    panel = server.panel("config", model="double")
    panel.refresh()
    assert "not loaded" in panel._head.value
    assert "max_batch_sise" in panel._findings.value
    panel.text = TEXT.replace("max_batch_size: 8", "max_batch_size: 4")
    panel._save.click()
    assert "max_batch_sise" in file.read_text()
    panel._save.click()
    wait_for(lambda: "saved" in panel._result.value)
    assert file.read_text() == TEXT.replace("max_batch_size: 8", "max_batch_size: 4")
    assert panel._apply.description == "Load"
    panel._apply.click()
    wait_for(lambda: "loaded" in panel._result.value)
    assert server.is_model_ready("double")
    assert panel._apply.description == "Apply"
    panel.close()
