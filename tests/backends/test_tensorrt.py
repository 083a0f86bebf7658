"""The TensorRT backend without a GPU: plan files, fit, texts; execution against stand-ins of driver and TensorRT."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stand_in_gpu
from stand_in_gpu import Driver, Engine, Runtime

from workbench.backends.base import Execution, InstanceSpec, ModelContext, TensorSpec
from workbench.backends.cuda_driver import CudaLibrary
from workbench.backends.registry import create_backend
from workbench.backends.tensorrt import TensorRTBackend, open_driver
from workbench.backends.tensorrt_config import check_engine, model_description
from workbench.backends.tensorrt_engine import EngineDescription, ShapeRange
from workbench.backends.tensorrt_library import Messages, find_library, make_logger
from workbench.backends.tensorrt_plan import read_plan_head, why_not
from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument
from workbench.errors import InternalError, InvalidRequest, NotReady, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

HEAD = b"ftrt" + bytes(20) + bytes([10, 13, 3, 9]) + b"the rest"
CONFIG = """
platform: "tensorrt_plan"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP16 dims: -1 }
instance_group { name: "m" count: 1 kind: KIND_GPU gpus: 0 }
"""
TWO_PROFILES = CONFIG.replace("gpus: 0", 'gpus: 0 profile: [ "0", "1" ]').replace("size: 4", "size: 8")


def context(folder: Path, config: str = CONFIG, plan: bytes | None = HEAD, **settings: str) -> ModelContext:
    (folder / "1").mkdir(exist_ok=True)
    if plan is not None:
        (folder / "1" / "model.plan").write_bytes(plan)
    message = ConfigDocument.parse(config.encode()).message
    message.name = "m"
    host: Any = SimpleNamespace(clock=monotonic_ns)
    return ModelContext("m", 1, message, "{}", folder, folder / "1", host, settings)


# Plan files -------------------------------------------------------------------------------------------------------


def test_a_plans_head_says_what_built_it(tmp_path: Path) -> None:
    path = tmp_path / "model.plan"
    for head, library, version in (
        (HEAD, "tensorrt", "10.13.3.9"),
        (b"vtrt" + HEAD[4:], "tensorrt_rtx", "10.13.3.9"),
        (b"ftrt" + b"\x05" + HEAD[5:], "tensorrt", ""),
    ):
        path.write_bytes(head)
        found = read_plan_head(path)
        assert (found.library, found.version) == (library, version)
    path.write_bytes(HEAD)
    head = read_plan_head(path)
    assert why_not(head, "tensorrt", "10.13.3.9") == ""
    assert why_not(head, "tensorrt", "10.13.3") == ""
    assert why_not(head, "tensorrt", "10.9.0.34") == (
        "the plan was built with version 10.13.3.9, the runtime here is 10.9.0.34"
    )
    assert "the plan is one of the enterprise TensorRT" in why_not(head, "tensorrt_rtx", "1.7.1.116")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "model.plan is empty"),
        (b"PK\x03\x04" + bytes(40), "a zip archive: TorchScript"),
        (b"\x08\x07\x12\x04" + bytes(40), "an ONNX file perhaps"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"ftrt", "it begins with b'ftrt'"),
    ],
)
def test_what_is_no_plan_is_refused_before_any_library_is_asked(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"model\.plan is") as raised:
        TensorRTBackend().open(context(tmp_path, plan=content))
    assert text in str(raised.value)


def test_a_missing_plan_has_tritons_text(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"unable to find '.*1/model\.plan' for model instance 'm'"):
        TensorRTBackend().open(context(tmp_path, plan=None))


def test_without_runtime_or_driver_the_text_says_which_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = create_backend("tensorrt")

    def nowhere(name: str) -> Any:
        raise Unsupported(f"the package {name} is not installed", hint="pip install it")

    monkeypatch.setattr("workbench.backends.tensorrt.find_library", nowhere)
    with pytest.raises(Unsupported) as raised:
        backend.describe(context(tmp_path, plan=b"vtrt" + HEAD[4:]))
    assert raised.value.message == (
        "unable to load plan file of 'm': it is one of TensorRT-RTX 10.13.3.9, and the package tensorrt_rtx is not "
        "installed"
    )
    monkeypatch.setattr("workbench.backends.tensorrt.find_library", lambda name: stand_in_gpu.library())
    monkeypatch.setattr("workbench.backends.tensorrt.CudaLibrary", lambda: CudaLibrary("libnothing.so.1"))
    with pytest.raises(Unsupported, match=r"run on an NVIDIA GPU, and there is no NVIDIA driver here \(libnothing"):
        backend.open(context(tmp_path))
    monkeypatch.setattr("workbench.backends.tensorrt.CudaLibrary", lambda: CudaLibrary(Driver(devices=0)))
    with pytest.raises(Unsupported, match="run on an NVIDIA GPU: the CUDA driver finds no device"):
        backend.open(context(tmp_path))


def test_a_real_engine_that_cannot_run_here_says_why(tmp_path: Path) -> None:
    """Built by TensorRT-RTX in this test; where there is a GPU it loads."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    from onnx_models import scale

    from workbench.backends.tensorrt_build import EngineWish, build_engine

    (tmp_path / "double.onnx").write_bytes(scale())
    ranges = {"x": ShapeRange((1, 4), (4, 4), (4, 4))}
    made = build_engine(find_library("tensorrt_rtx"), tmp_path / "double.onnx", EngineWish([ranges]))
    config = CONFIG.replace("dims: -1", "dims: 4").replace("TYPE_FP16", "TYPE_FP32")
    check_engine(context(tmp_path, config).config, made.description)
    assert model_description(made.description).batching
    given = context(tmp_path, config, made.plan)
    if has_driver():
        assert TensorRTBackend().describe(given).batching
    else:
        with pytest.raises(Unsupported, match="run on an NVIDIA GPU"):
            TensorRTBackend().describe(given)


