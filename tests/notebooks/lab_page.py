"""A JupyterLab, a page of Chromium that shows it, and what a person does with a notebook there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from free_ports import free_ports

LOOPBACK = {"127.0.0.1", "localhost", "::1", ""}
VIEWPORT = {"width": 1280, "height": 720}


def chromium_path() -> str | None:
    """The browser of this machine, if there is one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    return None


@dataclass
class Lab:
    """A running JupyterLab whose root is ``root``."""

    url: str
    root: Path
    home: Path

    def server_logs(self) -> str:
        """The ends of the logs of the servers that notebooks have started."""
        logs = sorted(self.home.rglob("servers/*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


@dataclass
class Seen:
    """What a page did that it must not do."""

    external: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def lab_environment(home: Path) -> dict[str, str]:
    """Own settings, so that no setting of this machine or of an earlier run leaks in."""
    env = dict(os.environ)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "XDG_STATE_HOME"):
        path = home / name.lower()
        path.mkdir(parents=True, exist_ok=True)
        env[name] = str(path)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return env


@contextlib.contextmanager
def running_lab(root: Path, home: Path) -> Iterator[Lab]:
    """JupyterLab over ``root`` with settings of its own in ``home``.

    Raises:
        RuntimeError: it does not start.
    """
    news = home / "jupyter_config_dir/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text(json.dumps({"fetchNews": "false"}))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--expose-app-in-browser",
        f"--ServerApp.root_dir={root}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--allow-root")
    log = (home / "lab.log").open("w")
    process = subprocess.Popen(command, env=lab_environment(home), stdout=log, stderr=log, cwd=root)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/api/status", timeout=2):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (home / "lab.log").read_text()[-3000:]
                    raise RuntimeError(f"JupyterLab did not start:\n{said}") from None
                time.sleep(0.1)
        yield Lab(url, root, home)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(20)
        log.close()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """The Chromium of this machine; Playwright keeps an event loop running in this thread meanwhile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=chromium_path(),
            headless=True,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def opened_page(browser: Any) -> Iterator[Any]:
    """A page at 1280×720 that may only talk to this machine; ``page.seen`` has what it did wrong."""
    context = browser.new_context(viewport=VIEWPORT)
    tab = context.new_page()
    seen = Seen()

    def guard(route: Any) -> None:
        if (urlparse(route.request.url).hostname or "") in LOOPBACK or route.request.url.startswith(("blob:", "data:")):
            route.continue_()
        else:
            seen.external.append(route.request.url)
            route.abort()

    tab.route("**/*", guard)
    tab.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda e: seen.errors.append(str(e)))
    tab.seen = seen
    yield tab
    context.close()


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
