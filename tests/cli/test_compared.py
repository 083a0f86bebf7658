"""ab and compare: what they show while they run and at their end, and what is shown of their runs later."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from onnx_models import add_model

from workbench.cli import main
from workbench.cli.ab import told
from workbench.profiling import ABResult, Load, Point
from workbench.profiling.ab_result import Block, Side, compare_blocks
from workbench.records.runs import RunStore
from workbench.session.opening import serve
from workbench.session.remote import WorkbenchServer

DELAY = "dynamic_batching.max_queue_delay_microseconds"
SHORT = ["-p", "150", "--warmup", "0.02"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    root = tmp_path_factory.mktemp("served") / "models"
    root.mkdir()
    for name in ("double", "spare"):
        add_model(root, name)
    with serve(root, name="compared-test") as opened:
        yield opened


def in_a_terminal(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output, and what a terminal of 80 columns got as standard error."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = bytearray()
    with subprocess.Popen(
        [sys.executable, "-m", "workbench.cli", *words], stdout=subprocess.PIPE, stderr=slave, text=True,
        env={**os.environ, "COLUMNS": "80"},
    ) as process:  # fmt: skip
        os.close(slave)
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(master, 65536):
                shown += data
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(master)
    return process.returncode, printed, shown.decode(errors="replace")


def test_an_ab_shows_how_far_it_is_and_its_run_says_the_same_again(
    server: WorkbenchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    runs = ["--runs", str(tmp_path)]
    code, printed, progress = in_a_terminal(
        "ab", "double", "--server", "compared-test", "--b", f"{DELAY}=30000", "--pairs", "2", *SHORT, *runs
    )
    assert code == 0, printed
    assert "2/2" in progress, "pairs of those up to the first look"
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    (run,) = RunStore(tmp_path).list()
    assert lines[-1] == f"run {run.id}"
    assert main(["runs", "show", *runs]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert " ".join(" ".join(lines[:-1]).split()) in shown
    assert "B: double max_queue_delay_microseconds 30000" in shown


def test_an_ab_is_quiet_where_nobody_looks(
    server: WorkbenchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ab", "double", "--server", "compared-test", "--pairs", "2", "--max-pairs", "2", *SHORT]
    main([*words, "--runs", str(tmp_path), "--json"])  # whatever the verdict is: the machine may be busy
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out)["run"] == RunStore(tmp_path).list()[-1].id


def test_a_comparison_says_the_same_again(
    server: WorkbenchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    runs = ["--runs", str(tmp_path)]
    words = ["compare", "double", "spare", "--server", "compared-test", "--rounds", "2", "--no-startup", *SHORT]
    assert main([*words, *runs]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"run {RunStore(tmp_path).list()[-1].id}"
    assert "has the highest throughput" in said[0]
    assert main(["runs", "show", *runs]) == 0
    again = capsys.readouterr().out
    assert "\n".join(said[:-1]) in again, "verdict, figures and answers"
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs", "show", *runs]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    rows = [line for line in narrow.splitlines() if re.match(r"(double|spare) +(onnxruntime +)?[\d-]", line)]
    assert len(rows) == 2, narrow


def test_a_comparison_of_a_version_before_shows_its_verdict_and_whose_the_points_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(tmp_path)
    for kind, about in (
        ("compare", {"verdict": "a has the highest throughput"}),
        (
            "compare",
            {"verdict": "b has the highest throughput", "told": "b has the highest throughput; model a 4.5 MiB"},
        ),
        ("ab", {"verdict": "throughput: B faster by 3.0%", "sides": {"B": {"model": "b", "settings": {DELAY: 9}}}}),
    ):
        with store.create(kind, model="a", **about) as run:
            for model in "ab":
                run.add_point(Point(model=model, load=Load.closed(1), valid=True, n=500).to_json())
            run.finish()
        assert main(["runs", "show", run.id, "--runs", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert str(about["verdict"]) in shown
        assert "model" in shown
    assert f'B: b {{"{DELAY}": 9}}' in shown


def test_names_that_belong_together_are_said_by_flags(
    server: WorkbenchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "double", "spare", "--server", "compared-test", "--rounds", "2", "--no-startup", *SHORT,
             "--runs", str(tmp_path)]  # fmt: skip
    assert main([*words, "--input-name", "spare:x=x", "--output-name", "spare:y=y", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["models"][1]["drift"][0]["output"] == "y"
    assert main([*words, "--output-name", "other:y=y"]) == 1
    assert "compared are double, spare" in capsys.readouterr().err
    assert main([*words, "--input-name", "x=y"]) == 1
    assert "write MODEL:NAME=OWN" in capsys.readouterr().err
    assert main([*words, "--input-name", "spare:x=z"]) == 1
    said = "".join(capsys.readouterr())
    assert "input_names" not in said


def test_a_model_that_is_not_loaded_is_told_with_how_to_load_it(
    server: WorkbenchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "double", "late", "--server", "compared-test", "--rounds", "2", "--no-startup", *SHORT]
    add_model(Path(server.repository_paths[0]), "late")
    try:
        assert main([*words, "--runs", str(tmp_path)]) == 1
        said = " ".join(capsys.readouterr().out.split())
        assert "late: it is not loaded: a server in control mode explicit loads it: curl -X POST" in said
        assert "/v2/repository/models/late/load" in said
        assert main([*words, "--runs", str(tmp_path), "--reference", "late"]) == 1
        assert "server.load(" not in capsys.readouterr().err
    finally:
        shutil.rmtree(Path(server.repository_paths[0]) / "late")


def test_blocks_that_are_left_out_are_one_line() -> None:
    good = Point(model="m", load=Load.closed(1), valid=True, stable=True, n=200, throughput=100.0, p99_ms=2.0)

    def late(ms: float) -> Point:
        return replace(good, valid=False, reasons=(f"the load generator was late: send lag p50 {ms} ms",))

    points = [good, good, late(1.5), good, good, late(2.25), late(3), replace(good, failed=4), good, good]
    blocks = tuple(Block("AB"[place % 2], place // 2, point) for place, point in enumerate(points))  # type: ignore[arg-type]
    sides = Side("A", "m"), Side("B", "m", {DELAY: 5})
    result = ABResult(*sides, Load.closed(1), blocks, compare_blocks(blocks, (2, 4)), "throughput", looks=(2, 4))
    lines = told(result).splitlines()
    (line,) = [line for line in lines if "left out" in line]
    assert line == (
        "  ! 4 of 10 blocks were left out: 3 × the load generator was late: send lag p50 1.5 ms; 1 × 4 requests failed"
    )
    assert lines[0] == result.verdict
    assert not any("left out" in text for text in told(replace(result, blocks=blocks[:2])).splitlines())


def test_a_percentile_that_blocks_are_too_short_for_says_how_long_they_must_be() -> None:
    few = Point(model="m", load=Load.closed(1), valid=True, stable=True, n=40, throughput=40.0, p99_ms=2.0)
    blocks = tuple(Block(side, pair, few) for pair in range(2) for side in ("A", "B"))  # type: ignore[arg-type]
    load = Load.closed(1, duration_s=1.0)
    result = ABResult(Side("A", "m"), Side("B", "m"), load, blocks, compare_blocks(blocks, (2,)), "p99_ms", looks=(2,))
    assert math.isnan(result.comparisons["p99_ms"].low)
    assert "p99 takes 100 requests of each block, one had 40: -p 3000 gives them" in told(result)
    counted = replace(result, load=Load.closed(1, requests=40))
    assert "one had 40: --measurement-request-count 110 gives them" in told(counted)
