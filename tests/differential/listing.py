"""The tables of all differential cases and of the names that they use.

``python tests/differential/listing.py`` writes them to CASES.md and PB_UTILS.md.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "CASES.md"
NAMES = HERE / "PB_UTILS.md"
HEAD = """# Cases of the differential suite

Each case is one script that runs against a real Triton 2.51 and against the workbench; all that they say is equal, but
for the rows in the last column. Written by `python tests/differential/listing.py`.

| id | topic | what | difference and reason |
|---|---|---|---|
"""


def topics() -> list[object]:
    """The topic of every module here, by name of the file."""
    for folder in (str(HERE), str(HERE.parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    modules = [importlib.import_module(path.stem) for path in sorted(HERE.glob("test_*.py"))]
    return [module.TOPIC for module in modules if hasattr(module, "TOPIC")]


def table() -> str:
    """The text of CASES.md."""
    lines = []
    for topic in topics():
        for case in sorted(topic.cases, key=lambda each: each.id):
            lines.append(f"| {case.id} | {topic.title} | {case.what} | {_reasons(case.differs)} |\n")
    return HEAD + "".join(lines)


def _reasons(differs: dict[str, str]) -> str:
    """The rows in which the two differ, together where the reason is the same."""
    parts: dict[str, list[str]] = {}
    for part, reason in differs.items():
        parts.setdefault(reason, []).append(f"`{part}`")
    return "; ".join(f"{', '.join(rows)}: {reason}" for reason, rows in parts.items())


if __name__ == "__main__":
    TABLE.write_text(table())
    NAMES.write_text(importlib.import_module("surface").table())
