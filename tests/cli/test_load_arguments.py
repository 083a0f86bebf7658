"""The load that is named on the command line, by perf_analyzer's names."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_echo import write_repository

from workbench.cli import main
from workbench.cli.load_arguments import add_load_arguments, load_options
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling import Load
from workbench.session.loads import loads_of
from workbench.session.opening import serve


def named(*words: str) -> tuple[list[Load], dict[str, Any]]:
    """The loads that the words name, and what else a sweep is told."""
    parser = argparse.ArgumentParser()
    add_load_arguments(parser)
    options = load_options(parser.parse_args(words))
    rest = {name: options.pop(name) for name in ("inputs", "measure") if name in options}
    load, concurrency, rate = (options.pop(name, None) for name in ("load", "concurrency", "rate"))
    return loads_of(concurrency, rate, options, load), rest


EVERYTHING = """
--rate 50 --request-distribution bursty --burst-factor 8 --burst-s 0.5 -b 4 --streaming --shared-memory system
--output-shared-memory-size 4096 --sequence-length 12 --num-of-sequences 3 --sequence-length-variation 25 --priority 2
--request-timeout-s 0.5 --random-seed 9 --request-parameter a:true:bool --request-parameter k:5:int
--request-parameter t:x:y:string -p 700 --max-duration-s 3 --measurement-request-count 7 --warmup 0.2 --max-warmup-s 4
--stability three_windows --input-data x.csv --generators 2
"""


def test_every_argument_sets_its_field() -> None:
    (load,), rest = named(*EVERYTHING.split())
    assert load == Load.open(
        50, "bursty", burst_factor=8, burst_s=0.5, batch_size=4, streaming=True, shared_memory="system",
        output_bytes=4096, sequence_length=12, sequences=3, sequence_length_variation=0.25, priority=2, timeout_s=0.5,
        seed=9, parameters={"a": True, "k": 5, "t": "x:y"}, duration_s=0.7, max_duration_s=3, min_requests=7,
        warmup_s=0.2, max_warmup_s=4, generators=2,
    )  # fmt: skip
    assert rest["inputs"] == "x.csv"
    assert rest["measure"].stability == "three_windows"
    (plain,), rest = named()
    assert plain == Load.closed(1)
    assert rest == {"inputs": None}
    (gamma,), _ = named("--rate", "5", "--request-distribution", "gamma", "--cv", "3")
    assert gamma == Load.open(5, "gamma", cv=3)
    count = ["--measurement-mode", "count_windows"]
    assert named(*count)[0] == [Load.closed(1, requests=100)]
    assert named(*count, "--measurement-request-count", "7")[0] == [Load.closed(1, requests=7)]
    assert named("--measurement-mode", "time_windows", "--measurement-request-count", "7")[0] == [
        Load.closed(1, min_requests=7)
    ]


def test_classes_and_replays(tmp_path: Path) -> None:
    classes = {"a": {"rate": 100, "priority": 1}, "b": {"concurrency": 4}}
    (load,), _ = named("--classes", json.dumps(classes), "-p", "500")
    assert load == Load.classes({"a": Load.open(100, priority=1), "b": Load.closed(4)}, duration_s=0.5)
    path = tmp_path / "classes.json"
    path.write_text(json.dumps({"a": {"share": 3}, "b": {"share": 1}}))
    loads, _ = named("--classes", str(path), "--concurrency", "4,8")
    assert [[part.concurrency for part in load.parts] for load in loads] == [[3, 1], [6, 2]]
    intervals = tmp_path / "intervals"
    intervals.write_text("1000\n")
    with pytest.raises(InvalidRequest, match="factor must be above 0, got 0"):
        named("--request-intervals", str(intervals), "--factor", "0")
    (load,), _ = named("--request-intervals", str(intervals), "--factor", "2", "--warmup", "0")
    assert load == Load.replay(intervals, 2.0, warmup_s=0.0)


COUNT = ("--measurement-mode", "count_windows", "--measurement-request-count")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--classes", "{"], "--classes is not JSON"),
        (["--classes", "[]"], "no such file of classes"),
        (["--classes", '{"a": {"priority": 1}}'], "class 'a' says neither"),
        (["--classes", '{"a": {"share": 1}}'], "need a total"),
        (["--classes", "{}", "--replay", "x"], "exclude each other"),
        (["--replay", "none.npz"], "no such trace"),
        (["--replay", "x", "--rate", "5"], "a replay has its own rate"),
        (["--request-parameter", "a:5"], "cannot read --request-parameter a:5"),
        (["--request-parameter", "a:x:int"], "cannot read --request-parameter a:x:int"),
        (["--rate", "5", "--burst-factor", "0.5"], "burst_factor must be a number from 1"),
        (["--concurrency-range", "1:100000000:1"], "names 100000000 loads, a range has 16384 at most"),
        (["--request-rate-range", "1:30000:1"], "names 30000 loads, a range has 16384 at most"),
        (["--request-rate-range", "1:2:1e-320"], "a range has 16384 at most"),
        (["--request-rate-range", "1:inf:1"], "'1:inf:1' is not a range"),
        (["--concurrency-range", "nan:4:1"], "'nan:4:1' is not a range"),
        (["--concurrency-range", "1.5:3"], "'1.5:3' is not a range of whole numbers"),
        (["--concurrency", ""], "'' is not a list of numbers"),
        (["--rate", ""], "'' is not a list of numbers"),
        (["--classes", '{"a": 5}'], "class 'a' says neither"),
        (["--classes", "/proc/self/mem"], "the file of classes cannot be read"),
        (["--classes", '{"a": {"rate": 5, "concurrency": 2}}'], "class 'a' has both a rate and a concurrency"),
        (["--request-parameter", "a:nan:float"], "parameter 'a' must be"),
        ([*COUNT, "0"], "--measurement-request-count must be above 0 to count by, got 0"),
        ([*COUNT, "-3"], "--measurement-request-count must be above 0 to count by, got -3"),
    ],
)
def test_what_makes_no_sense_is_said(words: list[str], text: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        named(*words)
    assert text in f"{caught.value.message} {caught.value.hint}"


def test_options_beside_a_whole_load_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="seed beside it"):
        loads_of(None, None, {"seed": 3}, Load.closed(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with serve(write_repository(tmp_path_factory.mktemp("models")), name="load-arguments"):
        yield


@pytest.mark.usefixtures("server")
def test_a_load_of_classes_is_measured_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = tmp_path / "rows.csv"
    inputs.write_text("X_0,X_1,X_2,X_3,T\n1,2,3,4,eins\n5,6,7,8,zwei\n")
    base = ["profile", "echo", "--server", "load-arguments", "--runs", str(tmp_path / "runs"), "-p", "400"]
    base += ["--warmup", "0.1", "--max-warmup-s", "0.2", "--max-duration-s", "0.4", "--input-data", str(inputs)]
    classes = '{"fast": {"rate": 50, "distribution": "constant"}, "bulk": {"concurrency": 2, "batch_size": 3}}'
    main([*base, "--classes", classes, "--json"])
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["inputs"], point["failed"]) == ("rows.csv", 0)
    assert point["classes"]["fast"]["n"] == pytest.approx(20, abs=1)
    assert point["classes"]["bulk"]["throughput"] > 0
    main([*base, "--classes", classes])
    shown = capsys.readouterr().out
    assert "classes" in shown
    assert "concurrency 2 × 3 rows" in shown
    inputs.write_text("X_0,X_1,X_2,T\n1,2,3,eins\n")
    assert main([*base, "--concurrency", "1"]) != 0
    assert "input 'X' has shape [3], the model's dims are [4]" in "".join(capsys.readouterr())
