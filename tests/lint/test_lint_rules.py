"""Every rule of the linter speaks where it should, is silent where it should be, and its fix takes the fault away."""

from __future__ import annotations

from pathlib import Path

import pytest
from lint_cases import CASES, Case, Files, write

import workbench as wb
from workbench.config import RULES, ConfigDocument, Finding
from workbench.config.texts.rules import TEXT_RULES

NAMED = [pytest.param(case, id=f"{case.rule}-{index}") for index, case in enumerate(CASES)]
OWN = set(RULES) - set(TEXT_RULES)


def found(root: Path, case: Case, *, fix: bool = False) -> dict[str, list[Finding]]:
    """The findings by file; a folder that holds folders of models is several repositories."""
    roots = [root] if (root / "m").exists() or (root / "e").exists() else sorted(root.iterdir())
    report = wb.lint(*roots, fix=fix, **case.options)
    return {str(each.path.relative_to(root)): list(each.findings) for each in report}


@pytest.mark.parametrize("case", NAMED)
def test_it_is_found_where_it_is(tmp_path: Path, case: Case) -> None:
    findings = found(write(tmp_path, case.files), case)
    mine = [each for each in findings.get(case.where, []) if each.rule == case.rule and case.says in each.message]
    assert mine, [(place, each.rule, each.message) for place, all_ in findings.items() for each in all_]
    assert mine[0].severity == (case.severity or RULES[case.rule].severity)
    assert mine[0].line >= 1
    assert mine[0].column >= 1


@pytest.mark.parametrize("case", NAMED)
def test_it_is_silent_about_what_is_only_close(tmp_path: Path, case: Case) -> None:
    findings = found(write(tmp_path, case.without), case)
    assert [each.message for all_ in findings.values() for each in all_ if each.rule == case.rule] == []


@pytest.mark.parametrize("case", [param for param in NAMED if param.values[0].fixed is not None])
def test_its_fix_takes_the_fault_away(tmp_path: Path, case: Case) -> None:
    root = write(tmp_path, case.files)
    before = [each for each in found(root, case)[case.where] if each.rule == case.rule]
    assert any(each.fix is not None for each in before)
    left = found(root, case, fix=True)
    data = (root / case.where).read_bytes()
    ConfigDocument.parse(data)
    assert case.fixed in data.decode()
    assert not [each for each in left[case.where] if each.rule == case.rule and case.says in each.message]
    assert found(root, case) == left, "linting again finds the same"
    assert found(root, case, fix=True) == left
    assert (root / case.where).read_bytes() == data, "fixing again changes nothing"


def test_every_rule_has_its_cases() -> None:
    cases: dict[str, list[Files]] = {}
    for case in CASES:
        cases.setdefault(case.rule, []).append(case.files)
    assert set(cases) == OWN
    with_fix = {case.rule for case in CASES if case.fixed is not None}
    untried = {name for name in OWN if RULES[name].fix} - with_fix
    assert untried <= FIXED_ELSEWHERE.keys()


FIXED_ELSEWHERE = {
    "yaml-style": "the whole file is written anew: test_yaml_becomes_a_config",
    "two-keys": "in several styles: test_two_keys_in_one_entry_become_two_entries",
    "misplaced-field": "in several places: test_misplaced_fields_move_home",
}


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_is_explained(name: str) -> None:
    rule = RULES[name]
    assert rule.severity in ("error", "warning", "hint")
    assert len(rule.explanation.split()) >= 4
    assert rule.explanation.endswith(".")
