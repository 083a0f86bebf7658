"""Runs `make TARGET` for each target named; what failed is run once more, alone, at the end.

Many tests here are about real time: a queue's delay, a limit after which a process is ended, who answers first under
load. They run on machines with two cores, which other jobs may share, beside the processes that they start; so one of
thousands may fail of what the machine did meanwhile. Such a test passes when it runs alone, and is printed as FLAKY
with what it failed of: it is to be mended, but it says nothing about the change. What fails for a reason fails again.
A process of pytest-xdist that dies (one of its tests has failed, then) leaves tests that were not run: these run with
what failed. Tests of one file whose setup failed of the same, word for word, are one failure: the server that they
share did not start. More than eight at once are no accident, and neither is anything but failed tests (a skip that is
on no list, a run that was broken off): that fails at once. `make test` itself runs nothing twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

MOST = 8
SELECTS = {"test-full": ["-m", "full"]}
"""What a target selects, as in the Makefile, but for those that select nothing."""
SHOWN = 4000
"""Characters of the end of a failure's text."""


class Found(NamedTuple):
    """What a target found: tests that failed, with their texts and in groups (``alike``), and tests not run."""

    failed: dict[str, str]
    groups: list[list[str]]
    not_run: list[str]


def failures(target: str, reports: Path) -> Found | None:
    """What did not pass; None where something else failed than a few tests."""
    reports.mkdir()
    if subprocess.run(["make", target], env={**os.environ, "WORKBENCH_TEST_REPORTS": str(reports)}).returncode == 0:
        return Found({}, [], [])
    runs = [json.loads(path.read_text()) for path in reports.iterdir()]  # a target may run pytest more than once
    failed: dict[str, str] = {}
    for run in runs:
        failed |= run["failed"]
    if not all(map(_told_whole, runs)) or not failed:
        print(f"make {target} failed of something else than a test")
        return None
    groups = alike(failed, {test for run in runs for test in run["in_setup"]})
    if len(groups) > MOST:
        print(f"make {target}: {len(failed)} tests failed; more than {MOST} are not run again:")
        for test, text in failed.items():
            print(f"  {test}: {said_of(text)}")
        return None
    return Found(failed, groups, [test for run in runs for test in run["not_run"] if test not in failed])


def alike(failed: dict[str, str], in_setup: set[str]) -> list[list[str]]:
    """The tests that failed, those of one file together whose setup failed of the same."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for test, text in failed.items():
        said = [line for line in text.splitlines() if line.startswith("E ")]
        key = (test.partition("::")[0], *said) if said and test in in_setup else (test,)
        groups.setdefault(key, []).append(test)
    return list(groups.values())


def said_of(text: str) -> str:
    """The first line of what a test failed of."""
    return next((line[1:].strip()[:200] for line in text.splitlines() if line.startswith("E ")), "")


def _told_whole(run: dict[str, Any]) -> bool:
    """Whether a run tells by its failed tests, and those that it did not come to, all that was wrong with it."""
    if run["not_run"] and run["failed"]:  # pytest-xdist may end of an error of its own (3) where a process dies
        return run["exit_status"] in (1, 3) and not run["unlisted_skips"]
    return run["exit_status"] == (1 if run["failed"] else 0) and not run["unlisted_skips"]


def run_again(target: str, tests: list[str]) -> bool:
    """Whether these tests of a target pass."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:  # they may be more than a command line takes
        names.write("\n".join(tests))
        names.flush()
        return not subprocess.run(
            [sys.executable, "-m", "pytest", *SELECTS.get(target, []), f"@{names.name}"]
        ).returncode


def main(targets: list[str]) -> int:
    """The exit code."""
    every: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for target in targets:
            found = failures(target, Path(scratch) / target)
            if found is None:
                return 1
            every[target] = found
    groups = [(target, tests) for target, found in every.items() for tests in found.groups]
    if len(groups) > MOST:
        print(f"{sum(len(found.failed) for found in every.values())} tests failed; more than {MOST} are not run again")
        return 1
    for target, tests in groups:
        print("failed once, runs again alone: " + "\n  ".join(tests), flush=True)
        if not run_again(target, tests):
            print("FAILED TWICE: " + "\n  ".join(tests))
            return 1
    for target, found in every.items():
        if found.not_run:
            print(f"make {target}: {len(found.not_run)} tests were not run, and run now", flush=True)
            if not run_again(target, found.not_run):
                print(f"make {target}: of the tests that were not run, some failed")
                return 1
    if groups:
        print("FLAKY: failed once, passed alone")
    for target, tests in groups:
        print(f"\n== make {target}: " + "\n  ".join(tests) + f"\n{every[target].failed[tests[0]][-SHOWN:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
