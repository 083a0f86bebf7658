"""Where instances go: groups, devices out of recorded lists, host policies, passive instances; asked of the models."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import wait_until

from workbench.backends.host_policy import HostPolicy
from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import ConfigError, LoadFailed, NotReady, Unsupported
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.telemetry import Device, load_devices

RECORDED = Path(__file__).parents[1] / "recorded_devices"
TELL = """import json
import os

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.told = {key.removeprefix("model_instance_"): args[key] for key in args if "instance" in key}
        self.told["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.told["begun_on"] = cores()

    def execute(self, requests):
        text = json.dumps({**self.told, "runs_on": cores(), "pid": os.getpid()})
        tensor = pb.Tensor("TOLD", np.array([text.encode()], dtype=np.object_))
        return [pb.InferenceResponse([tensor]) for _ in requests]


def cores():
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""
CONFIG = """backend: "python"
max_batch_size: 0
input { name: "ANY" data_type: TYPE_FP32 dims: 1 }
output { name: "TOLD" data_type: TYPE_STRING dims: 1 }
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="cores are pinned on Linux only")


def add(root: Path, groups: str, name: str = "tell", extra: str = "") -> None:
    directory = root / name / "1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.py").write_text(TELL)
    (directory.parent / "config.pbtxt").write_text(CONFIG + extra + groups)


def told(engine: InferenceEngine, model: str = "tell") -> dict[str, dict[str, Any]]:
    """What every instance says of itself, by its place in the snapshot: idle instances take turns."""
    wanted = [each for each in engine.snapshot().version(model).instances if not each.passive]
    found: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for _ in range(10 * len(wanted)):
        request = InferenceRequest(model, [Tensor.from_numpy("ANY", np.zeros(1, np.float32))])
        answer = json.loads(engine.infer(request, 30).outputs[0].data[0])
        found[answer["name"], answer["device_id"], answer["visible"]] = answer
        if len(found) == len(wanted):
            break
    return {f"{name}/{device}/{visible}": answer for (name, device, visible), answer in found.items()}


def labels(engine: InferenceEngine, model: str = "tell") -> list[tuple[str, str, int]]:
    return [(each.name, each.kind, each.device_id) for each in engine.snapshot().version(model).instances]


def _runs_again(engine: InferenceEngine) -> bool:
    return any("runs again" in event.text for event in engine.events.after())


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


GROUPS = """instance_group [
  { kind: KIND_CPU count: 2 },
  { name: "own" kind: KIND_GPU gpus: [ 1, 3 ] count: 2 },
  { kind: KIND_MODEL }
]
"""


def test_groups_on_several_devices(tmp_path: Path, make_engine: Any) -> None:
    """Names and order are Triton's: ``<model>_<i>`` for a group without one, each GPU has ``count`` instances."""
    add(tmp_path, GROUPS)
    engine = make_engine(tmp_path, gpus=load_devices(RECORDED / "four_gpus_two_nodes.json"))
    assert labels(engine) == [
        ("tell_0_0", "KIND_CPU", 0),
        ("tell_0_1", "KIND_CPU", 0),
        ("own_0 (gpu 1)", "KIND_GPU", 1),
        ("own_0 (gpu 3)", "KIND_GPU", 3),
        ("own_1 (gpu 1)", "KIND_GPU", 1),
        ("own_1 (gpu 3)", "KIND_GPU", 3),
        ("tell_2_0", "KIND_MODEL", 0),
    ]
    answers = told(engine)
    assert sorted(answers) == [
        "own_0/1/None", "own_0/3/None", "own_1/1/None", "own_1/3/None", "tell_0_0/0/None", "tell_0_1/0/None",
        "tell_2_0/0/None",
    ]  # fmt: skip
    assert Counter(answer["kind"] for answer in answers.values()) == {"CPU": 2, "GPU": 4, "MODEL": 1}
    assert set(engine.records.read().batches["instance"]) == {each[0] for each in labels(engine)}


@pytest.mark.parametrize(
    ("devices", "group", "expected"),
    [
        ("one_gpu", "", [("tell_0", "KIND_GPU", 0)]),
        ("one_gpu", "instance_group { count: 2 }", [("tell_0_0", "KIND_GPU", 0), ("tell_0_1", "KIND_GPU", 0)]),
        ("one_gpu", "instance_group { gpus: [ 0 ] }", [("tell_0_0", "KIND_GPU", 0)]),
        ("none", "", [("tell_0", "KIND_CPU", 0)]),
        ("none", "instance_group { kind: KIND_MODEL }", [("tell_0_0", "KIND_MODEL", 0)]),
        ("too_old", "", [("tell_0", "KIND_GPU", 1)]),
        (
            "four_gpus_two_nodes", "instance_group { kind: KIND_GPU }",
            [(f"tell_0_0 (gpu {gpu})", "KIND_GPU", gpu) for gpu in range(4)],
        ),
    ],
)  # fmt: skip
def test_kind_auto_and_all_gpus(
    devices: str, group: str, expected: list[Any], tmp_path: Path, make_engine: Any
) -> None:
    add(tmp_path, group)
    engine = make_engine(tmp_path, gpus=load_devices(RECORDED / f"{devices}.json"), python_execution="thread")
    assert labels(engine) == expected


INTRO = "instance group tell_0 of model tell "
INVALID = (
    INTRO + "specifies invalid or unsupported gpu id {}. GPUs with at least the minimum required CUDA compute "
    "compatibility of {} are: {}"
)


@pytest.mark.parametrize(
    ("devices", "group", "text"),
    [
        ("one_gpu", "kind: KIND_CPU gpus: [ 0 ]", INTRO + "has kind KIND_CPU but specifies one or more GPUs"),
        ("one_gpu", "kind: KIND_MODEL gpus: [ 0 ]", INTRO + "has kind KIND_MODEL but specifies one or more GPUs"),
        ("none", "kind: KIND_GPU", INTRO + "has kind KIND_GPU but no GPUs are available"),
        ("none", "kind: KIND_GPU gpus: [ 0 ]", INVALID.format(0, "6.000000", "")),
        ("none", "gpus: [ 0 ]", INTRO + "has kind KIND_CPU but specifies one or more GPUs"),
        ("four_gpus_two_nodes", "kind: KIND_GPU gpus: [ 0, 4 ]", INVALID.format(4, "6.000000", "0, 1, 2, 3")),
        ("too_old", "kind: KIND_GPU gpus: [ 0 ]", INVALID.format(0, "6.000000", "1")),
    ],
)
def test_groups_that_cannot_be_placed(devices: str, group: str, text: str, tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, f"instance_group {{ {group} }}")
    devices_here = load_devices(RECORDED / f"{devices}.json")
    engine = make_engine(tmp_path, load_models=(), gpus=devices_here, python_execution="thread")
    with pytest.raises(LoadFailed) as caught:
        engine.load("tell")
    assert text in caught.value.message


def test_the_least_compute_capability_decides_and_is_named(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 1 ] }")
    devices = load_devices(RECORDED / "too_old.json")
    engine = make_engine(tmp_path, load_models=(), gpus=devices, min_compute_capability=8.0)
    with pytest.raises(LoadFailed) as caught:
        engine.load("tell")
    assert INVALID.format(1, "8.000000", "") in caught.value.message
    said = [event.text for event in engine.events.after() if "min-supported-compute-capability" in event.text]
    assert [line.partition(",")[0] for line in said] == ["GPU 0: Tesla K80", "GPU 1: NVIDIA T4"]
    assert make_engine(tmp_path, gpus=devices, min_compute_capability=3.0).is_model_ready("tell")


