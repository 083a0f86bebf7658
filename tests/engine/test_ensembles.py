"""Ensembles in the engine (section 5): loading, data flow, what steps get, errors, limits, cancelling, statistics."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from ensembles import add_ensemble, add_gate, step
from gate_backend import Gate
from onnx_models import CONFIG, add_model, scale

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import Code, LoadFailed, NotFound, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor
from workbench.server import ServerOptions, serve_engine

F = np.float32
CHAIN = [step("double", "X", "t"), step("double", "t", "Y")]


def ask(model: str = "chain", rows: int = 1, value: float = 1.0, **fields: Any) -> InferenceRequest:
    shape = (rows, 4) if rows else (4,)
    return InferenceRequest(model, [Tensor.from_numpy("X", np.full(shape, value, F))], **fields)


def failed(engine: InferenceEngine, request: InferenceRequest) -> WorkbenchError:
    with pytest.raises(WorkbenchError) as caught:
        engine.infer(request, 10)
    return caught.value


def stats(engine: InferenceEngine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.statistics(name)["model_stats"][0]
    return found


@pytest.fixture
def chain(repository: Path) -> Path:
    """``chain``: X doubled twice."""
    add_ensemble(repository, "chain", CHAIN)
    return repository


# ---- answers


@pytest.mark.rule("11.6a", "11.6b", "11.6c", "11.6d")
def test_a_chain_answers_and_counts_in_itself_and_in_its_steps(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain)
    response = engine.infer(ask(rows=3, value=1.5, id="r1"), 10)
    assert (response.model_name, response.model_version, response.id, response.final) == ("chain", 1, "r1", True)
    np.testing.assert_array_equal(response.as_numpy("Y"), np.full((3, 4), 6, F))
    row, part = stats(engine, "chain"), stats(engine, "double")
    assert (row["inference_count"], row["execution_count"]) == (3, 1)
    assert [each["batch_size"] for each in row["batch_stats"]] == [3]
    assert (part["inference_count"], part["execution_count"]) == (6, 2)
    for name in ("compute_input", "compute_infer", "compute_output"):
        assert row["inference_stats"][name] == {"count": 1, "ns": part["inference_stats"][name]["ns"]}
    assert engine.is_model_ready("chain")
    metadata = engine.model_metadata("chain")
    assert (metadata["platform"], metadata["inputs"][0]["shape"]) == ("ensemble", [-1, 4])
    shown = engine.snapshot().version("chain")
    assert (shown.batching, shown.pending, shown.running, shown.instances) == ("ensemble", 0, 0, ())


@pytest.mark.rule("2.1d", "5.4a", "5.4c")
def test_steps_get_what_the_request_says_and_its_record_as_parent(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    levels = "dynamic_batching { priority_levels: 5 default_priority_level: 3 }"
    directory = add_gate(tmp_path)
    text = (directory / "config.pbtxt").read_text().replace("dynamic_batching { }", levels)
    (directory / "config.pbtxt").write_text(text)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")])
    engine = make_engine(tmp_path)
    engine.infer(ask(id="named", priority=2, parameters={"do": ""}, client="me"), 10)
    assert gate.batches == [["named"], ["named"]]
    requests = engine.records.read().requests
    models = list(requests["model"])
    top = models.index("chain")
    steps = [index for index, name in enumerate(models) if name == "gate"]
    assert len(steps) == 2
    for index in steps:
        assert requests["parent_seq"][index] == requests["seq"][top]
        assert (requests["priority"][index], requests["request_id"][index]) == (2, "named")


def test_tensors_go_from_step_to_step_without_a_copy(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    add_gate(tmp_path)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")])
    request = ask()
    response = make_engine(tmp_path).infer(request, 10)
    assert np.shares_memory(response.as_numpy("Y"), request.inputs[0].data)


@pytest.mark.rule("5.2b", "5.2c")
def test_independent_steps_run_side_by_side_and_unneeded_ones_not_at_all(
    tmp_path: Path, make_engine: Any, gate: Gate
) -> None:
    for name in ("left", "right"):
        add_gate(tmp_path, name)
    steps = [step("left", "X", "L"), step("right", "X", "R")]
    add_ensemble(tmp_path, "both", steps, outputs=("L", "R"))
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    (asked,) = asker.send([ask("both")])
    wait_until(lambda: len(gate.batches) == 2)
    gate.open.set()
    assert [each.name for each in asked.wait().outputs] == ["L", "R"]
    (pruned,) = asker.send([ask("both", outputs=[RequestedOutput("R")])])
    assert [each.name for each in pruned.wait().outputs] == ["R"]
    assert stats(engine, "left")["inference_count"] == 1
    assert stats(engine, "right")["inference_count"] == 2


@pytest.mark.rule("5.3a")
def test_batching_and_other_models_are_bridged(repository: Path, make_engine: Any) -> None:
    plain = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0").partition("dynamic_batching")[0]
    add_model(repository, "plain", config=plain, model=scale(3.0, (4,)))
    add_ensemble(repository, "mixed", [step("plain", "X", "t"), step("double", "t", "Y")], size=0)
    engine = make_engine(repository)
    response = engine.infer(ask("mixed", rows=0), 10)
    np.testing.assert_array_equal(response.as_numpy("Y"), np.full((4,), 6, F))


def test_an_ensemble_may_be_a_step_of_another(chain: Path, make_engine: Any) -> None:
    add_ensemble(chain, "above", [step("chain", "X", "t", names=("X", "Y")), step("double", "t", "Y")])
    engine = make_engine(chain, load_models=("above",))
    np.testing.assert_array_equal(engine.infer(ask("above"), 10).as_numpy("Y"), np.full((1, 4), 8, F))
    inner, outer = stats(engine, "chain")["inference_stats"], stats(engine, "above")["inference_stats"]
    assert inner["compute_infer"]["ns"] < outer["compute_infer"]["ns"]


# ---- errors


@pytest.mark.rule("5.6a", "5.6c")
def test_an_error_names_ensemble_and_step_and_counts_as_other(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    add_gate(tmp_path)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")])
    engine = make_engine(tmp_path)
    error = failed(engine, ask(parameters={"do": "error"}))
    assert (error.message, error.code) == ("in ensemble 'chain', this one is refused", Code.INTERNAL)
    assert "step 0 ('gate')" in error.where
    assert engine.snapshot().version("chain").failures["OTHER"] == 1
    assert stats(engine, "chain")["inference_stats"]["fail"]["count"] == 1
    assert len(gate.batches) == 1, "the second step was started after the first had failed"
    texts = [event.text for event in engine.events.after() if "step 0" in event.text]
    assert texts == ["ensemble 'chain' failed in step 0 ('gate'): in ensemble 'chain', this one is refused"]


def test_metrics_are_tritons(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain)
    engine.infer(ask(rows=3), 10)
    server = serve_engine(engine, ServerOptions(http_port=0, metrics_port=0))
    try:
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        server.close()
    labels = 'model="chain",version="1"'
    for line in (
        f"nv_inference_request_success{{{labels}}} 1",
        f"nv_inference_count{{{labels}}} 3",
        f"nv_inference_exec_count{{{labels}}} 1",
        'nv_inference_request_failure{model="chain",reason="OTHER",version="1"} 0',
        f"nv_inference_pending_request_count{{{labels}}} 0",
        f"nv_model_load_duration_secs{{{labels}}} 0",
    ):
        assert line in lines


@pytest.mark.rule("5.8a")
def test_f06_a_full_step_queue_answers(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    directory = add_gate(tmp_path)
    limited = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    text = (directory / "config.pbtxt").read_text().replace("dynamic_batching { }", limited)
    (directory / "config.pbtxt").write_text(text.replace("max_batch_size: 8", "max_batch_size: 1"))
    add_ensemble(tmp_path, "chain", [step("gate", "X", "Y")], size=1)
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    first = asker.send([ask()])
    assert gate.started.acquire(timeout=10)
    rest = asker.send([ask(id="q") for _ in range(40)])
    wait_until(lambda: sum(each.ended.is_set() for each in rest) == 39)
    texts = {str(each.error.message) for each in rest if each.error is not None}
    assert texts == {"in ensemble 'chain', [request id: q] Exceeds maximum queue size"}
    gate.open.set()
    for each in first + rest:
        each.wait()
    assert engine.snapshot().version("chain").running == 0


@pytest.mark.rule("5.8b")
def test_a_cancelled_request_cancels_its_steps(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")])
    engine = make_engine(tmp_path)
    (running, waiting) = Asker(engine).send([ask(parameters={"do": "cancel"}), ask()])
    assert gate.started.acquire(timeout=10)
    assert running.ticket is not None
    engine.loop.call_soon_threadsafe(running.ticket.cancel)
    gate.open.set()
    assert running.wait().error is not None
    assert (running.wait().error.message, running.wait().error.code) == ("in ensemble 'chain', ", Code.CANCELLED)  # type: ignore[union-attr]
    assert waiting.wait().error is None


def test_stopping_answers_what_is_open(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")])
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([ask(), ask()])
    assert gate.started.acquire(timeout=10)
    engine.loop.call_soon_threadsafe(engine.loop.call_later, 0.3, gate.open.set)
    engine.stop(10)
    assert [each.wait().error for each in asked] == [None, None], "what ran was not finished"


# ---- decoupled steps and limits


@pytest.mark.rule("5.5b")
def test_a_decoupled_step_makes_the_ensemble_decoupled(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    add_gate(tmp_path, "many", decoupled=True)
    add_gate(tmp_path, "one")
    add_ensemble(tmp_path, "chain", [step("many", "X", "t"), step("one", "t", "Y")])
    engine = make_engine(tmp_path)
    (asked,) = Asker(engine).send([ask(parameters={"do": "stream:5"})])
    asked.wait()
    # "one" streams too, but is not decoupled: only its first response counts
    assert [len(each.outputs) for each in asked.responses][:5] == [1] * 5
    assert asked.error is None
    assert engine.model_config("chain").model_transaction_policy.decoupled, "front ends ask the configuration"
    add_ensemble(tmp_path, "above", [step("chain", "X", "Y", names=("X", "Y"))])
    add_ensemble(tmp_path, "plain", [step("one", "X", "Y")], extra="}\nmodel_transaction_policy { decoupled: true ")
    engine.load("above")
    engine.load("plain")
    assert engine.model_config("above").model_transaction_policy.decoupled
    assert not engine.model_config("plain").model_transaction_policy.decoupled, "only its steps decide"


@pytest.mark.rule("5.7a", "5.7b")
@pytest.mark.parametrize("limit", [1, 2])
def test_an_in_flight_limit_holds_the_producer_and_loses_nothing(
    tmp_path: Path, make_engine: Any, gate: Gate, limit: int, repository: Path
) -> None:
    gate.open.set()
    add_gate(repository, "many", decoupled=True)
    steps = [step("many", "X", "t"), step("double", "t", "Y")]
    add_ensemble(repository, "chain", steps, extra=f"max_inflight_requests: {limit}\n")
    engine = make_engine(repository)
    asked = Asker(engine).send([ask(value=float(n), parameters={"do": "stream:20"}) for n in range(8)])
    for number, each in enumerate(asked):
        each.wait()
        answers = [response.as_numpy("Y")[0, 0] for response in each.responses if response.outputs]
        assert answers == [2.0 * number] * 20
    assert max(row["batch_size"] for row in stats(engine, "double")["batch_stats"]) <= limit


# ---- loading (5.9, 5.10)


def loading(engine: InferenceEngine, name: str) -> str:
    with pytest.raises(LoadFailed) as caught:
        engine.load(name)
    return caught.value.message


@pytest.mark.rule("5.9c", "5.9e")
def test_loading_an_ensemble_loads_what_it_is_made_of(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain, load_models=())
    engine.load("chain")
    assert engine.infer(ask(), 10).error is None
    engine.unload("chain", unload_dependents=True)
    wait_until(lambda: not engine.is_model_ready("double"))
    engine.load("double")
    engine.load("chain")
    engine.unload("chain", unload_dependents=True)
    assert engine.is_model_ready("double"), "a model that was loaded by name went with the ensemble"


@pytest.mark.rule("5.1a", "5.1d", "5.10a", "5.10b", "5.10c", "5.10d")
def test_what_cannot_be_loaded_says_why(chain: Path, make_engine: Any) -> None:
    add_model(chain, "broken", model=b"no model")
    add_model(chain, "unreadable", config="max_batch_size: {")
    add_model(chain, "small", config=CONFIG.replace("size: 8", "size: 2"))
    add_ensemble(chain, "missing", [step("nope", "X", "Y")])
    add_ensemble(chain, "on_unreadable", [step("unreadable", "X", "Y")])
    add_ensemble(chain, "on_broken", [step("broken", "X", "Y")])
    add_ensemble(chain, "above", [step("on_broken", "X", "Y", names=("X", "Y"))])
    add_ensemble(chain, "second", [step("double", "X", "Y", version=2)])
    add_ensemble(chain, "on_small", [step("small", "X", "Y")])
    add_ensemble(chain, "circle_a", [step("circle_b", "X", "Y", names=("X", "Y"))])
    add_ensemble(chain, "circle_b", [step("circle_a", "X", "Y", names=("X", "Y"))])
    engine = make_engine(chain)
    intro = "load failed for model"
    for name, text in (
        ("missing", "ensemble missing contains models that are not available or ambiguous: nope"),
        ("on_unreadable", "ensemble on_unreadable contains models that are not available or ambiguous: unreadable"),
        ("second", "ensemble 'second' depends on 'double' whose required version 2 is not loaded."),
        ("circle_a", "circular dependency between ensembles: circle_a -> ... -> circle_b -> circle_a"),
        (
            "on_small",
            "ensemble on_small allows maximum batch size 8, but it contains model small which only allows maximum "
            "batch size to be 2",
        ),
    ):
        assert loading(engine, name) == f"{intro} '{name}': {text}\n"
    on_broken = loading(engine, "on_broken")
    start = (
        f"{intro} 'on_broken': ensemble 'on_broken' depends on 'broken' which has no loaded version. Model 'broken' "
        "loading failed with error: version 1 is at UNAVAILABLE state: "
    )
    assert on_broken.startswith(start)
    inner = on_broken.partition("'on_broken': ")[2]
    chained = "ensemble 'above' depends on 'on_broken' which is not valid. Model 'on_broken' failed with error: "
    assert loading(engine, "above") == f"{intro} 'above': {chained}{inner}"
    assert {"name": "on_broken"} in engine.repository_index()
    assert engine.infer(ask(), 10).error is None


@pytest.mark.rule("5.9d")
def test_an_ensemble_goes_and_comes_back_with_its_models(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain)
    engine.unload("double")
    with pytest.raises(NotFound, match="Request for unknown model: 'chain' has no available versions"):
        engine.infer(ask(), 10)
    wait_until(
        lambda: (
            {"name": "chain", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"} in engine.repository_index()
        )
    )
    engine.load("double")
    assert engine.infer(ask(), 10).error is None
    engine.unload("chain")
    engine.load("double")
    assert not engine.is_model_ready("chain"), "an ensemble that was unloaded came back by itself"


def test_a_reloaded_step_is_used_at_once_and_starts_the_statistics_anew(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain)
    engine.infer(ask(), 10)
    (chain / "double" / "1" / "model.onnx").write_bytes(scale(5.0))
    engine.load("double")
    np.testing.assert_array_equal(engine.infer(ask(), 10).as_numpy("Y"), np.full((1, 4), 25, F))
    assert stats(engine, "chain")["inference_stats"]["success"]["count"] == 1


@pytest.mark.rule("5.1c")
def test_a_request_keeps_the_steps_that_it_began_with(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")])
    engine = make_engine(tmp_path)
    (asked,) = Asker(engine).send([ask()])
    assert gate.started.acquire(timeout=10)
    engine.unload("gate")
    gate.open.set()
    assert asked.wait().error is None, "a step's model was taken away under a request"
    wait_until(lambda: gate.live == 0)


def test_a_configuration_that_is_refused_loads_no_steps(repository: Path, make_engine: Any) -> None:
    add_ensemble(repository, "unused", [step("double", "X", "Y"), step("double", "X", "t")])
    engine = make_engine(repository, load_models=())
    with pytest.raises(WorkbenchError, match="failed to poll from model repository"):
        engine.load("unused")
    assert not engine.is_model_ready("double")


@pytest.mark.rule("5.9c")
def test_configuring_an_ensemble_loads_the_steps_that_it_gets(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain, load_models=("chain",))
    add_model(chain, "other")
    name = "ensemble_scheduling.step[0].model_name"
    engine.configure("chain", [Edit(name, "set", "other")], dry_run=True)
    assert not engine.is_model_ready("other"), "only tried"
    engine.configure("chain", [Edit(name, "set", "other")])
    assert engine.infer(ask(), 10).error is None
    assert stats(engine, "other")["inference_count"] == 1
    with pytest.raises(WorkbenchError, match="contains models that are not available or ambiguous: nobody"):
        engine.configure("chain", [Edit(name, "set", "nobody")])
    with pytest.raises(WorkbenchError, match="circular dependency between ensembles: chain"):
        engine.configure("chain", [Edit(name, "set", "chain")])
    assert engine.infer(ask(), 10).error is None
    engine.unload("other")
    with pytest.raises(WorkbenchError, match=r"not found|has no available versions|not at ready state"):
        engine.infer(ask(), 10)


@pytest.mark.rule("5.9b")
def test_configuring_an_ensemble_loads_it_anew(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain)
    result = engine.configure("chain", [Edit("max_batch_size", "set", 4)])
    assert result.change_class == "reload"
    assert "full reload" in result.triton
    assert "must be <= 4" in failed(engine, ask(rows=5)).message
    # what would be done in place for another model
    for edit in (Edit("version_policy.latest.num_versions", "set", 2), Edit('metric_tags["k"]', "set", "v")):
        assert engine.configure("chain", [edit]).change_class == "reload"
    with pytest.raises(WorkbenchError, match="allows maximum batch size 16"):
        engine.configure("chain", [Edit("max_batch_size", "set", 16)])
    assert engine.infer(ask(rows=4), 10).error is None
    # a live edit of a step changes nothing for the ensemble
    engine.configure("double", [Edit("dynamic_batching.max_queue_delay_microseconds", "set", 100)])
    assert engine.infer(ask(), 10).error is None
    assert stats(engine, "chain")["inference_stats"]["success"]["count"] == 2


def test_a_step_that_does_not_fit_any_more_takes_the_ensemble_out(chain: Path, make_engine: Any) -> None:
    engine = make_engine(chain)
    engine.configure("double", [Edit("max_batch_size", "set", 2)])
    assert not engine.is_model_ready("chain")
    assert "allows maximum batch size 8" in engine.snapshot().unreadable["chain"]
    engine.revert("double")
    assert engine.infer(ask(rows=8), 10).error is None


def test_a_warm_up_of_an_ensemble_is_refused(chain: Path, make_engine: Any) -> None:
    path = chain / "chain" / "config.pbtxt"
    warmup = 'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 4 } } }'
    path.write_text(path.read_text() + warmup)
    engine = make_engine(chain)
    with pytest.raises(WorkbenchError) as caught:
        engine.load("chain")
    assert "model_warmup can not be specified for ensemble 'chain'" in caught.value.hint
