"""Models side by side, on real engines and real frameworks' files."""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import workbench as wb
from workbench.cli import main
from workbench.errors import InternalError, InvalidRequest, NotFound, NotReady
from workbench.profiling import Load, MeasureOptions, Point
from workbench.profiling.intervals import Estimate
from workbench.records.runs import Run, RunStore
from workbench.tuning.compare_result import CompareResult, ModelFigures, against, figure_over

SCALE = """
import numpy as np
import triton_python_backend_utils as pb_utils
import time

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({ms} / 1000)
        given = [pb_utils.get_input_tensor_by_name(request, "{input}").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("{output}", x * {scale} + {shift})]) for x in given]
"""
CONFIG = """backend: "python"
max_batch_size: 1
input {{ name: "{input}" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "{output}" data_type: TYPE_FP32 dims: 4 }}
instance_group {{ kind: KIND_CPU }}
"""
EXAMPLES = {"data": [{"x": [1.0, 2.0, 3.0, 4.0]}, {"x": [10.0, 20.0, 40.0, 30.0]}]}
LENIENT = MeasureOptions(lag_limit_ms=1e3, stall_share=1.0, other_cpu_limit=10.0)
"""The machine may be busy with other things: that is not what is tested."""
QUICK: dict[str, Any] = {
    "measure": LENIENT,
    "concurrency": 1,
    "rounds": 3,
    "duration_s": 0.3,
    "warmup_s": 0.05,
    "startup": False,
}