def test_a_mig_slice_is_the_only_device_of_its_process(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 2, 6 ] }")
    devices = load_devices(RECORDED / "h200_seven_slices.json")
    engine = make_engine(tmp_path, gpus=devices)
    assert labels(engine) == [("tell_0_0 (gpu 2)", "KIND_GPU", 2), ("tell_0_0 (gpu 6)", "KIND_GPU", 6)]
    assert sorted(told(engine)) == [f"tell_0_0/0/{devices[2].uuid}", f"tell_0_0/0/{devices[6].uuid}"]
    shown = engine.snapshot().version("tell").instances
    assert [each.visible_devices for each in shown] == [devices[2].uuid, devices[6].uuid]
    assert any("MIG slices: a process can use one of them" in event.text for event in engine.events.after())


def test_frameworks_of_the_servers_process_have_one_slice(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "")
    devices = load_devices(RECORDED / "h200_seven_slices.json")
    engine = make_engine(tmp_path, gpus=devices, python_execution="thread")
    assert labels(engine) == [("tell_0", "KIND_GPU", 0)]
    mixed = (Device(0, "GPU-0", "whole"), *(Device(each.index + 1, each.uuid, parent_uuid="GPU-1") for each in devices))
    engine = make_engine(tmp_path, gpus=mixed, python_execution="thread")
    assert labels(engine) == [("tell_0", "KIND_GPU", 0)], "the whole one"
    thread = 'parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n'
    add(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 3 ] }", extra=thread)
    engine = make_engine(tmp_path, load_models=(), gpus=devices)
    with pytest.raises(LoadFailed, match="is on a MIG slice, which takes a process of its own"):
        engine.load("tell")


