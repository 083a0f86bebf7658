"""Triton's public client examples end here as they do there; and the tool that runs them tells when one does not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_examples import LEFT_OUT, RUNS, Column, Row, columns_of, failures, run_all, table, unknown
from real_triton import Addresses


def folder_of(variable: str) -> Path | None:
    named = os.environ.get(variable)
    return Path(named) if named else None


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_examples_pass(tmp_path: Path) -> None:
    examples = folder_of("WORKBENCH_CLIENT_EXAMPLES")
    if examples is None:
        pytest.skip("WORKBENCH_CLIENT_EXAMPLES names no copy of Triton's client examples")
    rows, columns = run_all(examples, folder_of("WORKBENCH_EXAMPLE_MODELS"), logs=tmp_path)
    shown = table(rows, columns, examples)
    assert failures(rows, columns) == [], shown
    assert unknown(examples) == [], "new examples, which have no entry in tests/client_examples.py"


HEALTH = """import argparse
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("-v", "--verbose", action="store_true")
parser.add_argument("-u", "--url")
with urllib.request.urlopen(f"http://{parser.parse_args().url}/v2/health/ready") as answer:
    raise SystemExit(0 if answer.status == 200 else 1)
"""


@pytest.mark.full
def test_the_tool_starts_a_server_and_tells_how_each_example_ended(tmp_path: Path) -> None:
    (tmp_path / "simple_http_health_metadata.py").write_text(HEALTH)
    (tmp_path / "simple_grpc_health_metadata.py").write_text('# "--url"\nraise SystemExit(3)\n')
    (tmp_path / "simple_http_async_infer_client.py").write_text('# "--url"\nif False:\n    print("PASS")\n')
    rows, columns = run_all(tmp_path, logs=tmp_path / "logs")
    (here,) = (column.title for column in columns)
    assert {row.run.example: row.ends[here] for row in rows} == {
        "simple_http_health_metadata.py": "0",
        "simple_grpc_health_metadata.py": "3",
        "simple_http_async_infer_client.py": "0, without PASS",
    }
    assert sorted(failures(rows, columns)) == [
        f"simple_grpc_health_metadata.py: 3 with {here}, expected 0",
        f"simple_http_async_infer_client.py: 0, without PASS with {here}, expected 0",
    ]
    assert any((tmp_path / "logs").glob("*.server.log"))


def test_an_example_without_an_entry_is_told(tmp_path: Path) -> None:
    for name in (RUNS[0].example, *LEFT_OUT, "simple_new_client.py"):
        (tmp_path / name).write_text("")
    assert unknown(tmp_path) == ["simple_new_client.py"]


def test_a_folder_without_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}: none of Triton's client examples is here"):
        run_all(tmp_path)


@contextlib.contextmanager
def nowhere(*_: object) -> Iterator[Addresses]:
    yield Addresses("", "")


def test_what_ended_otherwise_than_expected_fails(tmp_path: Path) -> None:
    ours, theirs = (Column(title, here, lambda *_: None, nowhere) for title, here in (("ours", True), ("real", False)))
    fails = next(run for run in RUNS if run.expected == 1)
    differs = next(run for run in RUNS if run.real == 1)
    rows = [
        Row(RUNS[0], {"ours": "0", "real": "1"}),
        Row(RUNS[1], {"ours": "not run: attrdict is not installed", "real": "0"}),
        Row(fails, {"ours": "1", "real": "1"}),
        Row(fails, {"ours": "0", "real": "1"}),
        Row(differs, {"ours": "0", "real": "1"}),
        Row(differs, {"ours": "1", "real": "0"}),
    ]
    assert failures(rows, [ours, theirs]) == [
        f"{RUNS[0].title}: 1 with real, expected 0",
        f"{fails.title}: 0 with ours, expected 1",
        f"{differs.title}: 1 with ours, expected 0",
        f"{differs.title}: 0 with real, expected 1",
    ]
    (tmp_path / next(iter(LEFT_OUT))).write_text("")
    lines = table(rows, [ours, theirs], tmp_path).splitlines()
    assert lines[0] == "| Example | Protocol | ours | real | Note |"
    assert lines[2] == f"| `{RUNS[0].title}` | {RUNS[0].wire} | 0 | 1 | |"
    assert "| left out | left out | needs a GPU" in lines[-1]


def test_triton_s_own_models_come_first_where_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "models" / "simple").mkdir(parents=True)
    (tmp_path / "models" / "simple" / "config.pbtxt").write_text('name: "simple"  # theirs\n')
    (tmp_path / "repository").mkdir()
    given, equivalent = columns_of(tmp_path / "models", None)
    given.write(tmp_path / "repository", "simple")
    given.write(tmp_path / "repository", "repeat_int32")
    assert "theirs" in (tmp_path / "repository" / "simple" / "config.pbtxt").read_text()
    assert 'backend: "repeat"' in (tmp_path / "repository" / "repeat_int32" / "config.pbtxt").read_text()
    equivalent.write(tmp_path / "repository", "simple_int8")
    assert 'backend: "python"' in (tmp_path / "repository" / "simple_int8" / "config.pbtxt").read_text()
