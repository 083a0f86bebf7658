"""The order in which several processes get the files of a run, and what it tells at its end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import file_order
import pytest

ROOT = Path(__file__).parents[1]


def test_every_path_that_is_named_is_there() -> None:
    """A file that was renamed would silently run among the others."""
    lines = [line.split() for line in file_order.KEPT.read_text().splitlines() if not line.startswith("#")]
    assert {when for when, _ in lines} <= {"first", "last"}
    named = [path for _, path in lines]
    rule = "include Makefile\nnames: ; @echo $(ALONE)\n"
    command = ["make", "-s", "-f", "-", "names"]
    named += subprocess.run(command, input=rule, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.full
def test_files_run_in_their_order_and_the_longest_is_named(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    for name in ("a", "b", "more/c", "more/d"):
        path = tests / Path(name).parent / f"test_{name[-1]}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import time\n\ndef test_it():\n    time.sleep({0.3 if name == 'b' else 0})\n")
    for name in ("conftest.py", "file_order.py", "free_ports.py", "real_triton.py", "skips.txt"):
        shutil.copy(ROOT / "tests" / name, tests)
    (tests / "file_order.txt").write_text(
        "# order\nfirst tests/more/test_d.py\nfirst tests/test_b.py\nlast tests/more\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "WORKBENCH_TEST"))}
    command = [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "tests"]
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True).stdout
    assert re.findall(r"PASSED tests/\S*test_(.)\.py", said) == ["d", "b", "a", "c"], said
    assert re.search(r"files in several processes =+\n+ +0\.3 s tests/test_b\.py\n", said), said
    assert "ended before the last: gw0 0.0 s" in said
