"""A real JupyterLab and a real Chromium, for tests that click."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
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
from notebooks_layout import lay_out

ROOT = Path(__file__).parents[2]
LOOPBACK = {"127.0.0.1", "localhost", "::1", ""}
VIEWPORT = {"width": 1280, "height": 720}


def chromium_path() -> str | None:
    """The browser of this machine, if there is one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    return None


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


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


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")
    home = tmp_path_factory.mktemp("jupyter")
    root = tmp_path_factory.mktemp("lab-root")
    news = home / "jupyter_config_dir/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text(json.dumps({"fetchNews": "false"}))
    port = free_port()
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
                    pytest.fail(f"JupyterLab did not start:\n{(home / 'lab.log').read_text()[-3000:]}")
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


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    """Chromium for a module's tests, and not longer: Playwright keeps an event loop running in this thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=path, headless=True, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chrome: Any) -> Iterator[Any]:
    """A page at 1280×720 that may only talk to this machine; ``page.seen`` has what it did wrong."""
    context = chrome.new_context(viewport=VIEWPORT)
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


@pytest.fixture
def workplace(tmp_path: Path, repository: Path) -> Path:
    """A directory like the checkout, which a notebook may write to."""
    return lay_out(tmp_path, repository)
