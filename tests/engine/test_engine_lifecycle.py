"""Loading, reloading and unloading (section 7): states, reasons, texts, nothing lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx_models import CONFIG, add_model, identity, request, scale

from workbench.engine import InferenceEngine
from workbench.errors import Code, InternalError, InvalidRequest, LoadFailed, NotFound, WorkbenchError


def states(engine: InferenceEngine) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (row["name"], row.get("version", "")): (row.get("state", ""), row.get("reason", ""))
        for row in engine.repository_index()
    }


def touch(path: Path, data: bytes) -> None:
    """Writes a file so that its stamp differs even on a coarse clock."""
    import os

    path.write_bytes(data)
    later = path.stat().st_mtime_ns + 5_000_000
    os.utime(path, ns=(later, later))


def factor(engine: InferenceEngine, model: str = "double", version: int = -1) -> float:
    return float(engine.infer(request(model, model_version=version)).as_numpy("y")[0, 0])


def test_states_from_load_to_unload(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository, load_models=())
    assert engine.repository_index() == [{"name": "double"}]
    assert engine.is_ready()
    assert not engine.is_model_ready("double")
    engine.load("double")
    assert engine.repository_index() == [{"name": "double", "version": "1", "state": "READY"}]
    assert engine.is_model_ready("double", 1)
    engine.unload("double")
    wait_until(lambda: states(engine)["double", "1"] == ("UNAVAILABLE", "unloaded"))
    assert engine.repository_index(ready=True) == []
    assert engine.is_ready(), "a model that was unloaded on purpose does not make the server unready"
    with pytest.raises(WorkbenchError, match="'double' has no available versions") as caught:
        engine.infer(request())
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(WorkbenchError, match="'double' version 1 is not at ready state") as caught:
        engine.infer(request(model_version=1))
    assert caught.value.code is Code.UNAVAILABLE
    engine.load("double")
    assert factor(engine) == 2
    kinds = [event.data["state"] for event in engine.events.after() if event.kind == "state"]
    assert kinds == ["LOADING", "READY", "UNLOADING", "UNAVAILABLE", "LOADING", "READY"]
    engine.unload("unheard of")  # success, as in Triton


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [3]),
        ("version_policy { latest { num_versions: 2 } }", [2, 3]),
        ("version_policy { all { } }", [1, 2, 3]),
        ("version_policy { specific { versions: [ 1, 9, 3 ] } }", [1, 3]),
    ],
)
def test_version_policies(tmp_path: Path, make_engine: Any, policy: str, expected: list[int]) -> None:
    directory = add_model(tmp_path, "double", config=CONFIG + policy, versions=(1, 2, 3))
    for version in (1, 2, 3):
        (directory / str(version) / "model.onnx").write_bytes(scale(float(version)))
    for name in ("warmup", "007", "notes"):
        (directory / name).mkdir()
    engine = make_engine(tmp_path)
    assert [int(row["version"]) for row in engine.repository_index(ready=True)] == expected
    assert factor(engine) == max(expected)
    assert factor(engine, version=expected[0]) == expected[0]
    assert engine.model_metadata("double")["versions"] == [str(each) for each in expected]
    assert engine.model_metadata("double", expected[0])["versions"] == [str(expected[0])]
    assert any("leading zeros" in event.text for event in engine.events.after())


def test_no_version_left_by_the_policy(repository: Path, make_engine: Any) -> None:
    config = repository / "double" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { specific { versions: 5 } }")
    engine = make_engine(repository)
    with pytest.raises(LoadFailed) as caught:
        engine.load("double")
    assert caught.value.message == (
        "load failed for model 'double': at least one version must be available under the version policy of model "
        "'double'\n"
    )
    for version, text in ((None, "has no available versions"), (5, "version 5 is not found")):  # it is known by name
        with pytest.raises(NotFound) as missing:
            engine.model_metadata("double", *([] if version is None else [version]))
        assert missing.value.message == f"Request for unknown model: 'double' {text}"


def test_adding_a_version_leaves_the_others_alone(repository: Path, make_engine: Any) -> None:
    config = repository / "double" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all { } }")
    engine = make_engine(repository)
    assert factor(engine) == 2
    (repository / "double" / "2").mkdir()
    (repository / "double" / "2" / "model.onnx").write_bytes(scale(5))
    engine.load("double")
    assert factor(engine) == 5
    counts = {row["version"]: row["inference_count"] for row in engine.statistics("double")["model_stats"]}
    assert counts == {"1": 1, "2": 1}, "version 1 must not have been reloaded"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
        ("..", "invalid model name '..', model name must not contain path traversal characters"),
    ],
)
def test_bad_names(repository: Path, make_engine: Any, name: str, text: str) -> None:
    engine = make_engine(repository)
    with pytest.raises(InvalidRequest) as caught:
        engine.load(name)
    assert caught.value.message == text


def test_unknown_and_unreadable_models(repository: Path, make_engine: Any) -> None:
    broken = repository / "broken"
    broken.mkdir()
    (broken / "config.pbtxt").write_text('name: "broken"\nmax_batch_size: {')
    engine = make_engine(repository)
    for name in ("missing", "broken"):
        with pytest.raises(InternalError) as caught:
            engine.load(name)
        assert caught.value.message == f"failed to load '{name}', failed to poll from model repository"
        assert caught.value.code.http_status == 500
    assert "Expected" in str(caught.value) or "config.pbtxt" in str(caught.value), "the exception says what is wrong"
    assert engine.snapshot().unreadable.keys() == {"broken"}
    assert {"name": "broken"} in engine.repository_index()
    assert factor(engine) == 2, "other models are not disturbed"
    assert not engine.is_ready()


def test_directory_name_must_be_the_models(repository: Path, make_engine: Any) -> None:
    add_model(repository, "other", config=CONFIG.replace('"double"', '"something"'))
    engine = make_engine(repository)
    with pytest.raises(InternalError, match="failed to poll") as caught:
        engine.load("other")
    assert "unexpected directory name 'other' for model 'something'" in caught.value.hint


def test_missing_weights(repository: Path, make_engine: Any) -> None:
    (repository / "double" / "1" / "model.onnx").unlink()
    engine = make_engine(repository)
    path = repository / "double" / "1" / "model.onnx"
    reason = f"Unavailable: unable to find '{path}' for model instance 'double'"
    assert states(engine)["double", "1"] == ("UNAVAILABLE", reason)
    with pytest.raises(LoadFailed) as caught:
        engine.load("double")
    assert caught.value.message == (f"load failed for model 'double': version 1 is at UNAVAILABLE state: {reason};\n")
    assert caught.value.code.http_status == 400
    assert not engine.is_ready()
    assert engine.is_live()


def test_exit_on_error(repository: Path, make_engine: Any, own_threads: Any) -> None:
    (repository / "double" / "1" / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(LoadFailed, match="onnx runtime error 7"):
        make_engine(repository, exit_on_error=True)
    assert not own_threads()


def test_two_repositories(tmp_path: Path, make_engine: Any) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    add_model(first, "one")
    add_model(second, "two")
    add_model(first, "both")
    add_model(second, "both")
    engine = make_engine(first, second)
    assert engine.repository_index() == [
        {"name": "both", "state": "UNAVAILABLE", "reason": "model appears in two or more repositories"},
        {"name": "one", "version": "1", "state": "READY"},
        {"name": "two", "version": "1", "state": "READY"},
    ]
    with pytest.raises(InternalError, match="failed to poll"):
        engine.load("both")


def test_startup_models(repository: Path, make_engine: Any) -> None:
    add_model(repository, "other")
    engine = make_engine(repository, load_models=("other",))
    assert [row["name"] for row in engine.repository_index(ready=True)] == ["other"]
    with pytest.raises(InvalidRequest, match="Wildcard model name"):
        make_engine(repository, load_models=("*", "other"))


def test_a_load_of_what_did_not_change_is_none(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    factor(engine)
    engine.load("double")
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 1, "it was reloaded"
    (repository / "double" / "example_inputs.json").write_text("{}")
    engine.load("double")
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 1, "example inputs are no reason"
    touch(repository / "double" / "1" / "model.onnx", scale(7))
    engine.load("double")
    assert factor(engine) == 7
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 1, "a reload starts new statistics"


def test_a_failed_reload_keeps_the_old_version(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    good = (repository / "double" / "1" / "model.onnx").read_bytes()
    touch(repository / "double" / "1" / "model.onnx", b"nonsense")
    with pytest.raises(LoadFailed) as caught:
        engine.load("double")
    assert caught.value.message.startswith(
        "load failed for model 'double': version 1 is at UNAVAILABLE state: Internal: onnx runtime error 7: "
    )
    assert caught.value.message.endswith(";\n")
    assert states(engine)["double", "1"] == ("READY", "")
    assert factor(engine) == 2
    with pytest.raises(LoadFailed):
        engine.load("double")  # it is tried again
    touch(repository / "double" / "1" / "model.onnx", good + b"")
    engine.load("double")
    assert factor(engine) == 2


def test_a_broken_config_keeps_the_old_version(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    touch(repository / "double" / "config.pbtxt", b"max_batch_size: oops")
    with pytest.raises(InternalError, match="failed to poll from model repository"):
        engine.load("double")
    assert factor(engine) == 2
    assert states(engine)["double", "1"] == ("READY", "")


def test_in_flight_requests_stay_with_the_old_model(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    directory = add_model(tmp_path, "gate", config=GATE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 1"))
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([request("gate", id=str(index)) for index in range(4)])
    assert gate.started.acquire(timeout=10)
    touch(directory / "1" / "model.onnx", b"new")
    engine.load("gate")  # returns although requests of the old one still wait
    assert gate.made == 2
    assert engine.snapshot().version("gate").running == 0
    gate.open.set()
    for each in asked:
        assert each.wait().error is None
    wait_until(lambda: gate.live == 1)


def test_unload_lets_running_requests_finish(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    (asked,) = Asker(engine).send([request("gate")])
    assert gate.started.acquire(timeout=10)
    engine.unload("gate")
    assert states(engine)["gate", "1"] == ("UNLOADING", "")
    gate.open.set()
    assert asked.wait().error is None
    wait_until(lambda: states(engine)["gate", "1"] == ("UNAVAILABLE", "unloaded") and gate.live == 0)


def test_reload_under_load_loses_nothing(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    stop = threading.Event()
    answers: list[float] = []
    errors: list[BaseException] = []

    def client() -> None:
        while not stop.is_set():
            try:
                answers.append(factor(engine))
            except BaseException as error:
                errors.append(error)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    try:
        for value in range(3, 9):
            seen = len(answers)
            wait_until(lambda seen=seen: len(answers) > seen + 5)  # type: ignore[misc]
            touch(repository / "double" / "1" / "model.onnx", scale(float(value)))
            engine.load("double")
    finally:
        stop.set()
        for each in clients:
            each.join()
    assert not errors
    assert set(answers) <= set(range(2, 9))
    assert factor(engine) == 8


def test_config_override_sticks_until_files_change(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    override = json.dumps({"max_batch_size": 3, "backend": "onnxruntime"})
    engine.load("double", config=override)
    assert engine.model_config("double").max_batch_size == 3
    engine.load("double")
    assert engine.model_config("double").max_batch_size == 3
    assert engine.config_state("double").dirty
    touch(repository / "double" / "config.pbtxt", (repository / "double" / "config.pbtxt").read_bytes())
    engine.load("double")
    assert engine.model_config("double").max_batch_size == 8
    with pytest.raises(InternalError, match="failed to poll"):
        engine.load("double", config='{"no_such_field": 1}')
    assert factor(engine) == 2


def test_files_given_with_the_load(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    with pytest.raises(InternalError, match="failed to load 'double', failed to poll from model repository") as caught:
        engine.load("double", files={"file:1/model.onnx": b""})
    assert caught.value.hint == "Load parameter 'config' must be specified for model file override"
    config = json.dumps({"backend": "onnxruntime"})
    engine.load("double", config=config, files={"file:1/model.onnx": scale(11), "file:4/model.onnx": scale(12)})
    assert factor(engine) == 12
    assert (repository / "double" / "1" / "model.onnx").read_bytes() == scale(), "the repository stays as it is"
    for path, why in (
        ("../evil", "must stay within model directory."),
        ("1/../../../evil", "must stay within model directory."),
        ("/../../evil", "must stay within model directory."),
        ("A" * 256, "File name too long"),
        ("A" * 256 + "/model.onnx", "File name too long"),
        ("1/a\0b", "null byte"),
    ):
        with pytest.raises(InternalError, match="failed to load 'double', failed to poll") as caught:
            engine.load("double", config=config, files={f"file:{path}": b"x"})
        assert f"Invalid file parameter 'file:{path}'" in caught.value.hint
        assert why in caught.value.hint
    assert factor(engine) == 12
    engine.load("fresh", config=config, files={"file:1/model.onnx": scale(3)})
    assert factor(engine, "fresh") == 3
    assert {"name": "fresh", "version": "1", "state": "READY"} in engine.repository_index()


def test_unknown_backend(repository: Path, make_engine: Any) -> None:
    (repository / "x.unheard" / "1").mkdir(parents=True)
    engine = make_engine(repository)
    assert states(engine)["x.unheard", "1"] == (
        "UNAVAILABLE",
        "Invalid argument: unable to find backend library for backend 'unheard', try specifying runtime on the model "
        "configuration.",
    )


def test_auto_complete_and_without(tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "auto", config=None)
    engine = make_engine(tmp_path)
    config = engine.model_config("auto")
    assert (config.backend, config.platform, config.max_batch_size) == ("onnxruntime", "onnxruntime_onnx", 4)
    assert config.HasField("dynamic_batching")
    assert [(each.name, list(each.dims)) for each in config.input] == [("x", [4])]
    assert len(engine.snapshot().version("auto").instances) == 2, "ONNX Runtime on the CPU gets two instances"
    np.testing.assert_array_equal(engine.infer(request("auto", rows=4)).as_numpy("y"), np.full((4, 4), 2, np.float32))
    strict = make_engine(tmp_path, auto_complete=False)
    assert strict.repository_index() == [{"name": "auto"}]


def test_poll_mode_follows_the_directory(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository, control_mode="poll", poll_s=0.02)
    add_model(repository, "late", model=identity())
    wait_until(lambda: engine.is_model_ready("late"))
    touch(repository / "double" / "1" / "model.onnx", scale(4))
    wait_until(lambda: factor(engine) == 4)
    import shutil

    shutil.rmtree(repository / "late")
    wait_until(lambda: not engine.is_model_ready("late"))
    assert engine.is_model_ready("double")


def test_polling_outlives_a_repository_that_cannot_be_read_for_a_while(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository, control_mode="poll", poll_s=0.02)
    away = repository.rename(repository.with_name("away"))
    wait_until(lambda: any("failed to poll" in event.text for event in engine.events.after(-1)))
    assert engine.is_model_ready("double"), "what serves goes on"
    add_model(away, "late", model=identity())
    away.rename(repository)
    wait_until(lambda: engine.is_model_ready("late"))


def test_instance_that_cannot_be_made_leaves_nothing(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG.replace("count: 1", "count: 3"))
    gate.fail_instance = "no room"
    engine = make_engine(tmp_path)
    assert states(engine)["gate", "1"] == ("UNAVAILABLE", "Invalid argument: no room")
    assert gate.live == 0
    gate.fail_instance = ""
    engine.load("gate")
    assert gate.live == 3


def test_gpu_groups_without_a_gpu(repository: Path, make_engine: Any) -> None:
    config = repository / "double" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU"))
    engine = make_engine(repository, gpus=())
    with pytest.raises(LoadFailed) as caught:
        engine.load("double")
    assert caught.value.message == (
        "load failed for model 'double': version 1 is at UNAVAILABLE state: Invalid argument: instance group double_0 "
        "of model double has kind KIND_GPU but no GPUs are available;\n"
    )


def test_a_load_while_the_unload_is_under_way(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    (asked,) = Asker(engine).send([request("gate")])
    assert gate.started.acquire(timeout=10)
    engine.unload("gate")
    engine.load("gate")
    assert states(engine)["gate", "1"] == ("READY", "")
    gate.open.set()
    assert asked.wait().error is None
    wait_until(lambda: gate.live == 1)
    assert states(engine)["gate", "1"] == ("READY", "")
    assert engine.infer(request("gate")).error is None
    started = engine.snapshot().time_ns
    engine.stop(10)
    assert engine.snapshot().time_ns - started < 5e9
    assert gate.live == 0


def test_a_file_that_changes_instances_only_is_an_update_in_place(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    factor(engine)
    config = repository / "double" / "config.pbtxt"
    touch(config, config.read_bytes().replace(b"count: 1", b"count: 3"))
    engine.load("double")
    assert len(engine.snapshot().version("double").instances) == 3
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 1, "it was reloaded"
    assert not engine.config_state("double").dirty
    touch(config, config.read_bytes().replace(b"count: 3", b"count: 2").replace(b"size: 8", b"size: 7"))
    engine.load("double")
    assert len(engine.snapshot().version("double").instances) == 2
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 0, "what else differs is a reload"


def test_reverting_an_override_goes_back_to_the_directory(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 3})
    engine.load("double", config=config, files={"file:1/model.onnx": scale(11)})
    assert factor(engine) == 11
    result = engine.revert("double")
    assert (result.change_class, result.dirty) == ("reload", False)
    assert factor(engine) == 2
    assert engine.model_config("double").max_batch_size == 8


def test_a_framework_without_gpu_support_stays_on_the_cpu(
    repository: Path, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with GPUs KIND_AUTO means them only for backends that can use them."""
    monkeypatch.setattr("workbench.backends.onnxruntime.OnnxRuntimeBackend.uses_gpus", False)
    config = CONFIG.replace('backend: "onnxruntime"', 'platform: "onnxruntime_onnx"').replace("kind: KIND_CPU", "")
    add_model(repository, "double", config=config)
    engine = make_engine(repository, gpus=(0, 1))
    assert [each.kind for each in engine.snapshot().version("double").instances] == ["KIND_CPU"] * 1
    assert factor(engine) == 2


def test_a_label_file_that_is_not_there_fails_the_load(tmp_path: Path, make_engine: Any) -> None:
    """The text is that of tritonserver 2.51."""
    directory = add_model(tmp_path, "double", config=CONFIG.replace('name: "y"', 'name: "y" label_filename: "no.txt"'))
    engine = make_engine(tmp_path)
    text = f"Internal: failed to open text file for read {directory / 'no.txt'}: No such file or directory"
    assert states(engine)["double", "1"] == ("UNAVAILABLE", text)
    (directory / "no.txt").write_text("a\nb\n")
    engine.load("double")
    assert states(engine)["double", "1"] == ("READY", "")
