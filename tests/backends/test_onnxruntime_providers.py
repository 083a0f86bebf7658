"""Execution providers: accelerators and their parameters by Triton's rules, a silent fallback found out, one session.

There is no GPU here: what would be asked of one is looked at as it is asked, and the fallback is that of a build of
ONNX Runtime without CUDA, which is a real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx_models import scale

from workbench.backends.base import InstanceSpec
from workbench.backends.conformance.host import ConformanceHost, Opened
from workbench.backends.onnxruntime import open_session
from workbench.backends.onnxruntime_providers import check_taken, on_cpu_instead, providers
from workbench.config import ConfigDocument
from workbench.errors import InternalError, InvalidRequest

CPU = InstanceSpec("m_0", "KIND_CPU", 0, 0)
GPU = InstanceSpec("m_0", "KIND_GPU", 1, 0)
CONFIG = """\
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def config(kind: str, name: str, *parameters: str) -> Any:
    """A configuration with one accelerator; parameters are key=value."""
    entries = (text.partition("=") for text in parameters)
    listed = " ".join(f"parameters {{ key: '{key}' value: '{value}' }}" for key, _, value in entries)
    accelerator = f"{kind}_execution_accelerator {{ name: '{name}' {listed} }}"
    return ConfigDocument.parse(f"optimization {{ execution_accelerators {{ {accelerator} }} }}".encode()).message


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An onnxruntime that says that it has every provider."""
    names = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "OpenVINO", "CPU")]
    monkeypatch.setattr(ort, "get_available_providers", lambda: names)


@pytest.mark.usefixtures("everywhere")
def test_tensorrt_before_cuda_before_the_cpu() -> None:
    made = config(
        "gpu", "tensorrt", "precision_mode=FP16", "max_workspace_size_bytes=1073741824", "trt_engine_cache_enable=true",
        "int8_use_native_calibration_table=0", "trt_engine_cache_path=/tmp", "trt_dla_core=0",
    )  # fmt: skip
    (first, tensorrt), (second, cuda), (third, _) = providers(made, GPU)
    assert (first, second, third) == ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
    assert tensorrt == {
        "trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824", "trt_engine_cache_enable": "1",
        "trt_int8_use_native_calibration_table": "0", "trt_engine_cache_path": "/tmp", "trt_dla_core": "0",
        "device_id": "1",
    }  # fmt: skip
    assert cuda == {
        "cudnn_conv_algo_search": "EXHAUSTIVE", "arena_extend_strategy": "kNextPowerOfTwo",
        "do_copy_in_default_stream": "1", "device_id": "1",
    }  # fmt: skip
    assert [name for name, _ in providers(made, CPU)] == ["CPUExecutionProvider"], "GPU accelerators are for GPUs"


@pytest.mark.usefixtures("everywhere")
def test_cuda_and_openvino() -> None:
    _, options = providers(config("gpu", "cuda", "use_ep_level_unified_stream=true", "tunable_op_enable=1"), GPU)[0]
    assert (options["use_ep_level_unified_stream"], options["tunable_op_enable"]) == ("1", "1")
    assert providers(config("cpu", "openvino"), CPU)[0] == ("OpenVINOExecutionProvider", {"device_type": "CPU"})
    text = b'parameters { key: "cudnn_conv_algo_search" value { string_value: "2" } }'
    assert providers(ConfigDocument.parse(text).message, GPU)[0][1]["cudnn_conv_algo_search"] == "DEFAULT"


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("kind", "name", "parameter", "text"),
    [
        ("gpu", "tensorrt", "precision_mode=FP4", "unsupported precision mode 'FP4' is requested"),
        ("gpu", "tensorrt", "fp16=1", "unknown parameter 'fp16' is provided for TensorRT Execution Accelerator"),
        ("gpu", "tensorrt", "trt_dla_core=first", "failed to convert 'first' to integral number"),
        ("gpu", "tensorrt", "trt_engine_cache_enable=yes", "failed to convert 'yes' to boolean value"),
        ("gpu", "tensorrtx", "a=1", "unknown Execution Accelerator 'tensorrtx' is requested"),
        ("cpu", "onednn", "a=1", "unknown Execution Accelerator 'onednn' is requested"),
    ],
)
def test_what_triton_refuses(kind: str, name: str, parameter: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        providers(config(kind, name, parameter), GPU if kind == "gpu" else CPU)
    assert caught.value.message == text


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime has CUDA")
@pytest.mark.skipif(
    "OpenVINOExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime has OpenVINO"
)
def test_what_this_build_does_not_have() -> None:
    with pytest.raises(InvalidRequest, match="unknown Execution Accelerator 'openvino' is requested") as caught:
        providers(config("cpu", "openvino"), CPU)
    assert 'set backend: "openvino"' in caught.value.hint
    with pytest.raises(InvalidRequest, match="has kind KIND_GPU but this onnxruntime has no CUDA provider"):
        providers(ConfigDocument.parse(b"").message, GPU)


def opened(host: ConformanceHost, folder: Path, more: str = "", instances: int = 1) -> Opened:
    (folder / "m" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "m" / "1" / "model.onnx").write_bytes(scale())
    (folder / "m" / "config.pbtxt").write_text(CONFIG + more)
    return Opened(host, folder / "m", instances)


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="this onnxruntime has CUDA")
def test_a_silent_fallback_is_found_out(tmp_path: Path) -> None:
    host = ConformanceHost()
    try:
        with opened(host, tmp_path) as model:
            wanted = [("CUDAExecutionProvider", {"device_id": "1"}), ("CPUExecutionProvider", {})]
            session = open_session(model.context, wanted)  # onnxruntime says nothing but in its log
            with pytest.raises(InternalError) as caught:
                check_taken(session, wanted, GPU)
            assert caught.value.message == (
                "instance m_0: onnxruntime could not use GPU 1: it left out CUDAExecutionProvider and fell back to "
                "CPUExecutionProvider"
            )
    finally:
        host.close()


@pytest.mark.skipif(
    "AzureExecutionProvider" not in ort.get_available_providers(), reason="this onnxruntime has no second provider"
)
def test_nodes_that_the_cpu_took_are_counted(tmp_path: Path) -> None:
    host = ConformanceHost()
    try:
        with opened(host, tmp_path) as model:
            wanted = [("AzureExecutionProvider", {}), ("CPUExecutionProvider", {})]
            session = open_session(model.context, wanted)
            assert check_taken(session, wanted, CPU) == "CPU (1 nodes)"
            assert on_cpu_instead(session) == (1, 1)
    finally:
        host.close()


@pytest.mark.parametrize(("more", "expected"), [("", 2), ("true", 1), ("false", 2)])
def test_one_session_for_all_instances_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, expected: int
) -> None:
    made: list[str] = []

    class Counted(ort.InferenceSession):
        def __init__(self, path: str, *args: Any, **kwargs: Any) -> None:
            made.append(path)
            super().__init__(path, *args, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", Counted)
    parameter = f'parameters {{ key: "WORKBENCH_SHARE_SESSION" value {{ string_value: "{more}" }} }}' if more else ""
    arena = 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }'
    host = ConformanceHost()
    try:
        with opened(host, tmp_path, f"{parameter}\n{arena}", instances=2) as model:
            assert len(made) == expected
            for number in range(2):
                (got,) = model.batch([{"x": np.ones((1, 4), np.float32)}], instance=number)
                assert got["y"].data.tolist() == [[2, 2, 2, 2]]
            model.instances[0].close()
            (got,) = model.batch([{"x": np.ones((1, 4), np.float32)}], instance=1)
            assert got["y"].data.tolist() == [[2, 2, 2, 2]], "the other one goes on"
    finally:
        host.close()
