"""Driving a notebook that is open in JupyterLab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def open_notebook(page: Any, lab: Any, name: str) -> None:
    """Opens a notebook in Lab, alone on the page, and waits for its kernel."""
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    page.wait_for_function(
        """() => {
            const app = window.jupyterapp;
            const panel = app?.shell?.currentWidget;
            return panel?.context?.isReady && panel.sessionContext?.session?.kernel?.status === 'idle';
        }""",
        timeout=60_000,
    )
    # The file browser takes a quarter of the width: a person who looks at panels closes it.
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    page.keyboard.press("Escape")


def run_all(page: Any, timeout_s: float) -> None:
    """Run all, and wait for the end of the last cell; an error in any cell fails the test."""
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    # A chart is drawn while cells still run: messages of widgets do not wait for the kernel's main thread.
    page.wait_for_function("() => document.querySelector('.wb-chart[data-state=drawn]') !== null", timeout=30_000)
    assert page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
               .some((c) => c.model.type === 'code' && c.model.executionCount === null)"""
    ), "every cell had ended before the first chart was drawn"
    page.wait_for_function(
        """() => {
            const panel = window.jupyterapp.shell.currentWidget;
            const code = panel.content.widgets.map((c) => c.model).filter((m) => m.type === 'code');
            const failed = code.some((m) => m.outputs.toJSON().some((o) => o.output_type === 'error'));
            return failed || code.every((m) => m.executionCount !== null && m.executionState !== 'running');
        }""",
        timeout=timeout_s * 1000,
    )
    text = page.evaluate(
        """() => JSON.stringify(window.jupyterapp.shell.currentWidget.content.widgets
               .filter((c) => c.model.type === 'code').flatMap((c) => c.model.outputs.toJSON()))"""
    )
    for output in json.loads(text):
        if output["output_type"] == "error":
            pytest.fail(f"{output['ename']}: {output['evalue']}\n" + "\n".join(output["traceback"]))


def run_cell(page: Any, index: int) -> None:
    """Runs one cell, and does not wait for its end."""
    page.evaluate(
        """async (index) => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.activeCellIndex = index;
            await window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        index,
    )


def what_was_seen(request: pytest.FixtureRequest, page: Any, lab: Any, picture: Path) -> Iterator[None]:
    """Around a test: keeps a picture of the page, and what it said, when the test fails."""
    picture.parent.mkdir(exist_ok=True)
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        page.screenshot(path=picture)
        print("seen:", page.seen, lab.server_logs())
