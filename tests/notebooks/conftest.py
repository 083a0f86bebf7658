"""A real JupyterLab and a real Chromium, for tests that click."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_page import Lab, chromium, chromium_path, opened_page, running_lab
from notebooks_layout import lay_out


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")
    with running_lab(tmp_path_factory.mktemp("lab-root"), tmp_path_factory.mktemp("jupyter")) as lab:
        yield lab


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    """Chromium for a module's tests, and not longer: Playwright keeps an event loop running in this thread."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if chromium_path() is None:
        pytest.skip("no Chromium here")
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(chrome: Any) -> Iterator[Any]:
    """A page at 1280×720 that may only talk to this machine; ``page.seen`` has what it did wrong."""
    with opened_page(chrome) as tab:
        yield tab


@pytest.fixture
def workplace(tmp_path: Path, repository: Path) -> Path:
    """A directory like the checkout, which a notebook may write to."""
    return lay_out(tmp_path, repository)
