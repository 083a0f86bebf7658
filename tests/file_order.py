"""In which order the files go to the processes of a run with pytest-xdist, and how even its end was.

Each process takes the next file when it is done with one. A long file that is taken near the end keeps one process
busy while the others have nothing left, so long ones go first; what measures goes last, where it runs beside its like,
which leave the cores idle most of the time, and not beside compilers and servers under load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

KEPT = Path(__file__).with_name("file_order.txt")
SHOWN = 15
"""How many of the longest files a run names."""


def in_order(items: Iterable[pytest.Item], root: Path, kept: str) -> list[pytest.Item]:
    """The tests, each file's together: those of the lines "first PATH", others, those of the lines "last PATH".

    A path is that of a file or a folder; the first line that names a test's file places it.
    """
    lines = [line.split() for line in kept.splitlines() if line.strip() and not line.startswith("#")]
    ranks = {path: (-1 if when == "first" else 1, number) for number, (when, path) in enumerate(lines)}

    def rank(item: pytest.Item) -> tuple[int, int]:
        file = item.path.relative_to(root)
        found = [ranks[path.as_posix()] for path in (file, *file.parents) if path.as_posix() in ranks]
        return min(found, key=lambda rank: rank[1], default=(0, 0))

    return sorted(items, key=rank)  # stable: files of the same rank stay as they are


def told(reports: Iterable[object]) -> list[str]:
    """The files that took longest, and how long before the last process each other one had nothing left to do."""
    files: dict[str, float] = defaultdict(float)
    ends: dict[str, float] = defaultdict(float)
    for report in reports:
        if not isinstance(report, pytest.TestReport) or not hasattr(report, "node"):
            continue
        files[report.nodeid.partition("::")[0]] += report.duration
        ends[report.node.gateway.id] = max(ends[report.node.gateway.id], report.stop)
    longest = sorted(files.items(), key=lambda item: -item[1])[:SHOWN]
    last = max(ends.values(), default=0.0)
    return [
        *(f"{seconds:6.1f} s {path}" for path, seconds in longest),
        "ended before the last: " + ", ".join(f"{name} {last - end:.1f} s" for name, end in sorted(ends.items())),
    ]