def add(
    root: Path, name: str, *, ms: int = 4, x: str = "x", y: str = "y", scale: float = 1.0, shift: str = "0"
) -> None:
    """A model that scales its input."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG.format(input=x, output=y))
    source = SCALE.format(ms=ms, input=x, output=y, scale=scale, shift=shift)
    (root / name / "1" / "model.py").write_text(source)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wb.Server]:
    root = tmp_path_factory.mktemp("compare") / "models"
    add(root, "exact", ms=20)
    (root / "exact" / "example_inputs.json").write_text(json.dumps(EXAMPLES))
    add(root, "coarse", x="INPUT__0", y="OUTPUT__0", scale=1.01)
    add(root, "broken", shift="np.ones(5, np.float32)")
    add(root, "dead", shift="(")
    add(root, "same")
    add(root, "two_inputs")
    config = root / "two_inputs" / "config.pbtxt"
    config.write_text(config.read_text().replace('"x"', '"v"') + 'input { name: "w" data_type: TYPE_FP32 dims: 4 }\n')
    with wb.serve(root, name="compare-test") as opened:
        yield opened


def test_the_faster_one_and_how_far_its_answers_are(server: wb.Server, tmp_path: Path) -> None:
    found = server.compare(["exact", "coarse"], store=tmp_path, **QUICK)
    assert found.reference == "exact"
    assert found.fastest == "coarse"
    assert found["coarse"].against["throughput"].faster == "B"
    assert found["coarse"].against["throughput"].change > 1  # 4 ms against 20
    assert found["exact"].figures["p50_ms"].value > 20
    drift = found["coarse"].drift
    assert drift is not None
    (output,) = drift.outputs
    assert (output.output, output.name) == ("y", "OUTPUT__0")
    assert output.max_abs == pytest.approx(0.4, rel=1e-3)
    assert output.max_rel == pytest.approx(0.01, rel=1e-3)
    assert output.kendall_tau == 1
    assert "its input 'INPUT__0' gets what 'x' gets" in repr(found)
    assert list(found.to_frame().model) == ["exact", "coarse"]
    run = RunStore(tmp_path).open("latest")
    assert run.meta["kind"] == "compare"
    assert run.meta["verdict"] == found.verdict


def test_an_open_loop_sets_the_throughput_so_the_latency_decides(server: wb.Server) -> None:
    """At 20/s both keep up, one in 20 ms and one in 4; and 6 requests a block are too few for a percentile."""
    options = {**QUICK, "concurrency": None, "rate": 20, "distribution": "constant"}
    found = server.compare(["exact", "coarse"], store=None, **options)
    assert found.metric == "mean_ms"
    assert found.fastest == "coarse"
    assert found.verdict.startswith("coarse has the lowest mean latency")
    row = found.rows()[1]
    assert row["metric"] == "mean_ms"
    assert row["verdict"].startswith("mean latency: ")
    assert row["change"] == pytest.approx(found["coarse"].against["mean_ms"].change)
    assert repr(found).splitlines()[1].split()[2:4] == ["mean", "ms"]
    assert math.isnan(found["coarse"].figures["p99_ms"].value)
    assert found["coarse"].against["p99_ms"].faster == ""
    assert (
        "no p99: it takes 100 requests in each block, one had 6; longer blocks have them: duration_s (-p MS)"
        in repr(found)
    )
    assert found["coarse"].figures["p50_ms"].value < 20


def test_a_replay_goes_to_each_of_the_models_not_to_the_one_that_was_captured(
    server: wb.Server, tmp_path: Path
) -> None:
    with server.capture("exact", to=tmp_path / "traffic.npz") as capture:
        for _ in range(12):
            server.infer("exact", {"x": np.float32([[1, 2, 3, 4]])})
    load = Load.replay(capture, warmup_s=0.0)

    def answered() -> dict[str, int]:
        rows = server.statistics().to_frame().set_index("model").requests
        return {name: int(rows[name]) for name in ("exact", "same", "coarse")}

    before = answered()
    found = server.compare(["same", "exact", "coarse"], load=load, store=None, rounds=2, measure=LENIENT, startup=False)
    sent = {name: count - before[name] for name, count in answered().items()}
    assert sent["same"] == sent["exact"] >= 24
    assert "a replay sends inputs as they were captured" in found["coarse"].error


def points(values: list[float], **more: Any) -> tuple[Point, ...]:
    return tuple(Point(model="m", load=Load.closed(1), valid=True, n=1000, throughput=each, **more) for each in values)


def result(**models: tuple[Point, ...]) -> CompareResult:
    def figures(name: str, blocks: tuple[Point, ...]) -> ModelFigures:
        value = float(np.exp(np.mean([np.log(point.throughput) for point in blocks])))
        error = "it could not be measured" if name == "lost" else ""
        return ModelFigures(name, "python", blocks, {"throughput": Estimate(value, value, value)}, error=error)

    return CompareResult(tuple(figures(*each) for each in models.items()), "a", Load.closed(1), (), {})


def test_one_that_failed_is_not_the_fastest() -> None:
    found = result(a=points([100, 101, 99]), lost=points([500, 501]))
    assert found.fastest == "a"
    assert found.verdict == "a has the highest throughput"


def test_too_few_blocks_are_not_called_too_close() -> None:
    found = result(a=points([100]), b=points([50]))
    assert found.verdict == "a has the highest throughput; too few blocks to tell it from b: measure more rounds"


def test_a_percentile_is_told_of_all_blocks_or_of_none() -> None:
    """Only while the model was quick did a block have 100 requests: a p99 of those alone would lie below p50."""
    quick = points([200], p50_ms=5.0, p99_ms=9.0)
    slow = tuple(replace(point, n=60, p50_ms=20.0, p99_ms=40.0) for point in points([50, 50]))
    assert figure_over((*quick, *slow), "p50_ms").value > 9
    assert math.isnan(figure_over((*quick, *slow), "p99_ms").value)
    assert figure_over(quick * 2, "p99_ms").value == pytest.approx(9.0)
    mixed = ModelFigures("b", "python", (*quick, *slow), {})
    even = ModelFigures("a", "python", points([100] * 3, p50_ms=10.0, p99_ms=20.0), {})
    assert against(mixed, even, 1, "p99_ms").pairs == 0
    assert against(mixed, even, 1, "p50_ms").pairs == 3


@pytest.mark.full
def test_among_alike_models_the_best_is_seldom_called_better_than_another() -> None:
    """The best of six is chosen by the very figures that it is judged by."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        values = {name: points(list(rng.lognormal(5, 0.05, 6))) for name in "abcdef"}
        wrong += result(**values).verdict.count(",") < 4  # not all five others are too close to call
    assert wrong <= 0.05 * 400 + 2 * math.sqrt(0.05 * 0.95 * 400)


