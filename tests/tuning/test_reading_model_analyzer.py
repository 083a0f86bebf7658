"""Model Analyzer's YAML as sweeps of ours: what is taken, what is said to be left out, and a sweep from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx_models import add_model

import workbench as wb
from workbench.errors import InvalidRequest, NotFound
from workbench.tuning.model_analyzer import ModelAnalyzerConfig


def read(folder: Path, text: str) -> ModelAnalyzerConfig:
    path = folder / "config.yml"
    path.write_text(text)
    return wb.read_model_analyzer(path)


WHOLE = """
model_repository: /models
checkpoint_directory: checkpoints
triton_launch_mode: remote
run_config_search_disable: true
constraints:
  perf_latency_p99: {max: 20}
  gpu_used_memory: {max: 200}
objectives: [perf_throughput]
perf_analyzer_flags: {measurement-interval: 3000, percentile: 95, shape: "IN:3"}
triton_server_environment: {LD_PRELOAD: /x.so}
profile_models:
  resnet:
    parameters:
      concurrency: {start: 2, stop: 10, step: 4}
      batch_sizes: 1,2
    constraints:
      perf_throughput: {min: 100}
    model_config_parameters:
      max_batch_size: [6, 8]
      dynamic_batching:
        max_queue_delay_microseconds: [200, 300]
        preferred_batch_size: [4, 8]
      instance_group:
        - kind: KIND_CPU
          count: [1, 2]
      parameters:
        threads: {string_value: ["1", "2"]}
      colour: red
  bert:
    cpu_only: true
    weighting: 3
    model_config_parameters:
      dynamic_batching: {}
      max_batch_size: 4
      instance_group:
        - - {kind: KIND_GPU, count: 1}
        - - {kind: KIND_CPU, count: 2}
"""


def test_command_lines_have_the_flags_that_a_run_has(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
profile_models:
  m:
    parameters: { request_rate: [10] }
    perf_analyzer_flags:
      { measurement-interval: 500, input-data: "my inputs.json", request-distribution: poisson, streaming: true }
""",
    )
    (command,) = found["m"].commands()
    flags = "-p 500 --input-data 'my inputs.json' --request-distribution poisson --streaming"
    assert command == f"workbench sweep m --rate 10 {flags}"


def test_windows_of_so_many_requests_are_taken(tmp_path: Path) -> None:
    text = "profile_models: {m: {perf_analyzer_flags: {measurement-mode: count_windows%s}}}"
    counted = read(tmp_path, text % ", measurement-request-count: 80")["m"]
    assert counted.options == {"requests": 80}
    assert counted.commands()[0].endswith(" --measurement-mode count_windows --measurement-request-count 80")
    assert read(tmp_path, text % "")["m"].options == {"requests": 50}, "perf_analyzer's own"
    timed = read(tmp_path, "profile_models: {m: {perf_analyzer_flags: {measurement-request-count: 80}}}")["m"]
    assert timed.options == {}, "its windows are of a length then"
    assert any("says nothing without measurement-mode: count_windows" in note for note in timed.notes)


