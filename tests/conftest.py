"""What every test shares: where the reference material lies, and the rule for skips."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import file_order
import psutil
import pytest
import real_triton

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
ALLOWED_SKIPS = Path(__file__).with_name("skips.txt")

# A user's own settings must not leak into a test, nor a test's into a user's.
os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.pop("COLUMNS", None)  # tables are as wide; processes of pytest-xdist have it


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material beside the checkout; tests that need it skip where it is absent."""
    if not (SHARED / "DESIGN.md").exists():
        pytest.skip("no reference material: ../shared is absent")
    return SHARED


@pytest.fixture(scope="session")
def oracle(shared: Path) -> Path:
    """The folder with the real tritonserver and perf_analyzer."""
    if os.uname().machine != "x86_64":
        pytest.skip("the real tritonserver runs on x86-64 only")
    real_triton.install(shared / "oracle")
    return shared / "oracle"


@pytest.fixture(scope="session")
def sample_repository(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The sample repository of this run, its weights from pytest's cache. Read it; do not write to it."""
    from kept_samples import build_kept

    from workbench.samples import SampleError

    target = tmp_path_factory.mktemp("samples") / "model_repository"
    try:
        build_kept(target, pytestconfig.cache.mkdir("samples"))
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    return target


@pytest.fixture(scope="session")
def repository(sample_repository: Path) -> Path:
    """The repository of a test that has no other: the sample repository."""
    return sample_repository


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """The processes below this one that were not there before the test: other tests keep servers for the session."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [child for child in psutil.Process().children(recursive=True) if child not in before]


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runtime files of servers that tests start go to a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_configure(config: pytest.Config) -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C; what some of them do with it is tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`full` tests run only when they are asked for with -m. Processes of pytest-xdist get the files in their order."""
    if hasattr(config, "workerinput"):
        items[:] = file_order.in_order(items, ROOT, file_order.KEPT.read_text())
    if config.option.markexpr:
        return
    kept = [item for item in items if "full" not in item.keywords]
    dropped = [item for item in items if "full" in item.keywords]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Makes what the tests ask the real server with before the first test: a minute, the first time, is no test's."""
    if session.config.option.collectonly or session.testsfailed or os.uname().machine != "x86_64":
        return
    if any("oracle" in getattr(item, "fixturenames", ()) for item in session.items) and (SHARED / "oracle").exists():
        with contextlib.suppress(AssertionError, OSError, subprocess.SubprocessError):  # its tests fail of it
            real_triton.install(SHARED / "oracle")


def _allowed() -> list[re.Pattern[str]]:
    lines = ALLOWED_SKIPS.read_text().splitlines()
    return [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names each skip that is on no list; the session fails for it (see pytest_sessionfinish)."""
    if getattr(terminalreporter.config.option, "numprocesses", None):
        terminalreporter.section("files in several processes")
        for text in file_order.told(each for reports in terminalreporter.stats.values() for each in reports):
            terminalreporter.write_line(text)
    if missing := _not_run(terminalreporter):
        terminalreporter.write_line(f"NOT RUN: {len(missing)} tests, for a process that ran tests has died", red=True)
    for text in _unlisted(terminalreporter):
        terminalreporter.write_line(f"SKIP NOT ON THE LIST (tests/skips.txt): {text}", red=True)


def _unlisted(reporter: pytest.TerminalReporter) -> list[str]:
    allowed = _allowed()
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(pattern.search(reason) for pattern in allowed):
            found.append(f"{report.nodeid}: {reason}")
    return found


_COLLECTED = pytest.StashKey[list[str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: object, ids: list[str]) -> None:
    """Keeps what the processes of pytest-xdist are to run: when one dies, some of it may not be run."""
    node.config.stash[_COLLECTED] = ids  # type: ignore[attr-defined]


def _not_run(reporter: pytest.TerminalReporter) -> list[str]:
    """The tests of a run in several processes that nothing was heard of."""
    heard = {each.nodeid for reports in reporter.stats.values() for each in reports if hasattr(each, "nodeid")}
    return [test for test in reporter.config.stash.get(_COLLECTED, []) if test not in heard]


def _tell(
    exit_status: int | None,
    failed: dict[str, str],
    in_setup: Sequence[str] = (),
    unlisted_skips: Sequence[str] = (),
    not_run: Sequence[str] = (),
) -> None:
    """Writes what a run found to a file of its own in the folder that WORKBENCH_TEST_REPORTS names, if any."""
    if folder := os.environ.get("WORKBENCH_TEST_REPORTS"):
        found = {
            "exit_status": exit_status, "failed": failed, "in_setup": in_setup, "unlisted_skips": unlisted_skips,
            "not_run": not_run,
        }  # fmt: skip
        (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(found))


def pytest_sessionstart(session: pytest.Session) -> None:
    """A run that does not come to its end leaves a report without an exit status."""
    if not hasattr(session.config, "workerinput"):
        _tell(None, {})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skip that is on no list fails the run; what failed is reported to CI."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):  # pytest-xdist's: who has started it reports
        return
    unlisted = _unlisted(reporter)
    if session.exitstatus == 0 and unlisted:
        session.exitstatus = 1
    failed: dict[str, str] = {}
    reports = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    for report in reports:
        failed.setdefault(report.nodeid, report.longreprtext)
    in_setup = [report.nodeid for report in reports if report.when == "setup"]
    _tell(int(session.exitstatus), failed, in_setup, unlisted, _not_run(reporter))