def has_driver() -> bool:
    try:
        open_driver()
    except Unsupported:
        return False
    return True


# Fit ----------------------------------------------------------------------------------------------------------------

SCORES = EngineDescription(
    (TensorSpec("x", "FP32", (-1, -1)),),
    (TensorSpec("y", "FP16", (-1, -1)),),
    ({"x": ShapeRange((1, 1), (1, 4), (4, 8))}, {"x": ShapeRange((1, 8), (8, 16), (8, 32))}),
)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "max_batch_size: 4",
            "max_batch_size: 5",
            "specified max-batch 5 but TensorRT engine only supports max-batch 4",
        ),
        ("gpus: 0", 'gpus: 0 profile: [ "2" ]', "the engine has no optimization profile 2"),
        ("gpus: 0", 'gpus: 0 profile: [ "low" ]', "optimization profiles are numbers, got low"),
        ("TYPE_FP16", "TYPE_FP32", "expects datatype TYPE_FP32 for output 'y', model provides TYPE_FP16"),
        ('"y"', '"z"', "unexpected inference output 'z', allowed outputs are: y"),
        ("dims: -1 }\noutput", "dims: [ 2, 2 ] }\noutput", "the model expects 2 dimensions"),
    ],
)
def test_a_configuration_that_does_not_fit_the_engine(tmp_path: Path, old: str, new: str, text: str) -> None:
    check_engine(context(tmp_path).config, SCORES)
    with pytest.raises(InvalidRequest) as raised:
        check_engine(context(tmp_path, CONFIG.replace(old, new)).config, SCORES)
    assert text in raised.value.message


def test_more_profiles_take_larger_batches_and_odd_types_are_refused(tmp_path: Path) -> None:
    check_engine(context(tmp_path, TWO_PROFILES).config, SCORES)
    strange = EngineDescription(SCORES.inputs, (TensorSpec("y", "", (-1, -1)),), SCORES.profiles)
    with pytest.raises(InvalidRequest, match="'y' is of a data type that no tensor on the wire has"):
        check_engine(context(tmp_path).config, strange)


# Execution ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr("workbench.backends.tensorrt.find_library", lambda name: stand_in_gpu.library())
    monkeypatch.setattr("workbench.backends.tensorrt.CudaLibrary", lambda: CudaLibrary(made))
    monkeypatch.setattr(Runtime, "engines", [Engine(made)])
    monkeypatch.setattr(Runtime, "said", [])
    monkeypatch.setattr(Runtime, "asked", [])
    yield made
    assert made.current == 0, "every context is popped where it was pushed"


