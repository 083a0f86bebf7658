"""The panel ``timeline`` in a real JupyterLab: it follows a model under load, and a click explains a request."""

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
NAME = "timeline.ipynb"

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(300)]

MODEL = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.012)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
"""
CONFIG = """name: "NAME" backend: "python" max_batch_size: 8
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 2000 }
instance_group [ { count: 2, kind: KIND_CPU } ]
"""
CELLS = (
    "import threading\nimport numpy as np\nimport workbench as wb\nserver = wb.serve('timeline_repository')",
    """stop = threading.Event()

def ask(number):
    while not stop.is_set():
        server.infer("waits", {"IN": np.ones((1 + number % 2, 1), np.float32)}, id=f"client-{number}")

threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
for thread in threads:
    thread.start()""",
    'server.panel("timeline", seconds=0.5)',
    "stop.set()\nfor thread in threads:\n    thread.join()\nserver.timeline('waits', last=0.5)",
    'server.waterfall("client-3")',
    "server.close()",
)


@pytest.fixture(autouse=True)
def _what_was_seen(request: pytest.FixtureRequest, page: Any, lab: Any) -> Iterator[None]:
    yield from what_was_seen(request, page, lab, ARTIFACTS / "timeline_test_failed.png")


def test_a_click_on_a_request_or_a_batch_says_where_its_time_went(page: Any, lab: Any) -> None:
    version = lab.root / "timeline_repository" / "waits" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG.replace("NAME", "waits"))
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), lab.root / NAME)
    open_notebook(page, lab, NAME)
    for index in (0, 1, 2):
        run_cell(page, index)
    panel = page.locator(".wb-panel").first
    charts = panel.locator(".wb-chart[data-state=drawn]")
    charts.nth(1).wait_for(timeout=60_000)
    panel.get_by_text(re.compile(r"[1-9]\d* requests, [1-9]\d* batches")).wait_for(timeout=30_000)
    assert page.evaluate("() => document.querySelector('.wb-chart').dataset.axes") == (
        '["latency (ms)","instance","time relative to now (ms)","queue (reqs)"]'
    )
    panel.evaluate("(node) => node.scrollIntoView({block: 'start'})")
    page.wait_for_timeout(1500)
    page.screenshot(path=ARTIFACTS / "timeline_live.png")
    panel.get_by_role("button", name="Following").click()
    panel.get_by_role("button", name="Paused").wait_for(timeout=10_000)
    page.wait_for_timeout(1500)  # what was on its way to the page

    # a batch: bars of the two instances lie in the middle figure; of some places between them one is on a bar
    bars = charts.nth(0).locator(".bk-Figure").nth(1).bounding_box()
    title = panel.get_by_text(re.compile(r'^Request \d+ "client-\d+" of waits: \d+'))
    for part in range(3, 20):
        page.mouse.click(bars["x"] + 110 + (bars["width"] - 170) * part / 20, bars["y"] + 24)
        page.wait_for_timeout(400)
        if title.count():
            break
    title.wait_for(timeout=10_000)
    shown = panel.inner_text()
    assert re.search(
        r"ran \d+\.\d+ ms on waits_0_[01] in batch \d+, (alone|with \d+ other requests?) \(\d+ rows?", shown
    )
    assert re.search(
        r"[Ww]aited \d+\.\d+ ms for instance waits_0_[01], busy with [^()]*batch[^()]* \(\d+ rows?( together)?\)", shown
    )
    page.mouse.move(5, 5)
    page.screenshot(path=ARTIFACTS / "timeline_waterfall.png")

    # a request by its id, and one that is not there
    box = panel.get_by_placeholder("request: number or id")
    box.fill("client-7")
    box.press("Enter")
    panel.get_by_text(re.compile(r'^Request \d+ "client-7" of waits')).wait_for(timeout=10_000)
    box.fill("nobody")
    box.press("Enter")
    panel.get_by_text("no record of request 'nobody'").wait_for(timeout=10_000)

    # the verbs show the same in cells
    run_cell(page, 3)
    run_cell(page, 4)
    outputs = page.locator(".jp-OutputArea .wb-chart[data-state=drawn]")
    outputs.nth(3).wait_for(timeout=60_000)
    outputs.nth(2).evaluate("(node) => node.scrollIntoView({block: 'start'})")
    page.wait_for_timeout(800)
    page.screenshot(path=ARTIFACTS / "timeline_verbs.png")
    run_cell(page, 5)
    assert page.seen.errors == []
    assert page.seen.external == []
