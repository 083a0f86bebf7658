"""Each block of the public reports on batching, queues, sequences, ensembles, measuring and so on has its tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = (
    "F01 F02 F03 F04 F05 F06 F11 F13 F16 F18 F20 F22 F23 F24 F25 "
    "F26 F28 F30 F32 F35 F37 F38 F49 F50 F51 F52 F56 F58 F61 F63 F65 F66"
)
ON_BOTH_FRONT_ENDS = "F16 F37 F38 F49 F50 F51 F52 F56 F58"
"""What is on the wire, and so is tested over HTTP and over gRPC."""
ELSEWHERE = {
    "the repository: loading, polling, the index": "F39 F40 F41 F45 F46",
}
"""What the other blocks are about."""


def names_of_tests(files: str = "test_f*.py") -> list[str]:
    """The test functions of this folder."""
    folder = Path(__file__).parent
    trees = [ast.parse(path.read_text()) for path in sorted(folder.glob(files))]
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_every_block_is_tested_under_the_name_of_its_thread(shared: Path) -> None:
    text = (shared / "cases" / "reports.md").read_text()
    blocks = dict(re.findall(r"^### (F\d+) (?:[^\n—]*?/)?([a-z_]+#\d+)", text, re.MULTILINE))
    numbers = re.findall(r"^### (F\d+) ", text, re.MULTILINE)
    others = {number for listed in ELSEWHERE.values() for number in listed.split()}
    here = HERE.split()
    assert sorted({*here, *others}) == sorted(numbers), "a block is in neither list"
    names = names_of_tests()
    missing = []
    for number in here:
        thread = blocks[number].replace("#", "_")
        if not any(name.startswith(f"test_{number.lower()}_{thread}") for name in names):
            missing.append(f"{number} {blocks[number]}")
    assert not missing, missing


def test_what_is_on_the_wire_is_tested_over_grpc_too() -> None:
    names = names_of_tests("test_f49_over_grpc.py")
    missing = [
        number
        for number in ON_BOTH_FRONT_ENDS.split()
        if not any(name.startswith(f"test_{number.lower()}_") for name in names)
    ]
    assert not missing, missing