def test_the_worst_example_is_shown_with_both_answers(server: wb.Server) -> None:
    def off_by(reference: Any, other: Any) -> float:
        return float(np.abs(reference["y"] - other["y"]).max())

    found = server.compare(["exact", "coarse"], metric=off_by, store=None, **QUICK)
    worst = found.worst("coarse")
    assert worst.inputs["x"].max() == 40
    assert worst.got["OUTPUT__0"].max() == pytest.approx(40.4)
    assert "exact: 10, 20, 40, 30" in repr(worst)
    with pytest.raises(KeyError, match="it is the reference"):
        found.worst("exact")


def test_one_that_fails_is_told_and_the_others_go_on(server: wb.Server) -> None:
    found = server.compare(["exact", "broken", "coarse"], store=None, **QUICK)
    assert "operands could not be broadcast" in found["broken"].error
    assert found["broken"].n == 0
    assert found["coarse"].n > 0
    assert "! broken: " in repr(found)


def test_one_that_does_not_load_or_takes_other_inputs_is_told_before_anything_is_measured(server: wb.Server) -> None:
    found = server.compare(["exact", "dead", "two_inputs", "coarse"], store=None, **{**QUICK, "rounds": 2})
    assert "it does not serve (UNAVAILABLE): " in found["dead"].error
    assert "SyntaxError" in found["dead"].error
    assert "its inputs are v, w, those of 'exact' are x: say which belong together" in found["two_inputs"].error
    assert not found["dead"].blocks
    assert not found["two_inputs"].blocks
    assert found["coarse"].n > 0
    assert math.isnan(found["dead"].row()["max_abs"])
    with pytest.raises(NotReady, match="the reference 'dead' cannot be asked"):
        server.compare(["exact", "dead"], reference="dead", store=None, **QUICK)
    with pytest.raises(NotFound, match="no model 'exactly' on this server"):
        server.compare(["exact", "exactly"], store=None, **QUICK)


def test_a_slow_model_is_asked_for_a_while_only_and_it_is_said_on_how_many(server: wb.Server) -> None:
    inputs = [{"INPUT__0": np.full((1, 4), place, np.float32)} for place in range(16)]
    told: list[tuple[str, int, int]] = []
    found = server.compare(
        ["exact", "coarse"], reference="coarse", inputs=inputs, asking_s=0.1, store=None,
        on_step=lambda step: told.append((step.what, step.done, step.total)), **{**QUICK, "rounds": 2},
    )  # fmt: skip
    drift = found["exact"].drift  # 20 ms an answer
    assert drift is not None
    assert 1 <= drift.examples < 8
    note = f"it answered {drift.examples} of {len(found.answers['coarse'])} examples in the time for that"
    assert note in repr(found)
    assert f"answers to {drift.examples} example" in repr(found)
    assert len(found.pairs("exact")) == drift.examples
    assert found.worst("exact").place < drift.examples
    assert told[0] == ("asking coarse", 0, 16)
    assert ("asking exact", 0, len(found.answers["coarse"])) in told
    assert told[-1] == ("measuring in turn", 4, 4)


def test_ctrl_c_while_the_models_are_asked_keeps_what_they_answered(server: wb.Server) -> None:
    stop = threading.Event()

    def told(step: Any) -> None:
        if (step.what, step.done) == ("asking exact", 2):
            stop.set()

    inputs = [{"INPUT__0": np.full((1, 4), place, np.float32)} for place in range(16)]
    found = server.compare(
        ["coarse", "exact"], inputs=inputs, stop=stop, on_step=told, store=None, **{**QUICK, "startup": True}
    )
    assert found.stopped
    assert found["exact"].drift is not None
    assert found["exact"].drift.examples == 3
    assert not found["exact"].blocks
    assert math.isnan(found["coarse"].startup.load_s)
    assert "stopped before its end" in repr(found)
    assert found.verdict == "no verdict: no model was measured"


def test_answers_are_compared_on_as_many_examples_as_asked_for_where_they_are_drawn(tmp_path: Path) -> None:
    """A load sends 16 of them in turn."""
    add(tmp_path, "exact", ms=0)
    add(tmp_path, "coarse", ms=0, scale=1.01)
    ranges = {"ranges": {"x": {"min": -1.0, "max": 1.0}}}
    (tmp_path / "exact" / "example_inputs.json").write_text(json.dumps(ranges))
    with wb.serve(tmp_path) as opened:
        found = opened.compare(["exact", "coarse"], examples=40, store=None, **{**QUICK, "rounds": 2})
    assert found["coarse"].drift is not None
    assert found["coarse"].drift.examples == len(found.inputs) == 40


