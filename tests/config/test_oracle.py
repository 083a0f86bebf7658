"""The recorded answers of Triton's parser are those of the real binary."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest
from real_triton import real_triton

from workbench.config.syntax import Parser

NEW_TEXT = 'Multiline strings are not allowed. Did you miss a "?.'
OLD_TEXT = "String literals cannot cross line boundaries."
ANSWERS = json.loads(Path(__file__).with_name("parser_answers.json").read_text())


def errors_in_log(log: str) -> dict[str, list[str]]:
    """Model directory -> the parser's errors, which stand before the line that names it."""
    waiting: list[str] = []
    found: dict[str, list[str]] = {}
    for line in re.split(r"\n(?=\[libprotobuf|[EWI]\d{4} )", log):  # a token in an error can hold a line break
        error = re.search(r"Error parsing text-format inference.ModelConfig: (.*)", line, re.DOTALL)
        if error is not None:
            waiting.append(error.group(1))
            continue
        poll = re.search(r"Poll failed for model directory '([^']+)'", line)
        if poll is not None:
            found[poll.group(1)], waiting = waiting, []
    return found


NEWER = ("model_metrics", "max_inflight_requests", "use_growable_memory")
"""Fields that the schema of the oracle's release does not have."""


def ask(oracle: Path, folder: Path, configs: dict[str, bytes]) -> dict[str, list[str]]:
    """What the real parser says about each configuration, by name; [] for one that it accepts."""
    repository = folder / "repository"
    for name, data in configs.items():
        (repository / name).mkdir(parents=True)
        (repository / name / "config.pbtxt").write_bytes(data)
    log = folder / "log"
    with real_triton(oracle, repository, log):
        pass
    found = errors_in_log(log.read_bytes().decode("utf-8", "replace"))
    return {name: found.get(name, []) for name in configs}


@pytest.mark.full
@pytest.mark.oracle
def test_tritonserver_says_what_was_recorded(oracle: Path, tmp_path: Path) -> None:
    rows = {f"c{index:03d}": row for index, row in enumerate(ANSWERS) if row["errors"]}
    said = ask(oracle, tmp_path, {name: row["config"].encode("latin-1") for name, row in rows.items()})
    assert said == {name: row["errors"] for name, row in rows.items()}


WORDS = (
    rb"""{ } [ ] : , ; " ' \ - . # 0x 1e f 08 9999999999 < > TYPE_X dims:3 key:"" true inf "a""b" \x \u12 1.5. a.5 $"""
).split()


def mutated(rng: random.Random, files: list[bytes]) -> bytes:
    """Some lines of a real file with a few bytes changed, removed or put in."""
    lines = rng.choice(files).split(b"\n")
    start = rng.randrange(len(lines))
    data = b"\n".join(lines[max(0, start - 6) : start + 20])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at, kind = rng.randrange(len(data) + 1), rng.random()
        if kind < 0.4:
            data = data[:at] + rng.choice([*WORDS, b"\n", b"\t", b"\x00", b"\x01", b"\xff"]) + data[at:]
        elif kind < 0.65:
            data = data[:at] + data[at + rng.randrange(1, 6) :]
        elif kind < 0.85:
            other = rng.randrange(len(data) + 1)
            data = data[:at] + data[other : other + rng.randrange(1, 40)] + data[at:]
        else:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


@pytest.mark.full
@pytest.mark.oracle
def test_broken_files_get_the_errors_of_tritonserver(oracle: Path, shared: Path, tmp_path: Path) -> None:
    count = int(os.environ.get("WORKBENCH_PROOF_SIZE", "300"))
    rng = random.Random(2024)
    files = [path.read_bytes() for path in sorted((shared / "cases").glob("configs*/*.pbtxt"))]
    configs = {f"m{index:05d}": mutated(rng, files) for index in range(count)}
    said = ask(oracle, tmp_path, configs)
    refused = 0
    for name, data in configs.items():
        parser = Parser(data)
        parser.parse()
        # the oracle's protobuf is older and has another text for this one error
        ours = [str(fault).replace(NEW_TEXT, OLD_TEXT) for fault in parser.faults]
        if not any(field in text for field in NEWER for text in said[name]):
            assert ours == said[name], data
            refused += bool(ours)
    assert refused > count / 2
