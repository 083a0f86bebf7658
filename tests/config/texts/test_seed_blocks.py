"""Every configuration and code block of the seeds: what it is, the verdict, the reason (rules) and the fix."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.config import ConfigDocument, Finding, complete_backend, normalize, problems
from workbench.config.texts import Passage, blocks, fix_text, lint_text
from workbench.errors import WorkbenchError
from workbench.protocol.http_request import decode_request


@dataclass(frozen=True)
class Case:
    """A block by its first and last line.

    ``verdict``: ``works`` as it stands; Triton (or the shell, or the tool) has ``refused`` it; a part of it is silently
    ``ignored``; it is ``wrong``: it does not do what the text says. ``fixed``: whether lint mends all of it.
    """

    file: str
    first: int
    last: int
    kind: str
    verdict: str = "works"
    rules: tuple[str, ...] = ()
    fixed: bool = True


CASES = (
    Case("000", 297, 308, "python"),
    Case("000", 311, 339, "python", "refused", ("request-binary-data",)),
    Case("000", 354, 372, "config", "refused", ("misplaced-field",)),
    Case("000", 389, 393, "model", "refused", ("python-bare-execute",)),
    Case("000", 414, 417, "metrics", "refused", ("metric-series", "metric-series")),
    Case("000", 444, 448, "config", "refused", ("misplaced-field",)),
    Case("000", 459, 480, "config", "refused", ("priority-level", "misplaced-field")),
    Case("000", 495, 501, "config", "wrong", ("instances-per-gpu",), fixed=False),
    Case("000", 525, 531, "tree"),
    Case("000", 542, 559, "config"),
    Case("000", 572, 576, "config"),
    Case("000", 595, 598, "command"),
    Case("000", 631, 654, "model"),
    Case("000", 667, 679, "python"),
    Case("000", 697, 704, "message", "wrong", ("no-triton-text",), fixed=False),
    Case("000", 717, 721, "model"),
    Case("000", 736, 739, "command", "refused", ("shell-continuation", "server-option-old")),
    Case("000", 757, 770, "config"),
    Case("000", 785, 790, "config"),
    Case("000", 807, 813, "config", "wrong", ("instances-per-gpu",), fixed=False),
    Case("000", 824, 841, "config", "refused", ("priority-level", "misplaced-field")),
    Case("000", 858, 863, "config", "refused", ("execution-env",), fixed=False),
    Case("000", 865, 876, "config", "ignored", ("accelerator-for-tensorrt",)),
    Case("000", 891, 895, "config"),
    Case("000", 911, 973, "config", "refused", ("two-keys",)),
    Case("000", 1051, 1065, "tree", "refused", ("tree-version",)),
    Case("000", 1072, 1080, "command", "ignored", ("trtexec-cuda-graph",), fixed=False),
    Case("000", 1164, 1173, "dockerfile"),
    Case("000", 1182, 1186, "command"),
    Case("000", 1195, 1217, "tree", "refused", ("tree-version",)),
    Case("004", 39, 67, "config"),
    Case("004", 81, 108, "model"),
    Case("004", 123, 123, "command"),
    Case("004", 131, 132, "comment"),
    Case("004", 136, 146, "command", "refused", ("perf-shape",), fixed=False),
)

# false statements of the prose, by line
CLAIMS = {
    ("000", 95): "claim-auto-reload",
    ("000", 493): "claim-count-gpus",
    ("000", 566): "claim-version-policy",
    ("000", 581): "claim-auto-reload",
    ("000", 589): "claim-poll-default",
    ("000", 1032): "claim-ensemble-priority",
    ("000", 1086): "claim-ensemble-priority",
    ("000", 1092): "claim-ensemble-priority",
    ("000", 1134): "claim-ensemble-priority",
    ("000", 1240): "claim-ensemble-priority",
}


def name(case: Case) -> str:
    return f"{case.file}:{case.first}"


@cache
def seed(shared: Path, number: str) -> tuple[bytes, str]:
    (path,) = (shared / "seeds").glob(f"{number}_*.txt")
    return path.read_bytes(), str(path)


@cache
def linted(shared: Path, number: str) -> list[Finding]:
    data, path = seed(shared, number)
    return lint_text(data, path=path)


@cache
def mended(shared: Path, number: str) -> tuple[bytes, list[Finding]]:
    data, path = seed(shared, number)
    return fix_text(data, path=path)


def code_of(found: list[Passage]) -> list[Passage]:
    return [each for each in found if each.kind != "other"]


def passage_of(shared: Path, case: Case, *, fixed: bool = False) -> Passage:
    """The block of a case, in the text as it is or with all its fixes; fixes add and remove no block."""
    data, path = seed(shared, case.file)
    index = [each for each in CASES if each.file == case.file].index(case)
    return code_of(blocks(mended(shared, case.file)[0] if fixed else data, path=path))[index]


def findings_of(shared: Path, case: Case) -> list[Finding]:
    return [each for each in linted(shared, case.file) if case.first <= each.line <= case.last]


@pytest.mark.parametrize("number", ["000", "001", "004"])
def test_the_splitter_finds_exactly_these_blocks(shared: Path, number: str) -> None:
    data, path = seed(shared, number)
    found = [
        (each.line, each.line + each.text.rstrip("\n ").count("\n"), each.kind)
        for each in code_of(blocks(data, path=path))
    ]
    assert found == [(each.first, each.last, each.kind) for each in CASES if each.file == number]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_verdict_and_its_reasons(shared: Path, case: Case) -> None:
    found = findings_of(shared, case)
    assert tuple(each.rule for each in found) == case.rules
    assert (case.verdict == "works") == (not found)
    if case.verdict == "refused" and case.rules != ("execution-env",):  # a directory that only may be no environment
        assert any(each.severity == "error" for each in found)
    else:
        assert not any(each.severity == "error" for each in found)


@pytest.mark.parametrize("case", [each for each in CASES if each.rules], ids=name)
def test_what_can_be_fixed_is_fixed_and_the_rest_is_told_in_words(shared: Path, case: Case) -> None:
    data, left = mended(shared, case.file)
    block = passage_of(shared, case, fixed=True)
    last = block.line + block.text.count("\n")
    remain = [each for each in left if block.line <= each.line <= last]
    assert bool(remain) != case.fixed
    assert all(each.fix is None and len(each.message) > 60 for each in remain)
    assert data != seed(shared, case.file)[0] or not case.fixed


def test_the_false_statements_of_the_prose_are_named(shared: Path) -> None:
    inside = {(c.file, line) for c in CASES for line in range(c.first, c.last + 1)}
    found: dict[tuple[str, int], str] = {}
    for number in ("000", "001", "004"):
        found |= {(number, each.line): each.rule for each in linted(shared, number)}
    assert {place: rule for place, rule in found.items() if place not in inside} == CLAIMS


# ---- the verdicts are true: what works works, what is refused is refused, and what is fixed works


def completed(text: str) -> bytes:
    """A part of a configuration with what it needs to be one."""
    head = ""
    if not re.search(r"(?m)^\s*(?:platform|backend)\s*:", text):
        head += 'backend: "onnxruntime"\n'
    if not re.search(r"\bmax_batch_size\b", text):
        head += "max_batch_size: 8\n" if "batching" in text or "priority" in text else ""
    return (head + text).encode()


def refusals(text: str) -> list[str]:
    """What Triton says of a configuration when it is loaded."""
    try:
        document = ConfigDocument.parse(completed(text))
    except WorkbenchError as error:
        return [error.message]
    message = document.message
    config = normalize(complete_backend(message, message.name or "m", ()), model_name=message.name or "m", gpus=(0, 1))
    return [each.message for each in problems(config, gpus=(0, 1), io=bool(message.input))]


CONFIGS = [each for each in CASES if each.kind == "config"]


@pytest.mark.parametrize("case", CONFIGS, ids=name)
def test_a_configuration_is_refused_or_not_as_the_verdict_says(shared: Path, case: Case) -> None:
    refused = case.verdict == "refused" and case.rules != ("execution-env",)
    assert bool(refusals(passage_of(shared, case).text)) == refused


@pytest.mark.parametrize("case", CONFIGS, ids=name)
def test_a_fixed_configuration_is_accepted(shared: Path, case: Case) -> None:
    assert refusals(passage_of(shared, case, fixed=True).text) == []


def variables(text: str) -> dict[str, Any]:
    """Runs a client's code up to its request; clients and servers are not needed for that."""
    body = [node for node in ast.parse(text).body if not isinstance(node, ast.With)]
    stop = next((i for i, node in enumerate(body) if "requests.post" in ast.unparse(node)), len(body))
    kept = [node for node in body[:stop] if "import requests" not in ast.unparse(node)]
    scope: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), "<seed>", "exec"), scope)
    return scope


