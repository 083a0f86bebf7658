"""Live apply: edits in memory, in place where possible; validation first; save and revert."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx_models import CONFIG, add_model, request

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import ConfigError, LoadFailed, NotFound, WorkbenchError

DELAY = "dynamic_batching.max_queue_delay_microseconds"


def test_an_edit_is_in_force_at_once_and_touches_no_file(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    file = repository / "double" / "config.pbtxt"
    before = (file.read_bytes(), file.stat().st_mtime_ns)
    result = engine.configure("double", [Edit(DELAY, "set", 20_000)])
    assert (result.change_class, result.epoch, result.dirty) == ("live", 2, True)
    assert result.took_ms < 100
    assert "+dynamic_batching { max_queue_delay_microseconds: 20000 }  # the delay is tuned live" in result.diff
    assert "statistics start from zero" in result.triton
    assert result.config["dynamic_batching"]["max_queue_delay_microseconds"] == 20_000
    assert engine.model_config("double").dynamic_batching.max_queue_delay_microseconds == 20_000
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    state = engine.config_state("double")
    assert (state.dirty, state.epoch) == (True, 2)
    assert state.saved_text.encode() == before[0]
    assert "20000" in state.text
    assert state.effective == result.config
    engine.infer(request())
    row = engine.records.read().requests
    assert row["epoch"][-1] == 2
    assert row["compute_start"][-1] - row["arrival"][-1] >= 20_000_000
    assert engine.snapshot().version("double").config_epoch == 2


@pytest.mark.parametrize("count", [0, -3])
def test_a_count_below_one_is_tritons_default_and_said(repository: Path, make_engine: Any, count: int) -> None:
    """As real Triton takes it, but not without a word: when it is applied, and when it is loaded."""
    text = f"instance_group[0].count of model 'double' is {count}: for a count below 1 Triton takes its default, which"
    engine = make_engine(repository)
    result = engine.configure("double", [Edit("instance_group[0].count", "set", count)])
    assert result.config["instance_group"][0]["count"] == 2
    assert [reason for reason in result.reasons if text in reason] == [f"{text} is 2 here"]
    engine.save("double")
    engine = make_engine(repository)
    said = [event.text for event in engine.events.after() if event.level == "warning"]
    assert f"{text} is 2 here" in said
    for right in (1, 2):
        assert not any(
            text[:60] in reason
            for reason in engine.configure("double", [Edit("instance_group[0].count", "set", right)]).reasons
        )


def test_nothing_changes_with_an_equal_value_or_in_a_dry_run(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    result = engine.configure("double", [Edit(DELAY, "set", 0)])
    assert (result.change_class, result.epoch, result.dirty, result.diff) == ("none", 1, False, "")
    result = engine.configure("double", [Edit("max_batch_size", "set", 4)], dry_run=True)
    assert (result.change_class, result.epoch, result.dirty) == ("live", 1, True)
    assert result.config["max_batch_size"] == 4
    assert engine.model_config("double").max_batch_size == 8
    assert not engine.config_state("double").dirty


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (Edit("max_batch_size", "set", 4), "live"),
        (Edit("dynamic_batching.preferred_batch_size", "set", [2, 4]), "live"),
        (Edit("dynamic_batching", "remove"), "live"),
        (Edit("instance_group[0].count", "set", 3), "instances"),
        (Edit('parameters["intra_op_thread_count"].string_value', "set", "2"), "reload"),
        (Edit("max_batch_size", "set", 0), "reload"),
    ],
)
def test_classes_of_change(gate: Gate, tmp_path: Path, make_engine: Any, edit: Edit, kind: str) -> None:
    """Live and instance changes keep the model; a reload makes a new one."""
    config = GATE_CONFIG + 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    gate.open.set()
    edits = [edit]
    if edit.value == 0:
        edits.append(Edit("dynamic_batching", "remove"))
        edits += [Edit("input[0].dims", "set", [1, 4]), Edit("output[0].dims", "set", [1, 4])]
    engine.infer(request("gate"))
    made = gate.made
    result = engine.configure("gate", edits)
    assert result.change_class == kind
    assert gate.made - made == {"live": 0, "instances": 2, "reload": 1}[kind]
    kept = engine.statistics("gate")["model_stats"][0]["inference_count"]
    assert kept == (0 if kind == "reload" else 1)
    engine.infer(request("gate"))


def test_a_larger_batch_size_takes_the_preferred_size_along(repository: Path, make_engine: Any) -> None:
    """Normalisation writes preferred_batch_size: [max_batch_size]; it must not stay at the old one."""
    engine = make_engine(repository)
    result = engine.configure("double", [Edit("max_batch_size", "set", 32)])
    assert result.config["dynamic_batching"]["preferred_batch_size"] == [32]
    asked = Asker(engine).send([request() for _ in range(100)])
    for each in asked:
        each.wait()
    assert max(engine.records.read().batches["rows"]) == 32
    engine.configure("double", [Edit("max_batch_size", "set", 2)])
    with pytest.raises(WorkbenchError, match="batch-size must be <= 2"):
        engine.infer(request(rows=3))


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (Edit("max_batch_size", "set", -1), "'max_batch_size' must be non-negative value for double"),
        (
            Edit("dynamic_batching.preferred_batch_size", "set", [16]),
            "dynamic batching preferred size must be <= max batch size for double",
        ),
        (Edit("no_such_field", "set", 1), "no_such_field"),
        (Edit("dynamic_batching.max_queue_delay_microseconds", "set", "soon"), "soon"),
        (Edit("name", "set", "other"), "unexpected directory name 'double' for model 'other'"),
    ],
)
def test_a_bad_edit_changes_nothing(repository: Path, make_engine: Any, edit: Edit, text: str) -> None:
    engine = make_engine(repository)
    before = engine.config_state("double")
    with pytest.raises(WorkbenchError) as caught:
        engine.configure("double", [Edit(DELAY, "set", 5000), edit])
    assert text in str(caught.value)
    after = engine.config_state("double")
    assert (after.document, after.epoch, after.effective) == (before.document, before.epoch, before.effective)
    assert engine.infer(request()).error is None


def test_unknown_models(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    with pytest.raises(NotFound):
        engine.configure("nope", [Edit(DELAY, "set", 1)])
    with pytest.raises(NotFound):
        engine.config_state("nope")


def test_a_reload_that_fails_changes_nothing(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    with pytest.raises(LoadFailed, match="execution_mode are 0 or 1 but got 9"):
        engine.configure("double", [Edit('parameters["execution_mode"].string_value', "set", "9")])
    assert engine.config_state("double").epoch == 1
    assert not engine.config_state("double").dirty
    assert engine.infer(request()).error is None


def test_instances_come_and_go_under_load(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 1"))
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([request("gate") for _ in range(6)])
    assert gate.started.acquire(timeout=10)
    result = engine.configure("gate", [Edit("instance_group[0].count", "set", 3)])
    assert result.change_class == "instances"
    for _ in range(2):
        assert gate.started.acquire(timeout=10), "new instances take what waits"
    snapshot = engine.snapshot().version("gate")
    assert [each.busy for each in snapshot.instances] == [True] * 3
    assert len({each.name for each in snapshot.instances}) == 3
    engine.configure("gate", [Edit("instance_group[0].count", "set", 1)])
    assert gate.live == 3, "a running batch is not cut off"
    gate.open.set()
    assert all(each.wait().error is None for each in asked)
    wait_until(lambda: gate.live == 1)
    assert [each.name for each in engine.snapshot().version("gate").instances] == ["gate_0_0"]


def test_an_instance_that_cannot_be_made_changes_nothing(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    gate.open.set()
    gate.fail_instance = "no room"
    with pytest.raises(LoadFailed, match="no room"):
        engine.configure("gate", [Edit("instance_group[0].count", "set", 4)])
    assert gate.live == 1
    assert engine.config_state("gate").epoch == 1
    assert engine.infer(request("gate")).error is None


def test_what_waits_survives_every_kind_of_edit(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 2"))
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([request("gate") for _ in range(20)])
    assert gate.started.acquire(timeout=10)
    for edit in (
        Edit(DELAY, "set", 1000),
        Edit("dynamic_batching.priority_levels", "set", 2),
        Edit("max_batch_size", "set", 6),
        Edit("instance_group[0].count", "set", 2),
    ):
        edits = [edit]
        if "priority_levels" in edit.path:
            edits.append(Edit("dynamic_batching.default_priority_level", "set", 1))
        engine.configure("gate", edits)
    assert engine.snapshot().version("gate").config_epoch == 5
    gate.open.set()
    assert all(each.wait().error is None for each in asked)


def test_save_and_revert(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    file = repository / "double" / "config.pbtxt"
    file.chmod(0o640)
    engine.configure("double", [Edit(DELAY, "set", 700)])
    saved = engine.save("double")
    assert saved.path == str(file)
    assert "+dynamic_batching { max_queue_delay_microseconds: 700 }" in saved.diff
    assert file.read_text() == CONFIG.replace("microseconds: 0", "microseconds: 700")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    assert not engine.config_state("double").dirty
    count = engine.statistics("double")["model_stats"][0]["inference_count"]
    engine.load("double")
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == count
    engine.configure("double", [Edit(DELAY, "set", 900)])
    reverted = engine.revert("double")
    assert reverted.change_class == "live"
    assert not reverted.dirty
    assert engine.model_config("double").dynamic_batching.max_queue_delay_microseconds == 700


def test_save_where_there_was_no_file(repository: Path, make_engine: Any) -> None:
    add_model(repository, "bare", config=None)
    engine = make_engine(repository)
    engine.configure("bare", [Edit("max_batch_size", "set", 16)])
    engine.save("bare")
    assert "max_batch_size: 16" in (repository / "bare" / "config.pbtxt").read_text()
    assert engine.model_config("bare").dynamic_batching.preferred_batch_size == [16]


def test_a_file_that_cannot_be_written(repository: Path, make_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(repository)
    engine.configure("double", [Edit(DELAY, "set", 700)])
    import shutil

    shutil.rmtree(repository / "double")
    with pytest.raises(ConfigError, match="cannot write"):
        engine.save("double")
    assert engine.config_state("double").dirty
    assert engine.infer(request()).error is None


def test_unsaved_edits_and_the_file(repository: Path, make_engine: Any) -> None:
    """New weights keep unsaved edits; a changed file wins over them, and an event says so."""
    engine = make_engine(repository)
    engine.configure("double", [Edit(DELAY, "set", 700)])
    (repository / "double" / "1" / "notes.txt").write_text("new")
    engine.load("double")
    assert engine.model_config("double").dynamic_batching.max_queue_delay_microseconds == 700
    assert engine.config_state("double").dirty
    file = repository / "double" / "config.pbtxt"
    file.write_text(file.read_text().replace("microseconds: 0", "microseconds: 50"))
    engine.load("double")
    assert engine.model_config("double").dynamic_batching.max_queue_delay_microseconds == 50
    assert any("unsaved edits are dropped" in event.text for event in engine.events.after())


def test_live_edit_under_load_is_fast_and_loses_nothing(repository: Path, make_engine: Any) -> None:
    """Poisson-like load on 0 and then 20 ms of delay: mean batch rises, the edit is in force in under 100 ms."""
    engine = make_engine(repository)
    engine.configure("double", [Edit("max_batch_size", "set", 64)])
    stop = threading.Event()
    answered: list[int] = []
    failed: list[object] = []

    def feed() -> None:
        if stop.is_set():
            return
        engine.submit(request(), lambda r: (failed if r.error else answered).append(1))
        engine.loop.call_later(0.004, feed)

    engine.loop.call_soon_threadsafe(feed)

    def mean_batch(engine: InferenceEngine, requests: int) -> float:
        before = engine.statistics("double")["model_stats"][0]
        count = len(answered)
        wait_until(lambda: len(answered) >= count + requests)
        after = engine.statistics("double")["model_stats"][0]
        return (after["inference_count"] - before["inference_count"]) / (
            after["execution_count"] - before["execution_count"]
        )

    try:
        assert mean_batch(engine, 30) < 1.3
        result = engine.configure("double", [Edit(DELAY, "set", 20_000)])
        assert result.took_ms < 100
        wait_until(lambda: mean_batch(engine, 30) > 3, 3)
    finally:
        stop.set()
    assert not failed


def test_a_model_that_failed_can_be_mended_live(repository: Path, make_engine: Any) -> None:
    file = repository / "double" / "config.pbtxt"
    file.write_text(CONFIG.replace('string_value: "1"', 'string_value: "many"'))
    engine = make_engine(repository)
    assert engine.repository_index()[0]["state"] == "UNAVAILABLE"
    state = engine.config_state("double")
    assert not state.dirty
    threads = 'parameters["intra_op_thread_count"].string_value'
    with pytest.raises(LoadFailed, match="failed to convert 'more' to integral number"):
        engine.configure("double", [Edit(threads, "set", "more")])
    assert engine.config_state("double").document == state.document
    result = engine.configure("double", [Edit(threads, "set", "1")])
    assert (result.change_class, result.dirty) == ("reload", True)
    assert engine.infer(request()).error is None
    assert engine.repository_index()[0] == {"name": "double", "version": "1", "state": "READY"}


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (Edit("instance_group", "set", [{"count": 2_000_000_000}]), "instance_group[0].count"),
        (Edit("instance_group", "set", [{"count": 600}, {"count": 600}]), "instance_group[1].count"),
        (
            Edit("model_warmup", "set", [{"name": "w", "batch_size": 2_000_000_000, "inputs": {}}]),
            "model_warmup[0].batch_size",
        ),
        (
            Edit(
                "model_warmup",
                "set",
                [
                    {
                        "name": "w",
                        "batch_size": 1,
                        "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [10**6, 10**6], "zero_data": True}},
                    }
                ],
            ),
            'model_warmup[0].inputs["x"].dims',
        ),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_sizes_that_would_take_the_machine_are_refused(
    repository: Path, make_engine: Any, edit: Edit, place: str, dry_run: bool
) -> None:
    engine = make_engine(repository)
    with pytest.raises(ConfigError, match="at most") as caught:
        engine.configure("double", [edit], dry_run=dry_run)
    assert caught.value.where == place
    assert engine.config_state("double").epoch == 1
    engine.infer(request())


@pytest.mark.parametrize("theirs", ["# an edit of somebody else\n", "name: {{{\n"])
def test_save_does_not_overwrite_what_somebody_else_has_written(
    repository: Path, make_engine: Any, theirs: str
) -> None:
    engine = make_engine(repository)
    file = repository / "double" / "config.pbtxt"
    original = file.read_text()
    engine.configure("double", [Edit(DELAY, "set", 700)])
    file.write_text(original + theirs)
    with pytest.raises(ConfigError, match="has changed on disk") as caught:
        engine.save("double")
    assert caught.value.where == str(file)
    assert "revert" in caught.value.hint
    assert file.read_text() == original + theirs
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    assert engine.config_state("double").dirty
    engine.infer(request())
    file.write_text(original + "# an edit of somebody else\n")
    engine.revert("double")
    engine.configure("double", [Edit(DELAY, "set", 700)])
    engine.save("double")
    assert "700" in file.read_text()
    assert file.read_text().endswith("# an edit of somebody else\n")


def test_a_file_that_is_gone_is_written_anew_and_is_nothing_to_go_back_to(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    file = repository / "double" / "config.pbtxt"
    file.unlink()
    with pytest.raises(ConfigError, match=r"no config\.pbtxt to go back to"):
        engine.revert("double")
    engine.infer(request())
    engine.save("double")
    assert file.read_text() == engine.config_state("double").text
    engine.revert("double")
