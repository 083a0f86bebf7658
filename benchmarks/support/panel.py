"""A model measured from a notebook in JupyterLab, with the panel ``live`` open in Chromium and without, in turn."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.paired import ratios
from support.wire_models import write_mlp
from workbench.clock import monotonic_ns, sleep

# JupyterLab and Chromium are driven as the tests of the notebooks drive them.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "notebooks"))

_NAME = "panel.ipynb"
_ROWS = "blocks.json"
_CELLS = (
    f"""import json
import workbench as wb
from workbench.profiling import Load, Measurer
from workbench.session.measuring import SessionTarget
server = wb.serve("panel_repository")
load = dict(duration_s=SECONDS, max_duration_s=SECONDS, warmup_s=0.3, max_warmup_s=0.3)
blocks = []

def keep(point):
    row = {{"throughput": point.throughput, "p50_ms": point.p50_ms, "failed": point.failed, "notes": list(point.notes)}}
    blocks.append(row | {{"watchers": server.session.watchers}})
    with open("{_ROWS}", "w") as file:
        json.dump(blocks, file)""",
    'panel = server.panel("live", model="mlp_4096")\npanel',
    'keep(server.profile("mlp_4096", concurrency=8, **load))',
    'with Measurer(SessionTarget(server), "mlp_4096") as measurer:\n    keep(measurer.measure(Load.closed(8, **load)))',
    "panel.close()",
    "server.close()",
)
_SETUP, _OPEN, _TOLD, _NOT_TOLD, _CLOSE, _END = range(len(_CELLS))
_PATIENCE_S = 90.0


class NotHere(Exception):
    """JupyterLab, Playwright or Chromium is not here."""


def panel_blocks(pairs: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Throughput and p50 with the panel open, divided by those without; ``told`` as ``server.profile`` measures, and
    ``not told`` where the session does not know of the measurement.

    Args:
        pairs: of blocks, of each kind.
        seconds: of a block.

    Raises:
        NotHere: something that it takes is not installed.
        RuntimeError: a request failed, a panel did not follow, or a measurement did not say that one was open.
    """
    with tempfile.TemporaryDirectory() as folder, _notebook(Path(folder), seconds) as notebook:
        return {
            "told": ratios(lambda opened: notebook.block(_TOLD, opened), pairs),
            "not told": ratios(lambda opened: notebook.block(_NOT_TOLD, opened), pairs),
        }


class _Notebook:
    """The notebook as a person would use it: cells are run, the page is looked at."""

    def __init__(self, page: Any, rows: Path) -> None:
        self._page = page
        self._rows = rows

    def run(self, cell: int) -> None:
        """Runs a cell; does not wait for its end."""
        from lab_page import run_cell

        run_cell(self._page, cell)

    def block(self, cell: int, opened: bool) -> dict[str, float]:
        """Measures a block, with the panel open or not."""
        if opened:
            self.run(_OPEN)
            self._page.locator(".wb-panel .wb-chart[data-state=drawn]").nth(3).wait_for(timeout=_PATIENCE_S * 1e3)
        begun = len(self._read())
        self.run(cell)
        self._until(lambda: len(self._read()) > begun)
        row = self._read()[-1]
        if row["failed"] or bool(row["watchers"]) != opened:
            raise RuntimeError(f"a block with the panel {'open' if opened else 'closed'} is not one: {row}")
        if opened and not any("open in this kernel" in note for note in row["notes"]):
            raise RuntimeError(f"the point does not say that a panel was open: {row['notes']}")
        if opened:
            self.run(_CLOSE)
            self._page.wait_for_function("() => !document.querySelector('.wb-panel .wb-chart canvas')")
        return {name: row[name] for name in ("throughput", "p50_ms")}

    def _read(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found: list[dict[str, Any]] = json.loads(self._rows.read_text())
            return found
        return []

    def _until(self, there: Callable[[], bool]) -> None:
        deadline = monotonic_ns() + int(_PATIENCE_S * 1e9)
        while not there():
            if monotonic_ns() > deadline:
                raise RuntimeError("a cell of the notebook did not come to its end")
            # A page needs no help from here to draw and to talk to its kernel: nothing that would take a processor.
            sleep(0.1)


@contextlib.contextmanager
def _notebook(folder: Path, seconds: float) -> Iterator[_Notebook]:
    try:
        import jupyterlab  # noqa: F401
        import nbformat
        from lab_page import chromium, chromium_path, open_notebook, opened_page, running_lab
        from playwright.sync_api import sync_playwright  # noqa: F401
    except ImportError as error:
        raise NotHere(f"{error.name} is not installed") from error
    if chromium_path() is None:
        raise NotHere("no Chromium here")
    root, home = folder / "root", folder / "home"
    root.mkdir()
    home.mkdir()
    write_mlp(root / "panel_repository")
    cells = [nbformat.v4.new_code_cell(source.replace("SECONDS", str(seconds))) for source in _CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), root / _NAME)
    with running_lab(root, home) as lab, chromium() as browser, opened_page(browser) as page:
        open_notebook(page, lab, _NAME)
        notebook = _Notebook(page, root / _ROWS)
        notebook.run(_SETUP)
        try:
            yield notebook
        finally:
            notebook.run(_END)
            page.wait_for_timeout(2000)
