"""perf_analyzer's CSV and JSON as points of ours: files in its form, and files that the real one writes."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from onnx_models import add_model

import workbench as wb
from workbench.errors import InvalidRequest, NotFound

HEAD = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,Server "
    "Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)
ROWS = "1,200,100,900,500,50,1500,50,0,3000,4000,5000,9000\n4,400.5,110,910,4500,60,1600,60,10,8000,9000,9900,12000\n"


def write_csv(folder: Path, text: str = f"{HEAD}\n{ROWS}") -> Path:
    path = folder / "run.csv"
    path.write_text(text)
    return path


def experiment(mode: str = "concurrency", value: float = 1, *, responses: int = 1) -> dict[str, Any]:
    """Five windows of a second; in those that count 600 requests of 4 ms, in the first two slower ones."""
    start = 1_700_000_000_000_000_000
    requests = []
    for number in range(1000):
        sent = start + number * 5_000_000
        took = 4_900_000 if number < 400 else 4_000_000
        answers = [sent + took * (part + 1) // responses for part in range(responses)]
        requests.append({"timestamp": sent, "response_timestamps": answers})
    bounds = [start + second * 1_000_000_000 for second in range(6)]
    return {"experiment": {"mode": mode, "value": value}, "requests": requests, "window_boundaries": bounds}


def write_export(folder: Path, *experiments: dict[str, Any]) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps({"version": "x", "service_kind": "triton", "experiments": list(experiments)}))
    return path


def test_a_csv_becomes_points_with_the_servers_side(tmp_path: Path) -> None:
    result = wb.read_perf_analyzer(write_csv(tmp_path), model="resnet")
    first, second = result
    assert (first.model, first.concurrency, second.concurrency) == ("resnet", 1, 4)
    assert (second.throughput, second.p50_ms, second.p99_ms, second.sent_p99_ms) == (400.5, 8.0, 12.0, 12.0)
    assert (second.queue_ms, second.compute_input_ms, second.compute_infer_ms, second.compute_output_ms) == (
        4.5, 0.06, 1.6, 0.06,
    )  # fmt: skip
    assert second.mean_ms == pytest.approx(7.25)
    assert second.n == 0
    assert math.isnan(second.throughput_low)
    assert any("does not say how many requests" in note for note in second.notes)
    assert result.to_frame().verdict.tolist() == ["valid", "valid"]
    best = result.best(p99_ms=10)
    assert best is not None
    assert best.concurrency == 1


def test_an_open_loops_csv_and_columns_of_other_options(tmp_path: Path) -> None:
    text = f"{HEAD.replace('Concurrency', 'Request Rate')},p97 latency,request/response,Avg GPU Utilization\n"
    text += ROWS.splitlines()[0] + ",7000,1,0.5\n"
    (point,) = wb.read_perf_analyzer(write_csv(tmp_path, text), batch_size=8, distribution="poisson")
    assert (point.rate, point.load.distribution, point.load.batch_size) == (1.0, "poisson", 8)
    assert "left out: p97 latency, Avg GPU Utilization" in point.notes
    assert any("does not write when a request was due" in note for note in point.notes)


def test_columns_of_a_cache_and_of_gpus_are_read(tmp_path: Path) -> None:
    """--collect-metrics --verbose-csv writes a value for each GPU; a cached model has two columns more."""
    cached = HEAD.replace("Output,Client", "Output,Server Cache Hit,Server Cache Miss,Client")
    row = "1,200,100,900,500,50,1500,50,20,30,0,3000,4000,5000,9000"
    gpus = ",Avg GPU Utilization,Max GPU Memory Usage"
    (point,) = wb.read_perf_analyzer(write_csv(tmp_path, f"{cached}{gpus}\n{row},gpu_0:0.33;gpu_1:0.5;,gpu_0:9;,\n"))
    assert (point.cache_hit_ms, point.cache_miss_ms) == (0.02, 0.03)
    assert point.mean_ms == pytest.approx(3.15), "hits and misses are part of it"
    assert "left out: Avg GPU Utilization, Max GPU Memory Usage" in point.notes
    (told,) = wb.read_perf_analyzer(write_csv(tmp_path, f"{cached},Avg latency\n{row},3333\n"))
    assert told.mean_ms == 3.333
    capped = row.replace(",900,", ",0,")  # its rest is never below 0, so the parts say no mean
    assert math.isnan(wb.read_perf_analyzer(write_csv(tmp_path, f"{cached}\n{capped}\n"))[0].mean_ms)


def test_a_rate_that_the_csv_has_rounded_is_that_of_the_export(tmp_path: Path) -> None:
    text = f"{HEAD.replace('Concurrency', 'Request Rate')}\n33.3333,{ROWS.splitlines()[0].partition(',')[2]}\n"
    export = write_export(tmp_path, experiment("request_rate", 100 / 3))
    (point,) = wb.read_perf_analyzer(write_csv(tmp_path, text), export=export)
    assert point.queue_ms == 0.5


def test_an_export_is_reckoned_anew_over_its_last_three_windows(tmp_path: Path) -> None:
    (point,) = wb.read_perf_analyzer(write_export(tmp_path, experiment()), model="m")
    assert point.n == 600
    assert point.duration_s == 3.0
    assert point.throughput == pytest.approx(200, rel=0.01)
    assert (point.p50_ms, point.p99_ms, point.max_ms) == (4.0, 4.0, 4.0)
    assert point.p99_low <= 4.0
    assert math.isnan(point.queue_ms)
    assert point.verdict == "valid"


def test_an_export_of_streams_has_times_between_responses(tmp_path: Path) -> None:
    (point,) = wb.read_perf_analyzer(write_export(tmp_path, experiment(responses=4)))
    assert point.responses_per_request == 4
    assert point.between_responses_p50_ms == pytest.approx(1.0)
    assert point.first_response_p50_ms == pytest.approx(1.0)


def test_both_files_of_one_run_make_whole_points_that_a_store_keeps(tmp_path: Path) -> None:
    export = write_export(tmp_path, experiment(value=4), experiment(value=1))
    result = wb.read_perf_analyzer(write_csv(tmp_path), export=export, model="m")
    assert {(point.concurrency, point.n, point.queue_ms) for point in result} == {(1, 600, 0.5), (4, 600, 4.5)}
    store = wb.runs(tmp_path / "runs")
    run = store.open(result.save(store, title="from perf_analyzer"))
    kept = wb.Point.from_json(run.points()[0])
    assert kept.environment["measured_by"] == "perf_analyzer"
    assert kept.p99_ms == 4.0
    with pytest.raises(InvalidRequest, match="not of one run") as caught:
        wb.read_perf_analyzer(write_csv(tmp_path), export=write_export(tmp_path, experiment(value=2)))
    assert "the CSV has concurrency 1, concurrency 4; the JSON concurrency 2" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no CSV of perf_analyzer"),
        ("model,throughput\nm,3\n", "no CSV of perf_analyzer"),
        (f"{HEAD}\n1,many,1\n", "line 2 cannot be read"),
        (f"{HEAD}\n0,200,1\n", "concurrency must be a whole number from 1"),
        ("{", "no JSON of perf_analyzer"),
        ('{"experiments": [{"requests": []}]}', "no JSON of perf_analyzer"),
        ('{"experiments": [{"experiment": {"mode": "custom", "value": 1}, "requests": [], "window_boundaries": []}]}',
         "mode 'custom' is neither"),
    ],
)  # fmt: skip
def test_what_is_none_of_its_files_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        wb.read_perf_analyzer(write_csv(tmp_path, text))
    with pytest.raises(NotFound, match="no such file"):
        wb.read_perf_analyzer(tmp_path / "none.csv")


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "load",
    [["--concurrency-range", "1:3:2"], ["--request-rate-range", "40:80:40", "--request-distribution", "poisson"]],
)
def test_files_that_the_real_one_writes(oracle: Path, tmp_path: Path, load: list[str]) -> None:
    (tmp_path / "models").mkdir()
    add_model(tmp_path / "models", "double")
    report, export = tmp_path / "run.csv", tmp_path / "run.json"
    with wb.serve(tmp_path / "models") as server:
        done = subprocess.run(
            [
                "timeout", "-s", "KILL", "150", str(oracle / "perf-analyzer"), "-m", "double", "-u",
                server.url.removeprefix("http://"), "-i", "http", "--async", "-p", "800", "-s", "999", "-r", "4", "-b",
                "2", *load, "-f", str(report), "--verbose-csv", "--profile-export-file", str(export),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    options: dict[str, Any] = {"batch_size": 2, "distribution": "poisson"}
    from_csv, from_json = (wb.read_perf_analyzer(path, **options) for path in (report, export))
    assert len(from_csv) == 2
    for told, reckoned in zip(from_csv, from_json, strict=True):
        assert told.load.label == reckoned.load.label
        assert reckoned.throughput == pytest.approx(told.throughput, rel=0.01)
        for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms"):
            assert getattr(reckoned, name) == pytest.approx(getattr(told, name), abs=0.002), name
        assert reckoned.mean_ms == pytest.approx(told.mean_ms, rel=0.02)
        assert told.queue_ms >= 0
        assert reckoned.n > 10
    whole = wb.read_perf_analyzer(report, export=export, **options)
    assert [point.queue_ms for point in whole] == [point.queue_ms for point in from_csv]
