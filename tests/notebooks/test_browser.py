"""The shipped notebook in a real JupyterLab, in a real browser, with real clicks that take effect at the server."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_page import open_notebook, run_all, what_was_seen
from notebooks_layout import lay_out

from workbench.samples import model_names

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"
NOTEBOOK = "notebooks/01_tune_batching.ipynb"
DELAY = "max_queue_delay_microseconds"
PANELS = {"Models": "overview", "config": "config", "sweep": "sweep", "live": "live", "devices": "devices"}


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def poll(page: Any, condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    """Waits for something outside the page, while the page goes on."""
    for _ in range(int(timeout_s * 10)):
        found = condition()
        if found:
            return found
        page.wait_for_timeout(100)
    pytest.fail(f"waited in vain for {what}")


def panel_of(page: Any, words: str) -> Any:
    """The panel that a cell shows, scrolled into view and drawn."""
    index = page.evaluate(
        """(words) => window.jupyterapp.shell.currentWidget.content.widgets.findIndex(
               (c) => c.model.type === 'code' && c.model.sharedModel.getSource().includes(words))""",
        words,
    )
    assert index >= 0, words
    page.evaluate(
        """(i) => { const c = window.jupyterapp.shell.currentWidget.content;
                    return c.scrollToItem(i, 'start').catch(() => undefined); }""",
        index,
    )
    cell = page.locator(f'.jp-Notebook-cell[data-windowed-list-index="{index}"]')
    panel = cell.locator(".wb-panel, .wb-chart").first
    panel.wait_for(timeout=20_000)
    panel.evaluate("(node) => node.scrollIntoView({block: 'start'})")
    page.wait_for_function(
        "(node) => [...node.parentElement.querySelectorAll('.wb-chart')].every((c) => c.dataset.state === 'drawn' || "
        "c.getBoundingClientRect().top > window.innerHeight + 80)",
        arg=panel.element_handle(),
        timeout=20_000,
    )
    page.wait_for_timeout(300)
    return panel


OVERLAPS = """(panel) => {
    const seen = (n) => { const r = n.getBoundingClientRect(); return r.width > 1 && r.height > 1 &&
        getComputedStyle(n).visibility !== 'hidden'; };
    const nodes = [...panel.querySelectorAll(
        'button, input, select, textarea, .wb-chart, .widget-label, .widget-html-content, .progress')].filter(seen);
    const found = [];
    for (let i = 0; i < nodes.length; i++) for (let j = i + 1; j < nodes.length; j++) {
        const [a, b] = [nodes[i], nodes[j]];
        if (a.contains(b) || b.contains(a)) continue;
        const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
        const w = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (w > 1 && h > 1) found.push([a.outerHTML.slice(0, 120), b.outerHTML.slice(0, 120), w, h]);
    }
    const box = panel.getBoundingClientRect();
    for (const n of nodes) {
        const r = n.getBoundingClientRect();
        if (r.left < box.left - 1 || r.right > box.right + 1) found.push(['sticks out', n.outerHTML.slice(0, 160)]);
    }
    for (const b of panel.querySelectorAll('button, .wb-row > span:first-child')) {
        if (b.scrollWidth > b.clientWidth + 1) found.push(['text cut off', b.textContent]);
    }
    if (box.right > window.innerWidth) found.push(['wider than the page', box.right]);
    return found;
}"""


def inspect(panel: Any) -> None:
    """No boxes overlap or stick out, and every axis says its unit."""
    assert panel.evaluate(OVERLAPS) == []
    charts = panel.evaluate(
        """(p) => [...(p.matches('.wb-chart') ? [p] : []), ...p.querySelectorAll('.wb-chart')]
               .map((c) => ({...c.dataset}))"""
    )
    for chart in charts:
        if chart["state"] != "drawn":
            continue
        labels = json.loads(chart["axes"])
        assert len(labels) >= 2
        assert all(re.search(r"\([^()]+\)$", label) for label in labels), labels


def fill(panel: Any, label: str, value: str) -> None:
    """Types into the box with this label, and leaves it."""
    box = panel.locator(".widget-inline-hbox", has=panel.page.get_by_text(label, exact=True)).locator("input")
    box.fill(value)
    box.press("Tab")


def button(panel: Any, name: str) -> Any:
    return panel.get_by_role("button", name=name, exact=True)


@pytest.fixture(autouse=True)
def _traces_of_a_failure(request: pytest.FixtureRequest, page: Any, lab: Any) -> Iterator[None]:
    yield from what_was_seen(request, page, lab, ARTIFACTS / "failed.png")


@pytest.fixture
def tuned(page: Any, lab: Any, repository: Path) -> Any:
    """The notebook after Run all."""
    lay_out(lab.root, repository)
    shutil.copy(ROOT / NOTEBOOK, lab.root / NOTEBOOK)
    open_notebook(page, lab, NOTEBOOK)
    run_all(page, timeout_s=150)
    ARTIFACTS.mkdir(exist_ok=True)
    return page


def test_static_pages_need_no_network(page: Any, tmp_path: Path) -> None:
    from workbench.charts import batches, breakdown, rows, strips, throughput_latency
    from workbench.panels.html import page as whole_page
    from workbench.panels.static import picture, render_blocks

    points = [
        rows.PointRow(name, str(load), load * 90.0, load * 1.0, load * 3.0, queue_ms=1, compute_input_ms=0.1,
                      compute_infer_ms=2, compute_output_ms=0.1, valid=load != 4)
        for name in ("one", "two & <three>") for load in (1, 4, 16)
    ]  # fmt: skip
    seconds = np.arange(-60.0, 0.1, 1.0)
    blocks = [
        "<b>all of it</b>",
        throughput_latency.draw_throughput_latency(throughput_latency.throughput_latency_info(points, goal_p99_ms=20)),
        breakdown.draw_breakdown(breakdown.breakdown_info(points[:3])),
        batches.draw_batch_histogram(batches.batch_histogram_info({(1, "delay"): 3, (8, "full"): 5})),
        strips.draw_strip(strips.latency_strip(seconds, {"p50": seconds + 61, "p99": seconds + 70})),
    ]
    still = picture(blocks)
    (tmp_path / "page.html").write_text(whole_page("charts", *render_blocks(blocks)), encoding="utf-8")
    (tmp_path / "still.html").write_text(whole_page("still", still), encoding="utf-8")
    page.goto(f"file://{tmp_path}/page.html")
    page.wait_for_function("() => document.querySelectorAll('[data-root-id] > *').length >= 4", timeout=10_000)
    page.goto(f"file://{tmp_path}/still.html")
    assert page.locator("svg:not(svg svg)").count() == 4, "one in another cuts off what lies beside the frame"
    assert page.locator("svg text", has_text=re.compile(r"\(ms\)$")).count() >= 3
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "still.png", full_page=True)
    assert page.seen.errors == []
    assert page.seen.external == []


def test_run_all_then_clicks_take_effect_at_the_server(tuned: Any) -> None:
    page = tuned
    overview = panel_of(page, "server.panel()")
    inspect(overview)
    url = overview.locator(".wb-head .wb-mono").inner_text()
    page.screenshot(path=ARTIFACTS / "overview.png")
    assert overview.get_by_text("READY", exact=True).count() == len(model_names())

    for words, name in (
        ('server.panel("live"', "live"),
        ('server.panel("devices")', "devices"),
        ("before_after(before", "before_after"),
    ):
        panel = panel_of(page, words)
        inspect(panel)
        page.screenshot(path=ARTIFACTS / f"{name}.png")

    apply_in_the_config_panel(page, url)
    sweep_from_the_sweep_panel(page, url)
    dark_theme(page)
    assert page.seen.errors == []
    assert page.seen.external == []


def apply_in_the_config_panel(page: Any, url: str) -> None:
    panel = panel_of(page, 'server.panel("config"')
    inspect(panel)
    before = get(f"{url}/v2/models/tokenizer/config")["dynamic_batching"]["max_queue_delay_microseconds"]
    assert int(before) == 0
    assert button(panel, "Apply").is_disabled()
    fill(panel, DELAY, "20000")
    page.wait_for_function("(p) => p.innerText.includes('Apply is')", arg=panel.element_handle(), timeout=10_000)
    inspect(panel)
    page.screenshot(path=ARTIFACTS / "config_draft.png")
    button(panel, "Apply").click()
    poll(
        page,
        lambda: int(get(f"{url}/v2/models/tokenizer/config")["dynamic_batching"][DELAY]) == 20000,
        "the delay to be in force at the server",
    )
    panel.get_by_text("applied, not saved").wait_for(timeout=10_000)
    text = panel.locator("textarea")
    good = text.input_value()
    assert "max_queue_delay_microseconds: 20000" in good
    text.fill(good.replace("max_batch_size: 64", "max_batch_sise: 64"))
    panel.locator("mark", has_text="max_batch_sise").wait_for(timeout=10_000)
    assert button(panel, "Apply").is_disabled()
    inspect(panel)
    page.screenshot(path=ARTIFACTS / "config_error.png")
    text.fill(good)
    button(panel, "Revert").click()
    poll(
        page,
        lambda: int(get(f"{url}/v2/models/tokenizer/config")["dynamic_batching"].get(DELAY, 0)) == 0,
        "the file's delay to be in force again",
    )


def sweep_from_the_sweep_panel(page: Any, url: str) -> None:
    panel = panel_of(page, 'server.panel("sweep"')
    inspect(panel)
    page.screenshot(path=ARTIFACTS / "sweep_done.png")
    config = get(f"{url}/v2/models/mlp_4096/config")
    done = executions(url)
    fill(panel, "load values", "2, 8")
    fill(panel, "max_batch_size", "1, 8")
    fill(panel, "seconds a point", "0.6")
    panel.get_by_text("2 configurations × 2 loads = 4 points").wait_for(timeout=10_000)
    button(panel, "Run sweep").click()
    sizes = set()

    def measured() -> bool:
        sizes.add(get(f"{url}/v2/models/mlp_4096/config")["max_batch_size"])
        return panel.get_by_text("4 of 4 points").count() > 0 and panel.get_by_text("done", exact=True).count() > 0

    poll(page, measured, "the sweep to end", 60)
    assert sizes >= {1, 8}, "both configurations were in force at the server, one after the other"
    assert executions(url) > done + 20
    assert get(f"{url}/v2/models/mlp_4096/config") == config, "the configuration is put back"
    assert panel.locator(".wb-table tr.wb-point").count() == 4
    inspect(panel)
    page.screenshot(path=ARTIFACTS / "sweep_clicked.png")


def executions(url: str) -> int:
    (entry,) = get(f"{url}/v2/models/mlp_4096/stats")["model_stats"]
    return int(entry["inference_count"])


def dark_theme(page: Any) -> None:
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    panel = panel_of(page, 'server.panel("sweep"')
    page.wait_for_function("() => document.querySelector('.wb-chart[data-theme=dark]') !== null", timeout=20_000)
    page.wait_for_timeout(300)
    inspect(panel)
    page.screenshot(path=ARTIFACTS / "sweep_dark.png")