def test_instances_of_one_name_on_two_gpus_die_and_go_on_apart(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }")
    engine = make_engine(tmp_path, gpus=(0, 1))
    before = told(engine)
    os.kill(before["tell_0_0/1/None"]["pid"], 9)
    wait_until(lambda: _runs_again(engine), 30)
    dead = {event.data["instance"] for event in engine.events.after() if event.kind == "instance"}
    assert dead == {"tell_0_0 (gpu 1)"}
    after = told(engine)
    assert after["tell_0_0/0/None"]["pid"] == before["tell_0_0/0/None"]["pid"]
    assert after["tell_0_0/1/None"]["pid"] != before["tell_0_0/1/None"]["pid"]


def test_a_group_is_moved_to_other_devices_in_place(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 0 ] count: 2 }")
    engine = make_engine(tmp_path, gpus=(0, 1))
    before = told(engine)
    result = engine.configure("tell", [Edit("instance_group[0].gpus", "set", [0, 1])])
    assert result.change_class == "instances"
    assert sorted(each[2] for each in labels(engine)) == [0, 0, 1, 1]
    after = told(engine)
    kept = {answer["pid"] for answer in before.values()} & {answer["pid"] for answer in after.values()}
    assert len(kept) == 2, "those on GPU 0 go on"
    with pytest.raises(ConfigError, match="invalid or unsupported gpu id 5"):
        engine.configure("tell", [Edit("instance_group[0].gpus", "set", [5])])
    assert len(labels(engine)) == 4


def test_a_passive_instance_is_made_and_executes_nothing(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "instance_group [ { kind: KIND_CPU }, { kind: KIND_CPU passive: true count: 2 } ]")
    engine = make_engine(tmp_path)
    shown = engine.snapshot().version("tell").instances
    assert [(each.name, each.passive) for each in shown] == [
        ("tell_0_0", False), ("tell_1_0", True), ("tell_1_1", True),
    ]  # fmt: skip
    assert list(told(engine)) == ["tell_0_0/0/None"]
    engine.configure("tell", [Edit("instance_group[1].passive", "set", False)])
    assert len(told(engine)) == 3
    engine.configure("tell", [Edit("instance_group[1].passive", "set", True)])
    assert [each.passive for each in engine.snapshot().version("tell").instances] == [False, True, True]
    engine.configure("tell", [Edit("instance_group[0]", "remove")])
    with pytest.raises(NotReady, match="has passive instances only"):
        engine.infer(InferenceRequest("tell", [Tensor.from_numpy("ANY", np.zeros(1, np.float32))]), 30)


# host policies


def _two_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


@on_linux
@pytest.mark.parametrize("execution", ["process", "thread"])
def test_instances_run_on_the_cores_of_their_policy(execution: str, tmp_path: Path, make_engine: Any) -> None:
    first, last = _two_cores()
    groups = (
        'instance_group [ { kind: KIND_CPU name: "one" host_policy: "low" }, '
        '{ kind: KIND_CPU name: "two" host_policy: "high" }, { kind: KIND_CPU name: "free" host_policy: "unknown" } ]'
    )
    add(tmp_path, groups)
    policies = {"low": {"cpu-cores": f"{first}-{first}"}, "high": {"cpu-cores": f"{last}-{last}"}}
    engine = make_engine(tmp_path, host_policies=policies, python_execution=execution)
    answers = {answer["name"]: answer for answer in told(engine).values()}
    everywhere = sorted(os.sched_getaffinity(0))
    for name, cores in (("one_0", [first]), ("two_0", [last]), ("free_0", everywhere)):
        assert (answers[name]["begun_on"], answers[name]["runs_on"]) == (cores, cores), name
    assert sorted(os.sched_getaffinity(0)) == everywhere
    shown = {each.name: (each.host_policy, each.pinned) for each in engine.snapshot().version("tell").instances}
    assert shown["one_0"] == ("low", policies["low"])
    assert shown["free_0"] == ("unknown", {})
    warned = [event.text for event in engine.events.after() if "host policy" in event.text]
    assert len(warned) == 1
    assert "names host policy 'unknown', which has no settings: nothing is pinned" in warned[0]


