"""What CI does with a test that fails: once more, alone, at the end; and what it does not let pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider"
TARGETS = f"""
test:
\t@status=0; {PYTEST} tests/test_own.py || status=1; {PYTEST} tests/test_more.py || status=1; exit $$status
test-full:
\t@{PYTEST} -m full tests/test_own.py
"""
HEAD = """
from pathlib import Path
import pytest

def first(name):
    mark = Path(__file__).with_name(f"ran {name}")
    if mark.exists():
        return False
    mark.touch()
    return True

"""
FLAKY = """
@pytest.mark.parametrize("what", ["a :: b [c]"])
def test_flaky(what):
    assert not first(what), "the machine was busy"
"""
FULL = """
@pytest.mark.full
def test_long():
    assert not first("long"), "the machine was busier"
"""


DIES = """
def test_dies():
    import os
    if first("dies"):
        os._exit(1)
"""
SPREAD = "-p xdist.plugin -n 2 --dist loadfile --max-worker-restart=0"


def ci(root: Path, tests: str, *targets: str, makefile: str = TARGETS) -> tuple[int, str]:
    """Runs the script over a project of its own; gives its exit code and what it printed."""
    (root / "tests").mkdir()
    (root / ".ci").mkdir()
    (root / "Makefile").write_text(makefile)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["full"]\n')
    own, _, more = tests.partition("# more")
    (root / "tests" / "test_own.py").write_text(HEAD + own)
    (root / "tests" / "test_more.py").write_text(more or "def test_more():\n    pass\n")
    shutil.copy(ROOT / ".ci" / "tests.py", root / ".ci")
    for name in ("conftest.py", "file_order.py", "file_order.txt", "free_ports.py", "real_triton.py", "skips.txt"):
        shutil.copy(ROOT / "tests" / name, root / "tests")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "WORKBENCH_TEST"))}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and some take long to start
    command = [sys.executable, ".ci/tests.py", *targets]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
def test_what_fails_once_passes_and_is_named_with_what_it_failed_of(tmp_path: Path) -> None:
    code, said = ci(tmp_path, FLAKY + FULL + "def test_well():\n    pass\n", "test", "test-full")
    assert code == 0, said
    block = said.partition("FLAKY: failed once, passed alone")[2]
    assert "== make test: tests/test_own.py::test_flaky[a :: b [c]]" in block
    assert "AssertionError: the machine was busy\n" in block
    assert "== make test-full: tests/test_own.py::test_long" in block
    assert "AssertionError: the machine was busier\n" in block
    assert "test_well" not in block


@pytest.mark.full
@pytest.mark.parametrize(
    ("tests", "text", "runs"),
    [
        (
            "def test_broken():\n    assert False\n",
            "FAILED TWICE: tests/test_own.py::test_broken",
            2,
        ),
        (
            "@pytest.mark.parametrize('n', range(9))\ndef test_many(n):\n    assert not first(n)\n",
            "make test: 9 tests failed; more than 8 are not run again",
            1,
        ),
        (  # a server that dies amid a file is no accident, though all of its later tests say the same of it
            "@pytest.mark.parametrize('n', range(9))\ndef test_many(n):\n    assert 0, 'the connection was lost'\n",
            "make test: 9 tests failed; more than 8 are not run again",
            1,
        ),
        (
            FLAKY + "def test_skipped():\n    pytest.skip('not today')\n",
            "make test failed of something else than a test",
            1,
        ),
        (
            FLAKY + "# more\ndef test_kills():\n    import os\n    os._exit(1)\n",
            "make test failed of something else than a test",
            1,
        ),
        ("def test_stops():\n    pytest.exit('enough', 1)\n", "make test failed of something else than a test", 0),
    ],
)
def test_what_is_no_accident_fails(tmp_path: Path, tests: str, text: str, runs: int) -> None:
    code, said = ci(tmp_path, tests, "test")
    assert code == 1, said
    assert text in said
    assert "FLAKY" not in said
    assert said.count("short test summary info") == runs, said


@pytest.mark.full
def test_many_that_fail_of_one_server_are_one_failure(tmp_path: Path) -> None:
    shared = """
@pytest.fixture(scope="module")
def server():
    assert not first("server"), "it did not start"

@pytest.mark.parametrize("n", range(20))
def test_asks(server, n):
    pass
"""
    code, said = ci(tmp_path, shared, "test")
    assert code == 0, said
    assert "20 passed" in said, "together: one server more, not twenty"
    assert said.partition("FLAKY")[2].count("it did not start\n") == 1


@pytest.mark.full
def test_what_passes_runs_once(tmp_path: Path) -> None:
    code, said = ci(tmp_path, "def test_well():\n    pass\n", "test")
    assert code == 0
    assert said.count("1 passed") == 2, "the two runs of the target"
    assert "FLAKY" not in said


@pytest.mark.full
def test_what_a_process_that_dies_leaves_is_run(tmp_path: Path) -> None:
    others = "".join(f"\ndef test_{n}():\n    pass\n" for n in range(5))
    code, said = ci(tmp_path, DIES + others, "test", makefile=f"test:\n\t@{PYTEST} {SPREAD} tests\n")
    assert code == 0, said
    assert "tests were not run, and run now" in said
    assert "== make test: tests/test_own.py::test_dies" in said


@pytest.mark.full
def test_what_a_process_that_dies_leaves_may_fail(tmp_path: Path) -> None:
    own = f"{DIES}\ndef test_bad():\n    assert False\n"
    code, said = ci(tmp_path, own, "test", makefile=f"test:\n\t@{PYTEST} {SPREAD} tests\n")
    assert code == 1, said
    assert "of the tests that were not run, some failed" in said
    assert "FLAKY" not in said