def test_outputs_that_nothing_is_compared_with_are_told(tmp_path: Path) -> None:
    add(tmp_path, "one", ms=0)
    add(tmp_path, "two", ms=0)
    config = tmp_path / "two" / "config.pbtxt"
    config.write_text(config.read_text() + 'output { name: "z" data_type: TYPE_FP32 dims: 4 }\n')
    source = tmp_path / "two" / "1" / "model.py"
    source.write_text(source.read_text().replace("0)])", '0), pb_utils.Tensor("z", x)])'))
    with wb.serve(tmp_path) as opened:
        found = opened.compare(["two", "one"], store=None, **{**QUICK, "rounds": 2})
    assert "note: one: 'two' answers z, too, which is compared with nothing of it: output_names=" in repr(found)


def test_a_metric_that_fails_loses_nothing_that_was_measured(server: wb.Server) -> None:
    found = server.compare(
        ["exact", "coarse"], metric=lambda reference, other: reference["z"], store=None, **{**QUICK, "rounds": 2}
    )
    assert "! coarse: your metric, on example 0 of 'coarse': it raised KeyError: 'z'" in repr(found)
    assert found["coarse"].n > 0
    assert found["coarse"].drift is not None
    assert found["coarse"].drift.max_abs > 0


def test_a_model_whose_configuration_is_changed_meanwhile_is_told(server: wb.Server) -> None:
    def edit(done: int, total: int, point: Point) -> None:
        if done == 2:
            server.configure("coarse", {"path": "dynamic_batching.max_queue_delay_microseconds", "value": 100})

    found = server.compare(["exact", "coarse"], on_block=edit, store=None, **{**QUICK, "rounds": 3})
    assert "coarse: its configuration was changed between blocks" in repr(found)
    assert "exact: its configuration" not in repr(found)