@on_linux
def test_a_policy_holds_after_the_process_has_died(tmp_path: Path, make_engine: Any) -> None:
    first, _ = _two_cores()
    add(tmp_path, "instance_group { kind: KIND_CPU }")
    engine = make_engine(tmp_path, host_policies={"cpu": {"cpu-cores": f"{first}-{first}"}})
    (before,) = told(engine).values()
    os.kill(before["pid"], 9)
    wait_until(lambda: _runs_again(engine), 30)
    (after,) = told(engine).values()
    assert after["pid"] != before["pid"]
    assert after["runs_on"] == [first]


@on_linux
def test_the_usual_policies_are_by_kind_and_device(tmp_path: Path, make_engine: Any) -> None:
    first, last = _two_cores()
    add(tmp_path, "instance_group [ { kind: KIND_CPU }, { kind: KIND_MODEL }, { kind: KIND_GPU gpus: [ 0, 1 ] } ]")
    low, high = {"cpu-cores": f"{first}-{first}"}, {"cpu-cores": f"{last}-{last}"}
    engine = make_engine(tmp_path, gpus=(0, 1), host_policies={"cpu": low, "model": high, "gpu_1": low})
    everywhere = sorted(os.sched_getaffinity(0))
    cores = {name: answer["runs_on"] for name, answer in told(engine).items()}
    assert cores == {
        "tell_0_0/0/None": [first], "tell_1_0/0/None": [last], "tell_2_0/0/None": everywhere,
        "tell_2_0/1/None": [first],
    }  # fmt: skip


@on_linux
def test_a_policy_can_be_changed_in_place(tmp_path: Path, make_engine: Any) -> None:
    first, last = _two_cores()
    add(tmp_path, 'instance_group { kind: KIND_CPU host_policy: "low" }')
    policies = {"low": {"cpu-cores": f"{first}-{first}"}, "high": {"cpu-cores": f"{last}-{last}"}}
    engine = make_engine(tmp_path, host_policies=policies)
    result = engine.configure("tell", [Edit("instance_group[0].host_policy", "set", "high")])
    assert result.change_class == "instances"
    assert [answer["runs_on"] for answer in told(engine).values()] == [[last]]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"cpu-cores": "0"},
            "Invalid argument: host policy setting 'cpu-cores' format is "
            "'<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 0;",
        ),
        ({"numa-node": "x"}, "Invalid argument: Parsing 'numa-node' value: Can't parse 'x' to integer;"),
        pytest.param({"cpu-cores": "9000-9000"}, "Internal: Unable to set NUMA thread affinity: ", marks=on_linux),
    ],
)
@pytest.mark.parametrize("execution", ["process", "thread"])
def test_a_wrong_policy_fails_the_load(
    settings: dict[str, str], text: str, execution: str, tmp_path: Path, make_engine: Any
) -> None:
    add(tmp_path, "instance_group { kind: KIND_CPU }")
    engine = make_engine(tmp_path, load_models=(), host_policies={"cpu": settings}, python_execution=execution)
    with pytest.raises(LoadFailed) as caught:
        engine.load("tell")
    assert text in caught.value.message


@on_linux
@pytest.mark.parametrize("threads", [0, 2])
def test_onnxruntime_is_pinned_with_its_threads_where_their_number_is_given(
    threads: int, repository: Path, make_engine: Any
) -> None:
    """Without it ONNX Runtime chooses the cores of its threads itself, in Triton too: the log says so."""
    first, _ = _two_cores()
    config = repository / "double" / "config.pbtxt"
    number = f'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}\n'
    config.write_text(config.read_text() + number)
    before = _threads()
    engine = make_engine(repository, load_models=(), host_policies={"cpu": {"cpu-cores": f"{first}-{first}"}})
    started = _threads()
    engine.load("double")
    made = {thread: cores for thread, cores in _threads().items() if thread not in started}
    assert [first] in made.values(), "the instance's thread"
    warned = any("but not the threads of onnxruntime" in event.text for event in engine.events.after())
    assert warned == (threads == 0)
    if threads:
        assert list(made.values()).count([first]) >= threads, "its own, and those beside it"
    assert {thread: cores for thread, cores in _threads().items() if thread in before}.items() <= before.items()


def _threads() -> dict[str, list[int]]:
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found[task.name] = sorted(os.sched_getaffinity(int(task.name)))
    return found


def test_a_setting_that_there_is_not_ends_the_start(tmp_path: Path, make_engine: Any) -> None:
    with pytest.raises(Unsupported, match="Unsupported host policy setting 'nice' is specified"):
        make_engine(tmp_path, host_policies={"cpu": {"nice": "3"}})
    assert HostPolicy("cpu", {"nice": "3"}).cores() is None
