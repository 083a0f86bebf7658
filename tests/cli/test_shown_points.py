"""What is shown of measured points: tables as wide as the terminal, what a p99 is worth, which runs are meant."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.profiling import Load, Point, SweepResult
from workbench.records.runs import RunStore

DELAY = "dynamic_batching.max_queue_delay_microseconds"
POINT = Point(
    model="mlp", load=Load.closed(32), settings={"max_batch_size": 8, DELAY: 500}, valid=True, stable=True, n=2000,
    duration_s=2.0, throughput=1234.5, throughput_low=1200.0, throughput_high=1260.0, p50_ms=12.345, p95_ms=15.5,
    p99_ms=17.25, p99_low=16.0, p99_high=18.0, p99_worth=2000.0, p99_claimable_ms=18.5, queue_ms=3.2,
    compute_input_ms=0.1, compute_infer_ms=8.5, compute_output_ms=0.1, mean_batch=7.91,
)  # fmt: skip
FEW = replace(POINT, n=120, p99_worth=100.0, p99_claimable_ms=math.nan, p99_low=math.nan, p99_high=math.nan)


class _Sweeping:
    """A server whose sweep has these points."""

    def __init__(self, *points: Point) -> None:
        self._points = points

    def sweep(self, model: str, grid: dict[str, Any], **options: Any) -> SweepResult:
        return SweepResult(model, grid, self._points, len(self._points), run_id="r1")

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal of the person who runs the tests; runs that are made in turn are a second apart, as their ids are."""
    monkeypatch.delenv("COLUMNS", raising=False)
    seconds = itertools.count()
    monkeypatch.setattr("workbench.records.runs.utc_now_iso", lambda: f"2026-05-01T10:00:{next(seconds):02}+00:00")


def swept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *points: Point, more: tuple[str, ...] = ()
) -> str:
    """What ``workbench sweep`` says of these points."""
    monkeypatch.setattr("workbench.cli.sweep.open_server", lambda args: _Sweeping(*points))
    main(["sweep", "mlp", "--set", "max_batch_size=[8]", "--set", f"{DELAY}=[500]", *more])
    return capsys.readouterr().out


def stored(store: RunStore, *points: Point, kind: str = "sweep", model: str = "mlp", **meta: Any) -> str:
    with store.create(kind, model=model, **meta) as run:
        for point in points:
            run.add_point(point.to_json(), row=point.row())
        run.finish()
        return run.id


def test_a_goal_that_too_few_requests_were_measured_for_is_said_once_with_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = swept(monkeypatch, capsys, FEW, more=("--p99-ms", "20"))
    assert "best: " in shown
    assert shown.count("needs at least 459 requests, had 100") == 1
    assert "to show that p99 is at most 20 ms measure for about 11 s: -p 11000" in shown, "459 / 100 of 2 s and more"
    enough = swept(monkeypatch, capsys, POINT, more=("--p99-ms", "20"))
    assert "p99 is at most 20 ms (99 % confidence, 2000 requests)" in enough
    assert "!" not in enough
    close = swept(monkeypatch, capsys, POINT, more=("--p99-ms", "18"))
    assert "too close to call: p99 is 17.25 ms" in close
    assert "-p 4000" in close, "twice as long"
    told = json.loads(swept(monkeypatch, capsys, FEW, more=("--p99-ms", "20", "--json")))
    claim = told["best"]["claim"]
    assert (claim["verdict"], claim["needed"], claim["had"], claim["measure_for_s"]) == ("open", 459, 100, 11)


