from __future__ import annotations

import argparse
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from panel_helpers import wait_for, write_model

from workbench.cli.build import add_arguments
from workbench.errors import InvalidRequest, NotFound
from workbench.profiling import MeasureOptions, Point
from workbench.session.kernel import Engine
from workbench.tuning.compare_result import CompareResult

LENIENT = MeasureOptions(lag_limit_ms=1e3, stall_share=1.0, other_cpu_limit=10.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write_model(root, "slow", sleep=0.02)
    write_model(root, "quick", sleep=0.002)
    return root


@pytest.fixture
def shown(server: Any, tmp_path: Path) -> Any:
    panel = server.panel(
        "compare", models=["slow", "quick"], concurrency=1, store=str(tmp_path / "runs"), measure=LENIENT, warmup_s=0.0
    )
    panel._rounds.value, panel._seconds.value, panel._startup.value = 3, 0.3, False
    yield panel
    panel.close()


def test_a_click_compares_and_shows_speed_and_drift(shown: Any, tmp_path: Path) -> None:
    assert shown._reference.value == "slow"
    shown._run.click()
    assert shown._run.disabled
    wait_for(lambda: shown.result is not None, 60)
    assert not shown._run.disabled
    assert "quick has the highest throughput" in shown._said.value
    assert " ×</span>" in shown._table.value
    assert "100.0%" in shown._table.value  # top-1 the same
    bars = shown._speed.chart.sources["bars"].data
    assert list(bars["at"]) == ["slow", "quick"]
    assert bars["middle"][1] > bars["middle"][0]
    # p50 of both; a block holds too few requests of the slow one for a p99
    assert len(shown._latency.chart.sources["bars"].data["at"]) >= 2
    assert "Where quick differs most" in shown._examples.value
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert "quick" in shown.to_html()
    assert repr(shown) == repr(shown.result)


def test_a_model_is_the_reference_and_the_one_that_a_form_is_built_of(server: Any) -> None:
    panel = server.panel("compare", model="slow", store=None)
    try:
        assert panel._models.value == ("quick", "slow")
        assert panel._reference.value == "slow"
        assert panel._form.model.value == "slow"
    finally:
        panel.close()
    for asked in ({"model": "slwo"}, {"models": ["slow", "slwo"]}):
        with pytest.raises(NotFound, match="there is no model 'slwo'"):
            server.panel("compare", **asked)


def test_a_result_is_shown_at_once_with_its_models_and_load(server: Any, tmp_path: Path) -> None:
    result = server.compare(
        ["quick", "slow"], concurrency=2, rounds=2, duration_s=0.2, warmup_s=0.0, startup=False, store=None,
        measure=LENIENT, metric=lambda expected, got: 0.125,
    )  # fmt: skip
    panel = server.panel("compare", result=result)
    assert "own metric" in panel._table.value
    assert "0.125" in panel._table.value
    assert panel.result is result
    assert set(panel._models.value) == {"slow", "quick"}
    assert panel._reference.value == "quick"
    assert panel._clients.value == 2
    assert "Where slow differs most" in panel.to_html()
    panel.close()
    for expected, got in result.pairs("slow"):
        assert list(expected) == list(got)
        assert all((expected[name] == got[name]).all() for name in got)


def test_one_that_was_stopped_is_shown_out_of_the_store_with_how_far_it_came(server: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    def on_block(done: int, total: int, point: Point) -> None:
        panel = server.panel("compare", result=CompareResult.open(tmp_path), store=None)
        told.append((panel._said.value, panel._table.value))
        panel.close()
        if done == 4:
            stop.set()

    told: list[tuple[str, str]] = []
    found = server.compare(
        ["slow", "quick"], concurrency=1, rounds=9, duration_s=0.3, warmup_s=0.0, startup=False, store=tmp_path,
        measure=LENIENT, stop=stop, on_block=on_block,
    )  # fmt: skip
    said, table = told[-1]
    assert "running" in said
    assert "no verdict yet: 2 of 9 rounds measured" in said
    assert " ×</span>" not in table, "no verdict before its end"
    panel = server.panel("compare", result=CompareResult.open(tmp_path), store=None)
    assert "2 of 9 rounds measured" in panel._said.value
    assert "quick has the highest throughput" in panel._said.value
    assert " ×</span>" in panel._table.value
    assert panel._examples.value == "", "a run keeps no answers"
    panel.close()
    for about, text in (
        ({"unstored": "from block 3 on nothing was stored: full"}, "from block 3 on nothing was stored: full"),
        ({"interrupted": True}, "broken off</span> 2 of 9 rounds measured: quick has the highest throughput"),
        ({"error": "it broke off: a slip"}, "failed</span> no verdict: it broke off: a slip"),
    ):
        panel = server.panel("compare", result=replace(found, **about), store=None)  # type: ignore[arg-type]
        assert text in panel._said.value
        panel.close()


def test_under_an_open_loop_the_latency_is_what_is_shown(server: Any) -> None:
    panel = server.panel("compare", models=["slow", "quick"], rate=20, store=None, measure=LENIENT, warmup_s=0.0)
    panel._rounds.value, panel._seconds.value, panel._startup.value = 3, 0.5, False
    assert panel._clients.disabled
    result = panel.run(wait=True)
    assert result.load.rate == 20
    assert "lowest mean latency" in panel._said.value
    assert panel._table.value.index("mean ms") < panel._table.value.index("infer/s")
    assert panel._speed.chart.title == "Mean latency"
    middle = panel._speed.chart.sources["bars"].data["middle"]
    assert list(middle) == pytest.approx([each.figures["mean_ms"].value for each in result.models])
    panel.close()
    shown = server.panel("compare", result=result, store=None)
    assert shown._loads.value == result.load.label
    assert shown._of_load()["load"].rate == 20
    shown._loads.value = "clients"
    assert not shown._clients.disabled
    assert shown._of_load()["concurrency"] == 4
    shown.close()


def test_what_went_wrong_with_a_form_stands_under_its_row(repository: Path) -> None:
    write_model(repository, "dead", code="(")

    def metric(reference: Any, other: Any) -> Any:
        return reference["nothing"]

    with Engine(repository) as server:
        panel = server.panel(
            "compare", models=["slow", "dead", "quick"], store=None, measure=LENIENT, warmup_s=0.0, metric=metric
        )
        panel._rounds.value, panel._seconds.value, panel._startup.value = 2, 0.3, False
        said: list[str] = []
        panel._said.observe(lambda change: said.append(change["new"]), "value")
        panel.run(wait=True)
        rows = panel._table.value.split("<tr")
        (at,) = [place for place, row in enumerate(rows) if ">dead<" in row]
        assert "it does not serve (UNAVAILABLE)" in rows[at + 1]
        (at,) = [place for place, row in enumerate(rows) if ">quick<" in row and "infer" not in row][:1]
        assert "your metric, on example 0 of &#x27;quick&#x27;: it raised KeyError" in rows[at + 1]
        assert any("asking slow: 0 of 1" in text for text in said)
        panel.close()


def test_a_form_is_built_loaded_and_chosen(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_perceptron(repository, "scores")
    with Engine(repository) as server:
        panel = server.panel("compare", store=None)
        form = panel._form
        assert (form.model.value, panel._models.value) == ("scores", ("scores",))
        form.target.value, form.precision.value, form.name.value = "onnx", "fp16", "scores_half"
        form.run.click()
        wait_for(lambda: not form.run.disabled, 60)
        assert "scores_half is loaded" in form.said.value
        assert "onnx of model" in form.told.value
        assert "drift" in form.told.value
        assert panel._models.value == ("scores", "scores_half")
        assert set(form.model.options) == {"scores", "scores_half"}
        form.run.click()
        wait_for(lambda: not form.run.disabled, 60)
        assert "another name, or overwrite" in form.said.value
        form.target.value, form.precision.value, form.name.value = "aoti", "", "scores_aoti"
        form.start(wait=True)
        assert "AOTInductor compiles a torch module" in form.said.value
        assert not (repository / "scores_aoti").exists()
        panel.close()


def shown_rows(form: Any) -> set[str]:
    """Which of the rows for some targets are to be seen."""
    rows = {"shapes": form.shapes_row, "calibration": form.calib_row}
    return {name for name, row in rows.items() if row.layout.display != "none"}


def test_what_only_some_targets_take_appears_with_them(tmp_path: Path) -> None:
    write_perceptron(tmp_path / "models", "scores")
    with Engine(tmp_path / "models") as server:
        form = server.panel("compare", store=None)._form
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        command_line = {action.dest: action.help for action in parser._actions}
        fields = {**form.shapes, "calib": form.calib}
        assert list(fields) == ["minShapes", "optShapes", "maxShapes", "calib"]
        for option, field in fields.items():
            assert field.tooltip == f"--{option}: {command_line[option]}"
        found = {}
        for target in form.target.options:
            form.target.value = target
            form.precision.value = precision = form.precision.options[-1][1]
            found[target] = (precision, shown_rows(form))
        assert found == {
            "tensorrt": ("int8", {"shapes", "calibration"}), "onnx": ("int8", {"calibration"}),
            "openvino": ("int8", {"calibration"}), "torchscript": ("", set()), "aoti": ("", set()),
        }  # fmt: skip
        form.target.value, form.precision.value = "onnx", "fp16"
        assert shown_rows(form) == set()


def test_int8_is_calibrated_on_the_file_that_is_named(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_perceptron(repository, "scores")
    rows = np.linspace(-1e4, 1e4, 16, dtype=np.float32).reshape(4, 4)
    np.savez(tmp_path / "wide.npz", x=rows)
    (tmp_path / "wide.json").write_text(json.dumps({"data": [{"x": row.tolist()} for row in rows]}))
    np.savez(tmp_path / "other.npz", z=rows)
    with Engine(repository) as server:
        form = server.panel("compare", store=None)._form
        form.target.value, form.precision.value = "onnx", "int8"

        def built(name: str, file: str) -> bytes | None:
            form.name.value, form.calib.value = name, file
            form.start(wait=True)
            path = repository / name / "1" / "model.onnx"
            return path.read_bytes() if path.is_file() else None

        own, wide, same = built("own", ""), built("wide", str(tmp_path / "wide.npz")), built(
            "same", str(tmp_path / "wide.json"))  # fmt: skip
        assert own is not None
        assert wide is not None
        assert same == wide, "the same rows in another form"
        assert own != wide, "the ranges are those of the rows that were given"
        wrong = {
            "nowhere.npz": "there is no file", "other.npz": "the model has no input",
            "models": "input &#x27;x&#x27; is missing", "models/scores/config.pbtxt": "holds no example inputs",
        }  # fmt: skip
        for file, text in wrong.items():
            assert built("bad", str(tmp_path / file)) is None
            assert text in form.said.value


def test_shapes_go_to_the_engine(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_perceptron(repository, "scores")
    with Engine(repository) as server:
        form = server.panel("compare", store=None)._form
        form.target.value, form.name.value = "tensorrt", "engine"
        form.shapes["optShapes"].value = "x=2x4"
        form.start(wait=True)
        assert "--optShapes has &#x27;x=2x4&#x27;, which is no shape" in form.said.value
        assert not (repository / "engine").exists()
        pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
        form.shapes["minShapes"].value, form.shapes["optShapes"].value, form.shapes["maxShapes"].value = (
            "x:1x4", "x:2x4", "x:3x4",
        )  # fmt: skip
        form.start(wait=True)
        assert "--minShapes=x:1x4 --optShapes=x:2x4 --maxShapes=x:3x4" in form.built.trtexec


def test_a_build_can_be_stopped(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_perceptron(repository, "scores")
    with Engine(repository) as server:
        form = server.panel("compare", store=None)._form
        form.target.value, form.precision.value = "onnx", "fp16"
        told = form._progressed

        def stopped(what: str, done: int, total: int) -> bool:
            form.stop.click()
            return bool(told(what, done, total))

        form._progressed = stopped
        form.start(wait=True)
        assert "was stopped" in form.said.value
        assert [path.name for path in repository.iterdir()] == ["scores"]
        assert not form.run.disabled


def write_perceptron(repository: Path, name: str) -> None:
    """An ONNX model of one matrix product, with examples."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [float(each) / 8 for each in range(12)])
    ends = [helper.make_tensor_value_info(*each) for each in (
        ("x", TensorProto.FLOAT, ["n", 4]), ("y", TensorProto.FLOAT, ["n", 3]))]  # fmt: skip
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], name, ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "config.pbtxt").write_text(
        f'name: "{name}" backend: "onnxruntime" max_batch_size: 4\n'
        'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 3 }\n'
    )
    (folder / "example_inputs.json").write_text('{"data": [{"x": [1, 2, 3, 4]}, {"x": [0, -1, 1, 0.5]}]}')


def test_it_begins_with_the_models_that_can_be_asked_the_same(repository: Path) -> None:
    write_perceptron(repository, "scores")
    other = write_model(repository, "words")
    config = other / "config.pbtxt"
    config.write_text(config.read_text().replace('"IN", data_type: TYPE_FP32', '"IN", data_type: TYPE_STRING'))
    write_model(repository, "dead", code="(")
    with Engine(repository) as server:
        panel = server.panel("compare", store=None)
        assert set(panel._models.options) == {"slow", "quick", "scores", "words", "dead"}
        assert set(panel._models.value) == {"slow", "quick", "scores"}
        panel.close()


def test_one_model_cannot_be_compared(shown: Any) -> None:
    shown._models.value = ["quick"]
    assert list(shown._reference.options) == ["quick"]
    shown._run.click()
    assert "choose two models or more" in shown._said.value
    with pytest.raises(InvalidRequest):
        shown.run(wait=True)
    assert repr(shown) == "Compare: nothing was compared"


def test_stop_keeps_what_was_measured(shown: Any) -> None:
    shown._rounds.value, shown._seconds.value = 100, 0.3
    shown._run.click()
    wait_for(lambda: "of 200 blocks" in shown._said.value, 60)
    shown._stop.click()
    wait_for(lambda: shown.result is not None, 60)
    assert shown.result.stopped
    assert "stopped" in shown._said.value
    assert not shown._run.disabled