def test_a_backend_that_fills_batches_up_is_told_with_how_far(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    for name, parameters in (("padded", "ENABLE_BATCH_PADDING"), ("open", "WORKBENCH_DYNAMIC_BATCH")):
        add_product(tmp_path, name, parameters)
    with wb.serve(tmp_path) as opened:
        found = opened.compare(["padded", "open"], store=None, **{**QUICK, "rounds": 2})
        (note,) = [note for note in found["padded"].notes if "pads" in note]
        assert note.startswith("pads 1 row to 8 in each batch and computes them all")
        assert "WORKBENCH_DYNAMIC_BATCH" in note
        assert f"note: padded: {note}" in repr(found)
        assert not [note for note in found["open"].notes if "pads" in note]
        full = opened.compare(["padded", "open"], batch_size=8, store=None, **{**QUICK, "rounds": 2})
        assert not [note for note in full["padded"].notes if "pads" in note]


def add_product(root: Path, name: str, parameter: str) -> None:
    """An ONNX model of one matrix product, run by OpenVINO with this parameter on."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [each / 8 for each in range(12)])
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", size]) for end, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], name, ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (root / name / "config.pbtxt").write_text(
        f'name: "{name}" backend: "openvino" default_model_filename: "model.onnx" max_batch_size: 8\n'
        'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 3 }\n'
        f'parameters {{ key: "{parameter}" value {{ string_value: "YES" }} }}\n'
    )
    (root / name / "example_inputs.json").write_text('{"data": [{"x": [1, 2, 3, 4]}]}')


def test_what_it_takes_to_have_one(server: wb.Server) -> None:
    found = server.compare(["exact", "coarse"], store=None, **{**QUICK, "startup": True, "rounds": 2})
    for each in found.models:
        assert 0 < each.startup.load_s < 60
        assert each.startup.memory_mb > 1  # its process
    assert found["exact"].startup.first_ms >= 20
    assert server.is_model_ready("exact")


@pytest.mark.parametrize(
    ("models", "options", "text"),
    [
        (["exact"], {}, "needs two models"),
        (["exact", "coarse"], {"reference": "other"}, "reference 'other'"),
        (["exact", "coarse"], {"rounds": 1}, "at least 2 rounds"),
        (["exact", "coarse"], {"rounds": 2.5}, "rounds must be a whole number"),
        (["exact", "coarse"], {"top_k": -1}, "top_k must be a whole number above 0"),
        (["exact", "coarse"], {"examples": 0}, "examples must be a whole number above 0"),
        (["exact", "coarse"], {"concurrency": [1, 2]}, "at one load"),
        (["exact", "coarse"], {"asking_s": 0}, "asking_s must be above 0"),
        (["exact", "coarse"], {"metric": 3}, "metric must be a function"),
        (["exact", "coarse"], {"output_kinds": {"y": "vector"}}, "output 'y' cannot be 'vector'"),
        ("exact", {}, "models must be a list of names, got 'exact'"),
        (["exact", None], {}, "models must be a list of names"),
    ],
)
def test_what_cannot_be_compared(server: wb.Server, models: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        server.compare(models, store=None, **{**QUICK, **options})


def test_on_the_command_line(server: wb.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--server", "compare-test", "-p", "300", "--warmup", "0", "--rounds", "2", "--no-startup"]
    assert main(["compare", "exact", "coarse", *options, "--runs", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fastest"] == "coarse"
    assert [each["model"] for each in found["models"]] == ["exact", "coarse"]
    assert found["models"][1]["drift"][0]["max_rel"] == pytest.approx(0.01, rel=1e-3)
    assert found["models"][1]["drift"][0]["kind"] == "scores"
    assert (found["metric"], found["examples"], found["stopped"]) == ("throughput", 2, False)
    as_vectors = ["--output-kind", "y=embedding", "--examples", "1", "--json"]
    main(["compare", "exact", "coarse", *options, "--runs", str(tmp_path), *as_vectors])  # a block may be disturbed
    found = json.loads(capsys.readouterr().out)
    assert (found["models"][1]["drift"][0]["kind"], found["models"][1]["examples"]) == ("embedding", 1)
    assert main(["compare", "exact", "coarse", *options, "--output-kind", "y"]) == 1
    assert "write OUTPUT=KIND" in capsys.readouterr().err
    assert main(["compare", "exact", "broken", *options, "--runs", str(tmp_path)]) == 1
    assert "! broken" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_measured(server: wb.Server) -> None:
    stop = threading.Event()
    found = server.compare(
        ["exact", "coarse"], store=None, stop=stop, on_block=lambda done, total, point: stop.set(), **QUICK
    )
    assert found.stopped
    assert sum(len(each.blocks) for each in found.models) == 1


def test_two_of_the_same_are_too_close_to_call(sample_repository: Path, tmp_path: Path) -> None:
    shutil.copytree(sample_repository / "minilm", tmp_path / "models" / "minilm")
    shutil.copytree(sample_repository / "minilm", tmp_path / "models" / "same")
    config = tmp_path / "models" / "same" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "minilm"', 'name: "same"'))
    with wb.serve(tmp_path / "models") as server:
        found = server.compare(["minilm", "same"], store=None, **{**QUICK, "rounds": 4})
    drift = found["same"].drift
    assert drift is not None
    assert drift.max_abs == 0
    assert (drift.outputs[0].kind, drift.outputs[0].cosine_min, drift.outputs[0].neighbours) == ("embedding", 1, 1)
    assert abs(found["same"].against["throughput"].change) < 0.5


def test_a_store_that_takes_nothing_loses_no_comparison(
    server: wb.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: Run, *given: object, **more: object) -> int:
        raise InternalError("the run cannot be written: database or disk is full", where="here")

    monkeypatch.setattr(Run, "add_point", full)
    result = server.compare(
        ["exact", "same"], store=tmp_path, show_progress=False, **QUICK | {"rounds": 2, "requests": 3}
    )  # fmt: skip
    assert [len(each.blocks) for each in result.models] == [2, 2]
    told = repr(result)
    assert "it was not stored: the run cannot be written: database or disk is full (here)" in told
    assert "one had 3; longer blocks have them: requests (--measurement-request-count N)" in told