def test_without_a_goal_it_is_said_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = replace(FEW, valid=False, errors={"it died": 9}, reasons=("most requests failed: it died",), p99_worth=1.0)
    shown = swept(monkeypatch, capsys, FEW, POINT, replace(FEW, p99_worth=40.0), lost)
    assert shown.count("it died") == 1
    (line,) = [line for line in shown.splitlines() if "too few requests" in line]
    assert "p99 of 2 of 3 points rests on too few requests: it takes 459" in line
    assert line.endswith("-p 26000"), "for the point with the fewest"
    assert shown.count("17.25?") == 2, "the ones that are meant"
    counted = swept(monkeypatch, capsys, replace(FEW, load=Load.closed(32, requests=120)))
    assert "measure for about 11 s: --measurement-request-count 660" in counted, (
        "no window of so many seconds helps there"
    )
    assert "too few" not in (enough := swept(monkeypatch, capsys, POINT))
    assert "?" not in enough
    stored(RunStore(tmp_path), FEW)
    assert main(["runs", "show", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("p99 rests on too few requests") == 1


def test_an_export_says_what_the_goal_rests_on(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(RunStore(tmp_path / "runs"), replace(FEW, model="magika", settings={}), model="magika")
    where = ["--runs", str(tmp_path / "runs"), "--model-repository", str(repository)]
    assert main(["export", "latest", "--to", str(tmp_path / "out"), "--p99-ms", "20", *where]) == 0
    said = capsys.readouterr().err
    assert "needs at least 459 requests, had 100" in said
    assert "-p 11000" in said


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch_size": 8, DELAY: 500},
        {"dynamic_batching": {"max_queue_delay_microseconds": 100, "preferred_batch_size": [4, 8]}},
        {"instance_group[0].count": 2, "dynamic_batching.preserve_ordering": True, DELAY: 100, "max_batch_size": 64},
    ],
    ids=["none", "two", "object", "four"],
)
def test_no_row_of_a_sweep_is_broken_on_a_narrow_terminal(
    columns: int, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    loads = Load.closed(32), Load.closed(128, batch_size=4, shared_memory="system")
    stored(RunStore(tmp_path), *(replace(POINT, settings=settings, load=load) for load in loads))
    assert main(["runs", "show", "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert sum("1234" in line and "17.25" in line and "valid" in line for line in lines) == 2, "a row is a line"
    shown = " ".join(" ".join(lines).split())
    assert f"left out at {columns} columns: " in shown
    assert "--json has them" in shown
    for value in settings.values():
        assert json.dumps(value) in shown, "what tells the points apart is never left out"


def test_a_failed_request_is_not_left_out_before_what_matters_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stored(RunStore(tmp_path), replace(POINT, settings={}, failed=7))
    main(["runs", "show", "--runs", str(tmp_path)])
    assert "failed" in capsys.readouterr().out.partition("left out")[0]


def test_a_wide_terminal_and_a_pipe_show_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(RunStore(tmp_path), POINT, replace(POINT, throughput=12345.6))
    for columns in ("200", None):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        main(["runs", "show", "--runs", str(tmp_path)])
        shown = capsys.readouterr().out
        assert "left out" not in shown
        assert "12346" in shown, "a large number is written out"
        for head in ("p95 ms", "queue ms", "compute ms", "mean batch", "max_queue_delay_microseconds"):
            assert head in shown


def test_other_tables_are_no_wider_than_the_terminal_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    store = RunStore(tmp_path)
    mixed = Load.classes({"interactive": Load.open(200, priority=1), "bulk": Load.closed(4, batch_size=16)})
    streaming = replace(POINT, load=Load.closed(2, streaming=True), first_response_p50_ms=1.5, responses_per_s=210.5)
    first = stored(store, POINT, streaming, replace(POINT, load=mixed), title="before the new kernel of the machine")
    second = stored(store, replace(POINT, throughput=1500.0, throughput_low=1490.0, throughput_high=1510.0))
    for words in (["list"], ["show", first], ["diff", first, second]):
        assert main(["runs", *words, "--runs", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80, "\n".join(lines)


def test_reasons_that_differ_in_numbers_only_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = [
        replace(POINT, load=Load.closed(n), valid=False, reasons=(f"the load generator was late: send lag {n}.5 ms",))
        for n in (1, 2, 3)
    ]
    short = [
        replace(POINT, stable=False, reasons=(f"throughput is known to ±{n}% only: measure for about {n} s",))
        for n in (12, 20)
    ]
    stored(RunStore(tmp_path), *late, *short)
    main(["runs", "show", "--runs", str(tmp_path)])
    shown = capsys.readouterr().out
    assert shown.count("the load generator was late") == 1
    assert "at concurrency 1 and 2 more: the load generator was late: send lag 1.5 ms" in shown
    assert "a longer window: -p 20000" in shown
    counted = Load.closed(1, requests=100)
    stored(RunStore(tmp_path), *(replace(each, load=counted, duration_s=5.0) for each in short))
    main(["runs", "show", "--runs", str(tmp_path)])
    assert "a longer window: --measurement-request-count 400" in capsys.readouterr().out, "-p does not end that one"


def test_latest_is_said_where_it_is_not_the_last_run(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(tmp_path / "runs")
    point = replace(POINT, settings={}, model="magika")
    sweep = stored(store, point, model="magika")
    later = [stored(store, point, kind=kind) for kind in ("profile", "profile", "ab")]
    where = ["--runs", str(tmp_path / "runs")]
    to = ["--to", str(tmp_path / "out"), "--model-repository", str(repository)]
    assert main(["export", "latest", *to, *where]) == 0
    said = capsys.readouterr().err
    assert said.startswith(f"run {sweep}: ")
    assert "the latest sweep; 3 later runs (profile, ab) chose nothing to export" in said
    for words in (["share", "latest", "--to", str(tmp_path / "shared")], ["annotate", "latest", "quiet"],
                  ["export", "latest", "--to", str(tmp_path / "x.csv")]):  # fmt: skip
        assert main(["runs", *words, *where]) == 0
        assert f"run {later[-1]}" in capsys.readouterr().out, "which one it took"
    assert main(["runs", "share", "latest", "--to", str(tmp_path / "more"), "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == later[-1]
    assert main(["export", later[-1], *to, "--force", *where]) == 1
    assert "is an ab: it has no best configuration" in capsys.readouterr().err


def test_an_export_of_a_sweep_without_a_valid_point_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(RunStore(tmp_path), replace(POINT, valid=False, reasons=("the generator was late",)))
    assert main(["export", "latest", "--to", str(tmp_path / "out"), "--runs", str(tmp_path)]) == 1
    assert f"run {run}: no point of the sweep is valid" in capsys.readouterr().err


def test_a_repository_is_not_exported_without_a_model_that_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(f'name: "{name}"')
    words = ["export", str(tmp_path / "models"), "--to", str(tmp_path / "out"), "--model", "a", "--model", "c"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "no model 'c'" in said
    assert "there are a, b" in said
    assert not (tmp_path / "out").exists()
