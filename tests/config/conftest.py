"""Cases of the room config: one test for each file of the reference material."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
ABSENT = pytest.param(None, marks=pytest.mark.skip(reason="no reference material: ../shared is absent"), id="absent")


@dataclass(frozen=True)
class ParsedCase:
    data: bytes
    reference: dict[str, object]


@dataclass(frozen=True)
class RefusedCase:
    data: bytes
    errors: tuple[str, ...]


@dataclass(frozen=True)
class ErrorCase:
    group: str
    name: str
    data: bytes
    patterns: tuple[str, ...]


def parsed_cases() -> dict[str, ParsedCase]:
    return {
        path.stem: ParsedCase((CASES / "configs" / f"{path.stem}.pbtxt").read_bytes(), json.loads(path.read_text()))
        for path in sorted((CASES / "parsed").glob("*.json"))
    }


def index_rows() -> dict[str, tuple[Path, str]]:
    """File name -> its path and the row of the INDEX."""
    rows = {}
    for folder in ("configs", "configs_synthetic"):
        for line in (CASES / folder / "INDEX.md").read_text().splitlines():
            name = line.split("|")[1].strip() if line.count("|") > 2 else ""
            if name.endswith(".pbtxt"):
                rows[name] = (CASES / folder / name, line)
    return rows


def refused_cases() -> dict[str, RefusedCase]:
    out = {}
    for name, (path, line) in index_rows().items():
        if "REFUSED" not in line:
            continue
        quoted = re.search(r"REFUSED `([^`]+)`", line)
        text = quoted.group(1) if quoted else line.split("|")[3].strip()
        errors = tuple(each.removeprefix("input:") for each in text.split(" ; "))
        out[name] = RefusedCase(path.read_bytes(), errors)
    return out


def error_cases() -> dict[str, ErrorCase]:
    """The rows of expected_errors.md that one configuration decides."""
    patterns: dict[str, list[str]] = {}
    for line in (CASES / "expected_errors.md").read_text().splitlines():
        match = re.match(r"- `([^`]+)` — (.*)", line)
        if match:
            patterns.setdefault(match.group(1).removesuffix("/expected_unsupported"), []).append(match.group(2))
    out = {}
    for name, texts in patterns.items():
        path = CASES / "expected_errors" / name / "config.pbtxt"
        group = name.split("/")[0]
        if path.exists() and (
            group in ("noautofill_platform", "model_metrics", "special_cases") or "/ensemble/" in name
        ):
            out[name] = ErrorCase(group, path.parent.name, path.read_bytes(), tuple(texts))
    return out


_FIXTURES = {"parsed_case": parsed_cases, "refused_case": refused_cases, "error_case": error_cases}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, cases in _FIXTURES.items():
        if fixture not in metafunc.fixturenames:
            continue
        found = cases() if (CASES / "expected_errors.md").exists() else {}
        values = [pytest.param(case, id=name) for name, case in found.items()] or [ABSENT]
        metafunc.parametrize(fixture, values)
