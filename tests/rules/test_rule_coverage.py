"""Each rule of the reference that can act here is named by a test, and no test names one that cannot."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from rule_table import ACTS, CANNOT_ACT

TESTS = Path(__file__).parents[1]
SECTIONS = ("1", "2", "3", "4", "5", "11")


def number(id: str) -> str:
    """The rule as the reference numbers it."""
    found = re.match(r"\d+\.\d+", id)
    assert found, f"'{id}' is no number of a rule"
    return found[0]


NUMBERS = {number(id) for id in (*ACTS, *CANNOT_ACT)}
ACTING_NUMBERS = {number(id) for id in ACTS}


def texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def named_rules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The ids in marks ``pytest.mark.rule(...)`` and in arguments ``rules=(...)``, with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "rule":
            yield from ((id, node.lineno) for id in texts(node.args))
        for keyword in node.keywords:
            if keyword.arg == "rules" and isinstance(keyword.value, ast.Tuple):
                yield from ((id, node.lineno) for id in texts(keyword.value.elts))


@pytest.fixture(scope="module")
def marks() -> dict[str, list[str]]:
    """Rule -> where tests name it."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for id, line in named_rules(ast.parse(path.read_text())):
            found.setdefault(id, []).append(f"{path.relative_to(TESTS)}:{line}")
    return found


def test_every_rule_that_acts_has_a_test(marks: dict[str, list[str]]) -> None:
    missing = {id: text for id, text in ACTS.items() if id not in marks}
    print(f"{len(ACTS)} rules act, {len(CANNOT_ACT)} cannot; {sum(map(len, marks.values()))} names in tests")
    assert not missing


def test_tests_name_rules_that_are_in_the_table(marks: dict[str, list[str]]) -> None:
    unknown = {id: places for id, places in marks.items() if id not in NUMBERS | set(ACTS) | set(CANNOT_ACT)}
    assert not unknown


def test_what_cannot_act_has_no_test(marks: dict[str, list[str]]) -> None:
    tested = {
        id: places for id, places in marks.items() if id in CANNOT_ACT or (id in NUMBERS and id not in ACTING_NUMBERS)
    }
    assert not tested


def test_the_table_has_each_rule_once() -> None:
    assert not set(ACTS) & set(CANNOT_ACT)
    whole = [id for id in (*ACTS, *CANNOT_ACT) if id == number(id)]
    parted = {number(id) for id in (*ACTS, *CANNOT_ACT) if id != number(id)}
    assert not parted & set(whole), "a rule stands for itself and in parts"


def test_no_rule_of_the_reference_is_missing(shared: Path) -> None:
    section, numbered = "", set()
    parts: set[str] = set()
    for line in (shared / "reference" / "triton_semantics.md").read_text().splitlines():
        if heading := re.match(r"## (\d+)\.", line):
            section = heading[1]
        elif section in SECTIONS and (rule := re.match(r"(\d+)\. ", line)):
            numbered.add(f"{section}.{rule[1]}")
            last = rule[1]
        elif section == "1" and line.startswith("   "):
            form = r"(?:^|\s)([a-e])\. " if last == "4" else r"(?:^|\s)(\d)\. "
            parts |= {f"1.{last}{part}" if last == "4" else f"1.{last}.{part}" for part in re.findall(form, line)}
    assert len(numbered) > 50
    assert numbered == NUMBERS
    assert len(parts) == 11
    assert parts <= {*ACTS, *CANNOT_ACT}
