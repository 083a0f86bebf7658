"""``workbench lint``: checks a repository or a config.pbtxt."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import NotFound

if TYPE_CHECKING:
    from workbench.config import Finding

SUMMARY = "Checks a repository or a config.pbtxt; exit code 1 where an error is found."
EXAMPLE = "workbench lint model_repository --fix"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``lint``."""
    parser.add_argument("path", metavar="PATH", help="a config.pbtxt, a model directory or a repository")
    parser.add_argument("--fix", action="store_true", help="apply the fixes that are offered")
    parser.add_argument(
        "--triton-release", default="25.03", metavar="R", help="what the file is meant for (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints each finding as path:line:column."""
    root = Path(args.path)
    files = list(config_files(root))
    if not files:
        raise NotFound(
            f"no config.pbtxt at {root}", where=str(root), hint="give a config.pbtxt, a model directory or a repository"
        )
    report = []
    for path in files:
        findings = check(path, args.triton_release, fix=args.fix)
        report.append(
            {
                "path": str(path),
                "ok": not any(f.severity == "error" for f in findings),
                "findings": [_json(f) for f in findings],
            }
        )
        if not args.json:
            _print(path, findings)
    failed = sum(1 for entry in report if not entry["ok"])
    if args.json:
        print(json.dumps({"files": report}, indent=2, ensure_ascii=False))
    else:
        total = sum(len(entry["findings"]) for entry in report)  # type: ignore[misc, arg-type]
        print(
            f"{len(report)} file{'s' * (len(report) != 1)}, {total} finding{'s' * (total != 1)}, {failed} with errors"
        )
    return 1 if failed else 0


def config_files(root: Path) -> Iterator[Path]:
    """The configurations to check: the file itself, a model's, or every model's of a repository."""
    if root.is_file():
        yield root
    elif (root / "config.pbtxt").is_file():
        yield root / "config.pbtxt"
    elif root.is_dir():
        yield from sorted(root.glob("*/config.pbtxt"))
    else:
        raise NotFound(f"{root} does not exist", where=str(root))


def check(path: Path, release: str, *, fix: bool) -> list[Finding]:
    """The findings of one file; with ``fix``, those that are left after the fixes have been written."""
    from workbench.config import LintContext, fix_all, lint_config

    name = path.parent.resolve().name if path.name == "config.pbtxt" else None
    data = path.read_bytes()
    findings = lint_config(data, triton_release=release, directory_name=name, path=str(path))
    if fix and any(finding.fix for finding in findings):
        mended, findings = fix_all(data, context=LintContext(triton_release=release, directory_name=name))
        if mended != data:
            path.write_bytes(mended)
    return findings


def _json(finding: Finding) -> dict[str, Any]:
    return finding.to_json()


def _print(path: Path, findings: list[Finding]) -> None:
    for finding in findings:
        print(f"{path}:{finding.line}:{finding.column}: {finding.severity}: {finding.message} [{finding.rule}]")
        if finding.fix is not None:
            print(f"    fix: {finding.fix.title}")