def test_the_body_with_binary_data_and_no_data_is_refused_and_the_fixed_one_is_read(shared: Path) -> None:
    case = next(each for each in CASES if each.rules == ("request-binary-data",))
    body = json.dumps(variables(passage_of(shared, case).text)["payload"]).encode()
    with pytest.raises(WorkbenchError, match="Shape does not match true shape"):
        decode_request(body)
    scope = variables(passage_of(shared, case, fixed=True).text)
    (tensor,) = decode_request(json.dumps(scope["payload"]).encode()).inputs
    assert (tensor.name, tensor.datatype, tuple(tensor.shape)) == ("input_ids", "INT32", (1, 128))
    assert np.array_equal(np.asarray(tensor.data), scope["input_data"])


@pytest.mark.parametrize("line", [297, 667])
def test_the_grpc_clients_make_their_inputs(shared: Path, line: int) -> None:
    case = next(each for each in CASES if each.first == line)
    (made,) = variables(passage_of(shared, case).text)["inputs"]
    assert (made.name(), made.datatype(), made.shape()[-1]) == ("input_ids", "INT32", 128)


@pytest.fixture
def fake_server(tmp_path: Path) -> dict[str, str]:
    """A program ``tritonserver`` that writes down its options, and an environment whose path leads to it."""
    program = tmp_path / "tritonserver"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/options\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "SEEN": str(tmp_path / "options")}


def options_of(text: str, environment: dict[str, str]) -> list[str]:
    subprocess.run(["bash", "-c", text], env=environment, capture_output=True, check=False)
    return Path(environment["SEEN"]).read_text().split()


def test_the_command_without_backslashes_loses_its_options_and_the_fixed_one_has_them(
    shared: Path, fake_server: dict[str, str]
) -> None:
    case = next(each for each in CASES if each.first == 736)
    assert options_of(passage_of(shared, case).text, fake_server) == []
    assert options_of(passage_of(shared, case, fixed=True).text, fake_server) == [
        "--model-repository=/models",
        "--cuda-memory-pool-byte-size=0:268435456",
        "--cache-config=local,size=134217728",
    ]
    whole = next(each for each in CASES if each.first == 595)
    assert len(options_of(passage_of(shared, whole).text, fake_server)) == 3
