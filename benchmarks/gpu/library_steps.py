"""What needs more than torch: TensorRT, ONNX Runtime's CUDA, the GPU's memory, DALI, nvforest; each says what lacks."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np

from gpu.served import ask, detector, drift, engine_over, put
from gpu.steps import Failed, NotProved, Place, Step
from workbench.backends.cuda_driver import CudaLibrary
from workbench.backends.tensorrt_library import find_library
from workbench.engine import InferenceEngine
from workbench.errors import Unsupported

_HANDLE_BYTES = 64
_TENSORRT_MAJORS = (10, 11)


def onnxruntime_cuda(place: Place) -> dict[str, Any]:
    """The CUDA provider takes the graph (no silent fallback) and answers as the CPU does."""
    import onnxruntime

    _provider(onnxruntime, "CUDAExecutionProvider", "onnxruntime-gpu")
    return _against_cpu(place, "", 1e-2)


def onnxruntime_tensorrt(place: Place) -> dict[str, Any]:
    """TensorRT inside ONNX Runtime, in FP16, as ``execution_accelerators`` asks for it."""
    import onnxruntime

    _provider(onnxruntime, "TensorrtExecutionProvider", "onnxruntime-gpu, and TensorRT's libraries")
    _tensorrt_library()  # builds of ONNX Runtime for GPUs name the provider whether it is there or not
    more = (
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" '
        'parameters { key: "precision_mode" value: "FP16" } } } }'
    )
    return _against_cpu(place, more, 5e-2)


def tensorrt_build(place: Place) -> dict[str, Any]:
    """``workbench build --to tensorrt``, in FP32 and FP16; the engines are loaded and held against ONNX Runtime."""
    from workbench.package.building import BuildOptions, build
    from workbench.package.building.options import ShapeSet

    _any_tensorrt()
    cpu = detector(place, "KIND_CPU")
    source = cpu.options.repositories[0] / "detector"
    rows = []
    pixels = _pixels(2, 320)
    wanted = ask(cpu, "detector", {"x": pixels}, "sigmoid_0.tmp_0")
    profile = ShapeSet({"x": (1, 3, 320, 320)}, {"x": (2, 3, 320, 320)}, {"x": (8, 3, 320, 320)})
    target = place.scratch / "tensorrt"
    target.mkdir()
    for precision in ("fp32", "fp16"):
        for graphs in (False, True):
            name = f"detector_{precision}{'_graphs' if graphs else ''}"
            options = BuildOptions(fp16=precision == "fp16", use_cuda_graph=graphs, profiles=(profile,))
            built = build(source, to="tensorrt", into=target, name=name, options=options, verify=False,
                          example_inputs={"x": pixels})  # fmt: skip
            _on_gpu(built.directory)
            rows.append({"model": name, "built with": built.built_with, "seconds": round(built.seconds, 1),
                         "MB": round(built.size_bytes / 1e6, 1)})  # fmt: skip
    engine = engine_over(place, target)
    for row in rows:
        # Three times: a graph is captured when a shape comes the second time.
        answers = [ask(engine, row["model"], {"x": pixels}, "sigmoid_0.tmp_0") for _ in range(3)]
        row["drift"] = max(drift(answer, wanted) for answer in answers)
        if row["drift"] > (1e-2 if "fp32" in row["model"] else 1e-1):
            raise Failed(f"{row['model']} differs from ONNX Runtime by {row['drift']:.2e} of the largest", engines=rows)
    return {"engines": rows}


def cuda_shared_memory(place: Place) -> dict[str, Any]:
    """A client's tensors lie in the GPU's memory; the server, another process, reads and writes them there."""
    import tritonclient.http as http

    from workbench.session.opening import serve

    driver = CudaLibrary()
    repository = place.scratch / "shared_memory"
    put(repository, "twice", _TWICE, "model.py", _written(place.scratch / "twice.py", _TWICE_PY))
    server = serve(repository, options={"allow_client_shm": True})
    place.closing.append(server.close)
    size = 2**21
    with _DeviceMemory(driver, size) as memory:
        sent = np.arange(size // 8, dtype=np.float32)
        memory.write(sent)
        client = http.InferenceServerClient(server.url.partition("://")[2])
        client.register_cuda_shared_memory("gpu", b64encode(memory.handle()), 0, size)
        asked = http.InferInput("x", [1, len(sent)], "FP32")
        asked.set_shared_memory("gpu", sent.nbytes)
        wanted = http.InferRequestedOutput("y")
        wanted.set_shared_memory("gpu", sent.nbytes, offset=size // 2)
        client.infer("twice", [asked], outputs=[wanted])
        got = memory.read(size // 2, len(sent))
        client.unregister_cuda_shared_memory("gpu")
    if not np.array_equal(got, 2 * sent):
        raise Failed("what the server wrote into the GPU's memory is not the answer")
    return {"bytes each way": int(sent.nbytes)}


def dali_mixed(place: Place) -> dict[str, Any]:
    """A pipeline that decodes on the GPU (``device="mixed"``) gives the pictures that the CPU's decoder gives."""
    import nvidia.dali as dali
    from PIL import Image

    def pipeline(device: str) -> bytes:
        @dali.pipeline_def(batch_size=8, num_threads=1, device_id=0 if device == "mixed" else None,
                           output_dtype=[dali.types.UINT8], output_ndim=[3], prefetch_queue_depth=1)  # fmt: skip
        def definition() -> Any:
            image = dali.fn.external_source(device="cpu", name="IMAGE", dtype=dali.types.UINT8, ndim=1)
            return dali.fn.decoders.image(image, device=device, output_type=dali.types.RGB)

        content: bytes = definition().serialize()
        return content

    repository = place.scratch / "dali"
    for name, device in (("gpu", "mixed"), ("cpu", "cpu")):
        kind = "KIND_GPU" if name == "gpu" else "KIND_CPU"
        config = f'name: "{name}"\nbackend: "dali"\nmax_batch_size: 8\ninstance_group [ {{ kind: {kind} }} ]\n'
        file = place.scratch / f"{name}.dali"
        file.write_bytes(pipeline(device))
        put(repository, name, config, "model.dali", file)
    engine = engine_over(place, repository)
    smooth = np.linspace(0, 255, 256 * 320 * 3).reshape(256, 320, 3).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(smooth).save(encoded, "JPEG", quality=95)
    image = np.frombuffer(encoded.getvalue(), np.uint8)[np.newaxis]
    output = engine.model_config("gpu").output[0].name
    got, wanted = (ask(engine, name, {"IMAGE": image}, output).astype(float) for name in ("gpu", "cpu"))
    figures = {"mean difference in levels of 255": round(float(np.abs(got - wanted).mean()), 3)}
    if got.shape != wanted.shape or np.abs(got - wanted).mean() > 2:
        raise Failed("the GPU's decoder gives other pictures", **figures)
    return figures


