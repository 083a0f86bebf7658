"""A model measured from a notebook in JupyterLab, with the panel ``live`` open in Chromium and without, in turn."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper

from support.paired import undisturbed
from workbench.clock import monotonic_ns, sleep

# JupyterLab and Chromium are driven as the tests of the notebooks drive them.
_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(_TESTS / "notebooks"), str(_TESTS)]

_SUPPORT = Path(__file__).resolve().parent.parent
_NAME = "panel.ipynb"
_ROWS = "blocks.jsonl"
_CELLS = (
    f"""import sys
from pathlib import Path
sys.path.insert(0, "{_SUPPORT}")
from support.panel_kernel import Blocks
blocks = Blocks(Path("{_ROWS}"), SECONDS, BROWSER)""",
    "blocks.run(TOLD_PAIRS, True)",
    "blocks.run(NOT_TOLD_PAIRS, False)",
    "blocks.close()",
)
_SETUP, _TOLD, _NOT_TOLD, _END = range(len(_CELLS))
_PATIENCE_S = 90.0


class NotHere(Exception):
    """JupyterLab, Playwright or Chromium is not here."""


def panel_blocks(told: int, not_told: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Pairs of neighbouring blocks, by whether the session knew of the measurement (``told``, as in ``server.profile``;
    ``not told``): throughput and p50 with the panel open divided by those without; and what kernel and browser took
    more, in cores.

    Args:
        told: pairs of the one kind.
        not_told: pairs of the other.
        seconds: of a block.

    Raises:
        NotHere: something that it takes is not installed.
        RuntimeError: a request failed, a panel did not follow, or a measurement did not say that one was open.
    """
    wanted = {"SECONDS": seconds, "NOT_TOLD_PAIRS": not_told, "TOLD_PAIRS": told}
    with tempfile.TemporaryDirectory() as folder, _notebook(Path(folder), wanted) as notebook:
        return {
            "told": _paired(notebook.blocks(_TOLD, 2 * told, seconds)),
            "not told": _paired(notebook.blocks(_NOT_TOLD, 2 * not_told, seconds)),
        }


def _paired(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    every = list(zip(*([row for row in rows if row["opened"] == wanted] for wanted in (True, False)), strict=True))
    pairs = [every[kept] for kept in undisturbed([opened["stolen_s"] + closed["stolen_s"] for opened, closed in every])]
    found = {name: [opened[name] / closed[name] for opened, closed in pairs] for name in ("throughput", "p50_ms")}
    more = {name: [opened[name] - closed[name] for opened, closed in pairs] for name in ("kernel", "browser")}
    return found | more


class _Notebook:
    """The notebook as a person would use it: cells are run, the page is looked at."""

    def __init__(self, page: Any, rows: Path) -> None:
        self._page = page
        self._rows = rows

    def run(self, cell: int) -> None:
        """Runs a cell; does not wait for its end."""
        from lab_page import run_cell

        run_cell(self._page, cell)

    def blocks(self, cell: int, count: int, seconds: float) -> list[dict[str, Any]]:
        """Runs a cell that measures so many blocks, and gives them."""
        begun = len(self._read())
        self.run(cell)
        self._until(lambda: len(self._read()) >= begun + count, _PATIENCE_S + count * (seconds + 10))
        rows = self._read()[begun:]
        for row in rows:
            if row["failed"] or bool(row["watchers"]) != row["opened"]:
                raise RuntimeError(f"a block is not what it was to be: {row}")
            if row["opened"] and not any("open in this kernel" in text for text in row["said"]):
                raise RuntimeError(f"the point does not say that a panel was open: {row['said']}")
        return rows

    def _read(self) -> list[dict[str, Any]]:
        if not self._rows.exists():
            return []
        return [json.loads(line) for line in self._rows.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def _until(self, there: Callable[[], bool], patience_s: float) -> None:
        deadline = monotonic_ns() + int(patience_s * 1e9)
        while not there():
            if monotonic_ns() > deadline:
                raise RuntimeError("a cell of the notebook did not come to its end")
            # A page needs no help from here to draw and to talk to its kernel: nothing that would take a processor.
            sleep(0.1)


@contextlib.contextmanager
def _notebook(folder: Path, wanted: Mapping[str, float]) -> Iterator[_Notebook]:
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
    _write_steady(root / "panel_repository")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    with running_lab(root, home) as lab, chromium() as browser, opened_page(browser) as page:
        values = {**wanted, "BROWSER": _browser_processes()}
        cells = [nbformat.v4.new_code_cell(_filled(source, values)) for source in _CELLS]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), root / _NAME)
        open_notebook(page, lab, _NAME)
        notebook = _Notebook(page, root / _ROWS)
        notebook.run(_SETUP)
        try:
            yield notebook
        finally:
            notebook.run(_END)
            page.wait_for_timeout(2000)


def _write_steady(folder: Path) -> None:
    """``steady``: some 5 ms on one thread within a core's own caches, so that nobody's use of the memory changes it."""
    width, layers = 256, 400
    rng = np.random.default_rng(7)
    weights = numpy_helper.from_array(rng.normal(0, width**-0.5, (width, width)).astype(np.float32), "w")
    nodes, last = [], "input"
    for layer in range(layers):
        name = "output" if layer == layers - 1 else f"t{layer}"
        nodes += [
            helper.make_node("MatMul", [last, "w"], [f"m{layer}"]),
            helper.make_node("Tanh", [f"m{layer}"], [name]),
        ]
        last = name
    ends = [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["batch", width]) for each in ("input", "output")]
    graph = helper.make_graph(nodes, "steady", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "steady" / "1").mkdir(parents=True)
    (folder / "steady" / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "steady" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ {width} ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ {width} ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""
    )


def _filled(source: str, values: Mapping[str, object]) -> str:
    for name, value in values.items():
        source = source.replace(name, str(value))
    return source


def _browser_processes() -> list[int]:
    return [each.pid for each in psutil.Process().children(recursive=True) if "chrom" in each.name().lower()]
