"""The shipped notebooks run from top to bottom, as a newcomer runs them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def hashes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size < 1_000_000 and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert "widgets" not in notebook.metadata
    assert path.stat().st_size < 30_000


def test_tune_batching_runs_and_tells_the_truth(workplace: Path) -> None:
    before = hashes(workplace / "model_repository")
    source = NOTEBOOKS / "01_tune_batching.ipynb"
    shutil.copy(source, workplace / "notebooks" / source.name)
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(workplace / "notebooks")}}
    )
    client.execute()
    assert hashes(workplace / "model_repository") == before
    texts = [output_text(cell) for cell in notebook.cells if cell.cell_type == "code"]
    everything = "\n".join(texts)
    assert everything.count("READY") >= 4
    assert "max_queue_delay_microseconds: 20000" in everything
    alone, together = (float(found) for found in re.findall(r"delay: +mean batch ([\d.]+) rows", everything))
    assert alone < 1.5 < together
    numbers = re.findall(r"-?\d\.\d*", next(text for text in texts if text.startswith("array([[")))
    assert len(numbers) == 9
    assert float(numbers[1]) > float(numbers[2])  # two sentences about batching, and one about a cat
    check_export(workplace)
    pictures = [cell for cell in notebook.cells if "<svg" in output_html(cell)]
    assert len(pictures) == 6  # a saved notebook keeps a picture of each panel


def check_export(workplace: Path) -> None:
    tuned = workplace / "runs" / "tuned"
    (model,) = json.loads((tuned / "provenance.json").read_text())["models"]
    assert "mlp_4096" in json.dumps(model)
    config = (tuned / "model_repository" / "mlp_4096" / "config.pbtxt").read_text()
    assert "dynamic_batching" in config
    assert "# One row a call" in config  # comments survive
    assert (tuned / "model_repository" / "mlp_4096" / "1" / "model.onnx").stat().st_size > 100_000_000


def output_text(cell: Any) -> str:
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def output_html(cell: Any) -> str:
    return "".join(o.get("data", {}).get("text/html", "") for o in cell.get("outputs", []))