def nvforest(place: Place) -> dict[str, Any]:
    """Trees on the GPU (nvforest) give the probabilities that they give on the CPU."""
    if importlib.util.find_spec("nvforest") is None:
        raise NotProved("nvforest is not installed")
    from sklearn.datasets import load_digits

    from workbench.samples import build

    repository = place.scratch / "forest"
    build(repository, models=["digits_xgb"])
    other = repository / "digits_gpu"
    for file in ("config.pbtxt", "1/xgboost.ubj"):
        content = (repository / "digits_xgb" / file).read_bytes()
        (other / file).parent.mkdir(parents=True, exist_ok=True)
        (other / file).write_bytes(content.replace(b'name: "digits_xgb"', b'name: "digits_gpu"'))
    _on_gpu(other)
    engine = engine_over(place, repository)
    pixels = load_digits().data.astype(np.float32)[:500]
    got, wanted = (ask(engine, name, {"input__0": pixels}, "output__0") for name in ("digits_gpu", "digits_xgb"))
    if drift(got, wanted) > 1e-4:
        raise Failed(f"probabilities differ by {drift(got, wanted):.2e}")
    return {"rows": len(pixels), "drift": f"{drift(got, wanted):.1e}"}


_TWICE = """name: "twice"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_TWICE_PY = """import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", 2 * x)]) for x in inputs]
"""


class _DeviceMemory:
    """Memory of GPU 0 that another process may open."""

    def __init__(self, driver: CudaLibrary, size: int) -> None:
        self._driver, self._address = driver, ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(size))

    def __enter__(self) -> _DeviceMemory:
        return self

    def __exit__(self, *error: object) -> None:
        self._call("cuMemFree_v2", self._address)

    def handle(self) -> bytes:
        """What another process opens it by."""
        handle = ctypes.create_string_buffer(_HANDLE_BYTES)
        self._call("cuIpcGetMemHandle", handle, self._address)
        return handle.raw

    def write(self, array: np.ndarray) -> None:
        """Copies an array to its beginning."""
        self._call("cuMemcpyHtoD_v2", self._address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def read(self, offset: int, count: int) -> np.ndarray:
        """Floats from an offset in bytes on."""
        array = np.empty(count, np.float32)
        place = ctypes.c_uint64(self._address.value + offset)
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), place, ctypes.c_size_t(array.nbytes))
        return array

    def _call(self, name: str, *arguments: Any) -> None:
        with self._driver.current(0):
            self._driver.call(name, *arguments)


def _provider(onnxruntime: Any, name: str, package: str) -> None:
    if name not in onnxruntime.get_available_providers():
        raise NotProved(f"onnxruntime {onnxruntime.__version__} has no {name}: install {package}")


def _any_tensorrt() -> None:
    try:
        find_library()
    except Unsupported as error:
        raise NotProved(f"{error.message}: {error.hint}") from error


def _tensorrt_library() -> None:
    for major in _TENSORRT_MAJORS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"libnvinfer.so.{major}")
            return
    raise NotProved("TensorRT's library (libnvinfer) is not on the library path: ONNX Runtime loads it from there")


def _against_cpu(place: Place, more: str, most: float) -> dict[str, Any]:
    cpu, gpu = detector(place, "KIND_CPU"), detector(place, "KIND_GPU", more)
    rows = []
    for batch, size in ((1, 160), (4, 320)):
        inputs = {"x": _pixels(batch, size)}
        got, wanted = (ask(engine, "detector", inputs, "sigmoid_0.tmp_0") for engine in (gpu, cpu))
        rows.append({"batch": batch, "pixels": size, "drift": f"{drift(got, wanted):.1e}"})
        if drift(got, wanted) > most:
            raise Failed(f"answers differ by {drift(got, wanted):.2e} of the largest", shapes=rows)
    return {"shapes": rows, "providers": _details(gpu)}


def _details(engine: InferenceEngine) -> dict[str, Any]:
    return dict(engine.snapshot().version("detector").details)


def _pixels(batch: int, size: int) -> np.ndarray:
    """Dark bars on white, which the detector takes for lines; fp32 [batch, 3, size, size]."""
    pixels = np.ones((batch, 3, size, size), np.float32)
    pixels[:, :, 40:60, 20 : size - 20 : 4] = -1
    return pixels + np.random.default_rng(7).normal(0, 0.05, pixels.shape).astype(np.float32)


def _on_gpu(directory: Path) -> None:
    path = directory / "config.pbtxt"
    path.write_text(path.read_text().replace("KIND_CPU", "KIND_GPU"))


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


LIBRARY_STEPS = (
    Step("onnxruntime cuda", "b", "ONNX Runtime's CUDA provider answers as its CPU provider", onnxruntime_cuda),
    Step("onnxruntime tensorrt", "b", "TensorRT inside ONNX Runtime (FP16) answers", onnxruntime_tensorrt, limit_s=180),
    Step(
        "tensorrt",
        "b",
        "engines are built, loaded and answer as ONNX, CUDA graphs asked for and not",
        tensorrt_build,
        limit_s=240,
    ),
    Step("cuda shared memory", "b", "a client's tensors in the GPU's memory are read and written", cuda_shared_memory),
    Step("dali mixed", "b", "DALI decodes on the GPU as on the CPU", dali_mixed),
    Step("nvforest", "b", "trees on the GPU answer as on the CPU", nvforest),
)