def instance(given: ModelContext, device: int = 0) -> Any:
    return TensorRTBackend().open(given).create_instance(InstanceSpec("m_0", "KIND_GPU", device, 0))


def run(running: Any, *arrays: Any) -> list[Any]:
    answers: dict[int, InferenceResponse] = {}
    requests = [InferenceRequest("m", [Tensor.from_numpy("x", np.asarray(array, np.float32))]) for array in arrays]
    execution = Execution(requests, answers.__setitem__, lambda error: None, lambda index: False)
    running.execute(execution)
    assert 0 < execution.input_end <= execution.output_start
    return [answers[index].outputs[0].data for index in range(len(requests))]


def test_batches_go_through_and_everything_is_freed(tmp_path: Path, driver: Driver) -> None:
    running = instance(context(tmp_path))
    assert TensorRTBackend().describe(context(tmp_path)).outputs == SCORES.outputs
    one, two = run(running, [[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    assert (one.tolist(), two.tolist(), two.dtype) == ([[2, 4]], [[6, 8], [10, 12]], np.float16)
    first = run(running, np.ones((4, 8)))[0]
    run(running, np.zeros((1, 1)))
    assert first.tolist() == [[2.0] * 8] * 4, "an answer is no view of memory that is used again"
    assert len(driver.memory) == 2
    assert len(driver.pinned) == 2
    running.close()
    running.close()
    assert (driver.memory, driver.pinned, driver.streams, driver.contexts) == ({}, {}, {}, 1)
    with pytest.raises(InternalError, match="the instance is closed"):
        run(running, [[1.0]])
    del running
    gc.collect()
    assert driver.contexts == 0


def test_shapes_outside_of_the_profiles_are_refused_and_poison_nothing(tmp_path: Path, driver: Driver) -> None:
    running = instance(context(tmp_path))
    for shape, text in (
        ((1, 9), "dimension 1 to be between 1 and 8 but received 9"),
        ((5, 1), "dimension 0 to be between 1 and 4 but received 5"),
    ):
        with pytest.raises(InvalidRequest, match=text) as raised:
            run(running, np.ones(shape))
        assert raised.value.message.startswith("request specifies invalid shape for input 'x' for m. Error details: ")
    assert run(running, [[1.0]])[0].tolist() == [[2.0]]
    running.close()


def test_an_instance_of_several_profiles_takes_the_nearest(tmp_path: Path, driver: Driver) -> None:
    running = instance(context(tmp_path, TWO_PROFILES))
    for shape, added in (((1, 1), 0), ((1, 8), 0), ((4, 8), 0), ((5, 8), 1000), ((8, 32), 1000)):
        assert run(running, np.ones(shape))[0][0, 0] == 2 + added, shape
    running.close()


def test_cuda_graphs_are_captured_replayed_and_dropped_when_memory_moves(tmp_path: Path, driver: Driver) -> None:
    running = instance(context(tmp_path, TWO_PROFILES + "optimization { cuda { graphs: true } }"))
    engine: Engine = Runtime.engines[0]
    for count, launched in ((1, 0), (2, 0), (3, 1), (4, 2)):
        assert run(running, np.full((2, 4), float(count)))[0].tolist() == [[2.0 * count] * 4] * 2
        assert driver.launched == launched
    assert engine.executed == 3, "twice for real, once captured"
    assert run(running, [[7.0]])[0].tolist() == [[14.0]]
    assert run(running, np.full((2, 4), 9.0))[0].tolist() == [[18.0] * 4] * 2
    assert driver.launched == 3
    assert run(running, np.full((8, 32), 2.0))[0][0, 0] == 1004, "needs more memory than there was"
    assert driver.graphs == {}
    assert run(running, np.full((2, 4), 5.0))[0].tolist() == [[10.0] * 4] * 2
    running.close()
    assert driver.graphs == {}


def test_graph_spec_names_the_shapes_that_are_captured(tmp_path: Path, driver: Driver) -> None:
    spec = 'graph_spec { batch_size: 2 input { key: "x" value { dim: 4 } } }'
    running = instance(context(tmp_path, CONFIG + f"optimization {{ cuda {{ graphs: true {spec} }} }}"))
    for _ in range(3):
        run(running, np.ones((1, 4)))
    assert driver.launched == 0
    for _ in range(3):
        run(running, np.ones((2, 4)))
    assert driver.launched == 1
    running.close()


def test_options_of_memory_and_priority(tmp_path: Path, driver: Driver) -> None:
    off = "input_pinned_memory { enable: false } output_pinned_memory { enable: false } priority: PRIORITY_MAX"
    text = (
        CONFIG
        + f"optimization {{ {off} }}"
        + ('parameters { key: "execution_context_allocation_strategy" value { string_value: "on_profile_change" } }')
    )
    running = instance(context(tmp_path, text))
    assert run(running, [[3.0]])[0].tolist() == [[6.0]]
    assert (driver.pinned, driver.priorities) == ({}, [-5])
    running.close()
    with pytest.raises(InvalidRequest, match="execution_context_allocation_strategy is ALL"):
        instance(context(tmp_path, text.replace("on_profile_change", "all")))


def test_an_output_whose_shape_depends_on_the_values(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "engines", [Engine(driver, ("big",))])
    config = CONFIG.replace("max_batch_size: 4", "max_batch_size: 0").replace(
        "dims: -1 }\noutput", "dims: [ -1, -1 ] }\noutput"
    )
    running = instance(context(tmp_path, config.replace('"y" data_type: TYPE_FP16', '"big" data_type: TYPE_FP32')))
    assert run(running, [[1.0, 20.0], [30.0, 4.0]])[0].tolist() == [20.0, 30.0]
    assert run(running, [[1.0, 2.0]])[0].tolist() == []
    running.close()


def test_an_engine_that_the_runtime_refuses(tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "engines", [])
    monkeypatch.setattr(Runtime, "said", [("WARNING", "slow"), ("ERROR", "built for compute capability 9.0")])
    with pytest.raises(InternalError) as raised:
        instance(context(tmp_path))
    assert raised.value.message == (
        "unable to load plan file model.plan on GPU 0 by TensorRT 10.13.3.9: built for compute capability 9.0"
    )
    assert "--hardwareCompatibilityLevel" in raised.value.hint
    monkeypatch.setattr("workbench.backends.tensorrt.find_library", lambda name: stand_in_gpu.library("10.9.0.34"))
    with pytest.raises(InternalError, match=r"built with version 10\.13\.3\.9, the runtime here is 10\.9\.0\.34"):
        instance(context(tmp_path))
    with pytest.raises(InternalError, match="there is no GPU 3: the driver finds 1"):
        instance(context(tmp_path), device=3)


def test_what_else_an_instance_refuses(tmp_path: Path, driver: Driver) -> None:
    model = TensorRTBackend().open(context(tmp_path, **{"version-compatible": "true"}))
    with pytest.raises(InvalidRequest, match="instance m_0 has kind KIND_CPU"):
        model.create_instance(InstanceSpec("m_0", "KIND_CPU", 0, 0))
    first = model.create_instance(InstanceSpec("m_0", "KIND_GPU", 0, 0))
    second = model.create_instance(InstanceSpec("m_1", "KIND_GPU", 0, 1))
    assert len(Runtime.asked) == 1, "an engine is deserialised once a device"
    assert Runtime.asked[0].engine_host_code_allowed
    first.close()
    assert run(second, [[2.0]])[0].tolist() == [[4.0]]
    second.close()
    model.close()


def test_a_library_that_is_missing_or_too_old_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.backends import tensorrt_library

    tensorrt_library._import.cache_clear()
    (tmp_path / "tensorrt.py").write_text("__version__ = '8.6.1'")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unsupported, match=r"version 8\.6\.1, and 10 is the oldest"):
        find_library("tensorrt")
    monkeypatch.setitem(tensorrt_library.INSTALL, "tensorrt_no", "nothing")
    with pytest.raises(Unsupported, match="the package tensorrt_no is not installed"):
        find_library("tensorrt_no")
    messages = Messages()
    logger = make_logger(stand_in_gpu.library(), messages)
    for severity in ("INFO", "WARNING", "ERROR", "ERROR", "INTERNAL_ERROR"):
        logger.log(stand_in_gpu.Enum(severity), severity)
    assert messages.errors() == ["ERROR", "INTERNAL_ERROR"]
    tensorrt_library._import.cache_clear()
    assert issubclass(Unsupported, WorkbenchError)
