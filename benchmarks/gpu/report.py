"""One report in two forms: JSON for programs, Markdown for people."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import workbench
from gpu.steps import Outcome
from workbench.clock import utc_now_iso

PACKAGES = (
    "numpy", "torch", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx", "nvidia-dali-cuda120", "nvforest",
)  # fmt: skip


def summary(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many steps have each status."""
    counts = Counter(outcome.status for outcome in outcomes)
    return {status: counts[status] for status in ("proved", "failed", "not proved")}


def write(outcomes: Sequence[Outcome], folder: Path, seconds: float, *, archive: bool) -> dict[str, Any]:
    """Writes ``gpu_check.json`` and ``gpu_check.md``; gives what is in the first."""
    value = {
        "schema": 1,
        "at": utc_now_iso(),
        "seconds": round(seconds, 1),
        "from_archive": archive,
        "workbench": workbench.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "loaded": loaded(),
        "summary": summary(outcomes),
        "steps": [asdict(outcome) for outcome in outcomes],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_check.json").write_text(json.dumps(value, indent=2, default=str) + "\n")
    (folder / "gpu_check.md").write_text(markdown(value))
    return value


def markdown(value: dict[str, Any]) -> str:
    """The report as text."""
    counts = value["summary"]
    lines = [
        "# Check of an NVIDIA machine",
        "",
        f"{value['at']}, {value['seconds']} s, {value['system']}, Python {value['python']}, "
        + ", ".join(f"{name} {version}" for name, version in value["packages"].items()),
        "",
        f"**{counts['proved']} proved, {counts['failed']} failed, {counts['not proved']} not proved.** "
        "What is not proved did not run on a GPU here; nothing is claimed of it.",
        "",
        "| | step | what it shows | status | seconds |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {step['part']} | `{step['name']}` | {step['claims']} | **{step['status']}**"
        f"{': ' if step['reason'] else ''}{_cell(step['reason'])} | {step['seconds']} |"
        for step in value["steps"]
    ]
    for step in value["steps"]:
        if step["figures"]:
            lines += ["", f"## {step['name']}", ""]
            lines += [line for name, seen in step["figures"].items() for line in _figure(name, seen)]
    return "\n".join(lines) + "\n"


def _figure(name: str, seen: Any) -> list[str]:
    if isinstance(seen, list) and seen and isinstance(seen[0], dict):
        columns = list(seen[0])
        rows = ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in seen]
        return [f"{name}:", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *rows, ""]
    return [f"- {name}: {_cell(seen)}"]


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def loaded() -> list[str]:
    """The packages from outside of Python's own library that this process has imported."""
    names = {name.partition(".")[0] for name, module in list(sys.modules.items()) if getattr(module, "__file__", None)}
    return sorted(name for name in names - set(sys.stdlib_module_names) - {"__main__"} if not name.startswith("_"))