def test_configurations_loads_and_goals_are_taken(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    resnet = found["resnet"]
    assert resnet.grid == {
        "max_batch_size": [6, 8],
        "dynamic_batching.max_queue_delay_microseconds": [200, 300],
        "dynamic_batching.preferred_batch_size": [[4, 8]],  # a list by nature: one value
        "instance_group": [[{"kind": "KIND_CPU", "count": 1}], [{"kind": "KIND_CPU", "count": 2}]],
        'parameters["threads"].string_value': ["1", "2"],
    }
    assert (resnet.concurrency, resnet.batch_sizes) == ((2, 6, 10), (1, 2))
    assert resnet.points == 2 * 2 * 2 * 2 * 3 * 2
    assert (resnet.p99_ms, resnet.min_throughput, resnet.objectives) == (20.0, 100.0, {"throughput": 1.0})
    assert resnet.options == {"duration_s": 3.0}
    assert all(command.endswith(" -p 3000") for command in resnet.commands())
    assert any(note.startswith("at least 100 infer/s") for note in resnet.notes)
    assert [sweep["batch_size"] for sweep in resnet.sweeps()] == [1, 2]
    bert = found["bert"]
    assert bert.grid == {
        "dynamic_batching": [{}],
        "max_batch_size": [4],
        "instance_group": [[{"kind": "KIND_GPU", "count": 1}], [{"kind": "KIND_CPU", "count": 2}]],
    }
    assert bert.concurrency == (1,)
    assert (bert.p99_ms, bert.min_throughput) == (20.0, None)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert found["resnet"].not_understood == (
        "model_config_parameters: config.pbtxt has no field colour",
        "perf_analyzer_flags.percentile: 95; points have p50 to p99",
        'perf_analyzer_flags.shape: "IN:3"',
        "constraint gpu_used_memory max 200",
    )
    assert found["bert"].not_understood[:2] == ("cpu_only: true", "weighting: 3")
    assert found.not_understood == ('triton_server_environment: {"LD_PRELOAD": "/x.so"}',)
    assert found.ignored == ("model_repository", "checkpoint_directory", "triton_launch_mode")
    text = repr(found)
    assert "not understood: cpu_only: true" in text
    assert "workbench sweep resnet --set 'max_batch_size=[6, 8]'" in text
    assert "without meaning here: model_repository" in text


def test_an_automatic_search_becomes_its_grid(tmp_path: Path) -> None:
    text = "profile_models: a, b\nlatency_budget: 50\nrun_config_search_max_concurrency: 8\n"
    text += "run_config_search_max_instance_count: 2\nrun_config_search_max_model_batch_size: 4\n"
    found = read(tmp_path, text)
    assert [plan.model for plan in found.models] == ["a", "b"]
    plan = found["b"]
    assert plan.grid["max_batch_size"] == [1, 2, 4]
    assert [group[0]["count"] for group in plan.grid["instance_group"]] == [1, 2]
    assert (plan.concurrency, plan.p99_ms, plan.points) == ((1, 2, 4, 8), 50.0, 24)
    assert "automatic search" in plan.notes[0]
    listed = read(tmp_path, "profile_models:\n - a: {parameters: {concurrency: [3]}}\n - b\n")
    assert (listed["a"].grid, listed["a"].concurrency) == ({}, (3,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile_models: [", "the file cannot be read"),
        ("- a\n", "no configuration of Model Analyzer"),
        ("concurrency: 3\n", "names no models"),
        ("profile_models: {m: {parameters: {concurrency: many}}}", "concurrency is no list of numbers"),
        ("profile_models: {m: {parameters: {concurrency: {start: 1}}}}", "needs start, stop"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(tmp_path, text)
    with pytest.raises(NotFound):
        wb.read_model_analyzer(tmp_path / "none.yml")


def test_a_sweep_runs_from_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    add_model(tmp_path / "models", "double")
    text = "profile_models:\n  double:\n    parameters: {concurrency: 2, batch_sizes: [1, 2]}\n"
    text += "    model_config_parameters:\n      dynamic_batching: {max_queue_delay_microseconds: [0, 500]}\n"
    text += "      instance_group: [{kind: KIND_CPU, count: [1, 2]}]\n"
    plan = read(tmp_path, text)["double"]
    with wb.Engine(tmp_path / "models") as server:
        results = plan.run(server, duration_s=0.1, warmup_s=0, min_requests=1, store=None, show_progress=False)
        assert "count: 1" in server.config("double").text, "the configuration is as it was"
    assert [len(result) for result in results] == [4, 4]
    for result, size in zip(results, (1, 2), strict=True):
        assert {point.load.batch_size for point in result} == {size}
        assert not [point.error for point in result if point.error]
        counts = [point.config["instance_group"][0]["count"] for point in result]
        assert sorted(counts) == [1, 1, 2, 2]
