"""The panel ``logs`` in a real JupyterLab: a request fails, and its traceback, response time and record are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from lab_page import open_notebook, run_cell, what_was_seen

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"
NAME = "logs.ipynb"

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(240)]

MODEL = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            pb_utils.Logger.log_info(f"asked for {x[0, 0]:g}")
            print("<script>window.hacked = 1</script><b>bold</b>")
            if x[0, 0] < 0:
                raise ValueError("no root of a negative number")
            time.sleep(float(x[0, 0]) / 1000)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x**0.5)]))
        return answers
"""
CONFIG = """name: "roots" backend: "python" max_batch_size: 8
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
CELLS = (
    "import numpy as np\nimport workbench as wb\nserver = wb.serve('roots_repository')",
    'server.panel("logs")',
    """def ask(value, id):
    try:
        return server.infer("roots", {"IN": np.array([[value]], np.float32)}, id=id)
    except wb.WorkbenchError as error:
        return str(error)

ask(4, "good")
ask(-1, "bad")
ask(90, "slow");""",
    'for number in range(40):\n    ask(number % 4, f"more-{number}")',
    "server.close()",
)


@pytest.fixture(autouse=True)
def _what_was_seen(request: pytest.FixtureRequest, page: Any, lab: Any) -> Iterator[None]:
    yield from what_was_seen(request, page, lab, ARTIFACTS / "logs_test_failed.png")


def texts(panel: Any) -> list[str]:
    return [str(text) for text in panel.locator(".wb-log-row .wb-log-x").all_inner_texts()]


def wait(page: Any, panel: Any, words: str) -> None:
    panel.locator(".wb-log-list").get_by_text(words).first.wait_for(timeout=60_000)


def test_a_failing_request_is_found_with_its_traceback_its_time_and_its_record(page: Any, lab: Any) -> None:
    version = lab.root / "roots_repository" / "roots" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), lab.root / NAME)
    open_notebook(page, lab, NAME)
    for index in (0, 1, 2):
        run_cell(page, index)
    panel = page.locator(".wb-panel").first
    wait(page, panel, "no root of a negative number")
    wait(page, panel, re.compile(r"^ok in \d+\.\d ms"))  # type: ignore[arg-type]

    # what a model prints is text
    assert any("<script>window.hacked = 1</script><b>bold</b>" in text for text in texts(panel))
    assert page.evaluate("() => window.hacked") is None
    assert panel.locator(".wb-log-list b").count() == 0

    # the request alone: its lines, its response time, the traceback with the model's line
    request = panel.get_by_placeholder("request: number or id")
    request.fill("bad")
    request.press("Enter")
    panel.locator(".wb-log-row", has_text="asked for 4").wait_for(state="detached", timeout=10_000)
    rows = panel.locator(".wb-log-row")
    assert all("bad" in text for text in panel.locator(".wb-log-row .wb-log-q").all_inner_texts())
    assert re.search(r"\d ms BACKEND", rows.last.locator(".wb-log-r").inner_text())
    trace = panel.locator(".wb-log-error.wb-log-from-error .wb-log-b")
    assert not trace.is_visible()
    panel.get_by_role("button", name="traceback").click()
    assert 'model.py", line 14, in execute' in trace.inner_text()
    assert 'raise ValueError("no root of a negative number")' in trace.inner_text()

    # a click: the record, where the time went, and the line that runs it again
    panel.get_by_text("Request 1", exact=True).wait_for(timeout=10_000)
    panel.get_by_text("server.replay(1)").wait_for(timeout=10_000)
    detail = panel.locator(".wb-head", has_text="Request 1").locator("xpath=..").inner_text()
    assert "roots version 1" in detail
    assert re.search(r"compute infer\s+\d+\.\d+\s+ms", detail)
    page.screenshot(path=ARTIFACTS / "logs_failed.png")

    # slower than, paused, and live again
    panel.get_by_role("button", name="All lines").click()
    wait(page, panel, "asked for 4")
    slower = panel.get_by_placeholder("slower than (ms)")
    slower.fill("80")
    slower.press("Enter")
    panel.locator(".wb-log-row", has_text="asked for 4").wait_for(state="detached", timeout=10_000)
    assert "asked for 90" in texts(panel)
    assert any(re.match(r"ok in (9|\d\d)\d\.\d ms", text) for text in texts(panel))
    panel.get_by_role("button", name="All lines").click()
    wait(page, panel, "asked for 4")
    panel.get_by_role("button", name="Following").click()
    panel.get_by_role("button", name="Paused").wait_for(timeout=10_000)
    before = len(texts(panel))
    run_cell(page, 3)
    page.wait_for_timeout(1500)
    assert len(texts(panel)) == before
    panel.get_by_role("button", name="Paused").click()
    panel.locator(".wb-log-row", has_text="asked for 3").first.wait_for(timeout=10_000)
    page.screenshot(path=ARTIFACTS / "logs_live.png")

    # the page is opened again: the panel is the same, with all its lines
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    open_notebook(page, lab, NAME)
    panel = page.locator(".wb-panel").first
    panel.wait_for(timeout=20_000)
    page.screenshot(path=ARTIFACTS / "logs_reopened.png")
    assert "asked for 3" in panel.inner_text()
    run_cell(page, 4)
    assert page.seen.errors == []
    assert page.seen.external == []
