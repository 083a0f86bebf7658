"""The DALI backend: serialized and Python pipelines on the CPU, ragged batches, errors, what a pipeline completes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_kits import config as plain_config
from conformance_kits import draw

from workbench.backends.conformance import BackendConformance, Kit, ModelCase
from workbench.backends.conformance.host import ConformanceHost, Opened, written
from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import LoadFailed, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")
import nvidia.dali as dali
from nvidia.dali import fn, types

pytestmark = pytest.mark.full

KINDS = {
    "UINT8": types.UINT8, "UINT16": types.UINT16, "UINT32": types.UINT32, "UINT64": types.UINT64, "INT8": types.INT8,
    "INT16": types.INT16, "INT32": types.INT32, "INT64": types.INT64, "FP16": types.FLOAT16, "FP32": types.FLOAT,
    "FP64": types.FLOAT64, "BOOL": types.BOOL,
}  # fmt: skip


def serialized(build: Callable[[], Any], *, batch: int = 8, **declared: Any) -> bytes:
    definition = dali.pipeline_def(batch_size=batch, num_threads=1, device_id=None, **declared)(build)
    content: bytes = definition().serialize()
    return content


def encoded(name: str = "IMAGE") -> Any:
    return fn.external_source(device="cpu", name=name, dtype=types.UINT8, ndim=1)


def decode() -> Any:
    return fn.decoders.image(encoded(), device="cpu", output_type=types.RGB)


def image(height: int, width: int, seed: int = 0) -> Any:
    """A PNG, and its pixels."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)[np.newaxis], pixels


def put(repository: Path, name: str, config: str, **files: bytes | str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for file, content in files.items():
        path = version / file.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def request(model: str, *outputs: str, **arrays: Any) -> InferenceRequest:
    tensors = [Tensor.from_numpy(name, np.asarray(array)) for name, array in arrays.items()]
    return InferenceRequest(model, tensors, outputs=[RequestedOutput(name) for name in outputs])


AUTOSERIALIZED = """
import nvidia.dali as dali
from nvidia.dali import fn, types
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@dali.pipeline_def(batch_size=3, num_threads=2, device_id=None, output_dtype=[types.UINT8], output_ndim=[3])
def pipe():
    image = fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=1)
    return fn.decoders.image(image, device="cpu", output_type=types.RGB)
"""


def thirds() -> Any:
    """Two inputs, two outputs, the second of another type."""
    left = fn.external_source(device="cpu", name="LEFT", dtype=types.INT32, ndim=1)
    right = fn.external_source(device="cpu", name="RIGHT", dtype=types.INT32, ndim=1)
    return left + right, fn.cast(left, dtype=types.FLOAT) / 3


def echo() -> Any:
    return fn.external_source(device="cpu", name="x", dtype=types.FLOAT, ndim=2)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    root = tmp_path_factory.mktemp("dali")
    put(root, "decode", 'backend: "dali"', dali_py=AUTOSERIALIZED)
    delay = "dynamic_batching { max_queue_delay_microseconds: 10000000 }"
    output = 'output { name: "y" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }'
    put(root, "patient", f'backend: "dali" {delay} {output}', model_dali=serialized(decode, batch=3))
    declared = {"output_dtype": [types.INT32, types.FLOAT], "output_ndim": [1, 1]}
    renamed = 'backend: "dali" max_batch_size: 4 output { name: "SUM" } output { name: "THIRD" dims: 2 }'
    put(root, "sums", renamed, model_dali=serialized(thirds, **declared))
    io_text = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] } '
    split = (
        io_text + 'output { name: "y" data_type: TYPE_FP32 dims: 2 } max_batch_size: 8 backend: "dali" '
        'parameters { key: "split_along_outer_axis" value { string_value: "y" } }'
        'parameters { key: "num_threads" value { string_value: "2" } }'
    )
    put(root, "split", split, model_dali=serialized(echo))
    alone = (
        'backend: "dali" max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [ -1, -1, 2 ] }'
        'output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1, 2 ] }'
    )
    put(root, "alone", alone, model_dali=serialized(echo))
    settings = {"dali": {"release_after_unload": "true"}}
    running = InferenceEngine(EngineOptions((root,), load_models=("*",), backend_config=settings))
    running.start()
    yield running
    running.stop(5)


def test_a_pipeline_completes_the_configuration(engine: InferenceEngine) -> None:
    made = engine.model_config("decode")
    assert made.max_batch_size == 3
    assert made.HasField("dynamic_batching")
    assert [(item.name, list(item.dims), item.allow_ragged_batch) for item in made.input] == [("IMAGE", [-1], True)]
    assert list(made.output[0].dims) == [-1, -1, -1]
    sums = engine.model_config("sums")
    assert [(item.name, item.data_type, list(item.dims)) for item in sums.output] == [
        ("SUM", 8, [-1]), ("THIRD", 11, [2]),
    ]  # fmt: skip
    assert sums.max_batch_size == 4


def test_images_of_different_sizes_share_a_batch(engine: InferenceEngine) -> None:
    """Requests of a batch differ in the length of their files and in the size of their images."""
    images = [image(5, 7, 1), image(9, 3, 2), image(16, 16, 3)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(engine.infer, request("patient", IMAGE=file), 20) for file, _ in images]
    for (_, pixels), answer in zip(images, waiting, strict=True):
        (tensor,) = answer.result().outputs
        assert tensor.datatype == "UINT8"
        np.testing.assert_array_equal(tensor.data, pixels[np.newaxis])
    assert engine.statistics("patient")["model_stats"][0]["execution_count"] == 1


def test_an_error_does_not_spoil_the_next_batch(engine: InferenceEngine) -> None:
    good, pixels = image(6, 6)
    for _ in range(2):
        with pytest.raises(WorkbenchError, match="Runtime error: Critical error in pipeline") as caught:
            engine.infer(request("decode", IMAGE=np.zeros((1, 40), np.uint8)), 20)
        assert caught.value.code.name == "UNKNOWN"
        (tensor,) = engine.infer(request("decode", IMAGE=good), 20).outputs
        np.testing.assert_array_equal(tensor.data[0], pixels)


def test_two_inputs_and_all_outputs_or_none(engine: InferenceEngine) -> None:
    left, right = np.array([[3, 4], [5, 6]], np.int32), np.array([[1, 1], [2, 2]], np.int32)
    for outputs in ((), ("SUM", "THIRD"), ("THIRD", "SUM")):
        answer = engine.infer(request("sums", *outputs, LEFT=left, RIGHT=right), 20)
        np.testing.assert_array_equal(answer.as_numpy("SUM"), left + right)
        np.testing.assert_allclose(answer.as_numpy("THIRD"), left / 3, rtol=1e-6)
    with pytest.raises(WorkbenchError, match=r"Number of outputs expected by the requests \(1\) does not match"):
        engine.infer(request("sums", "SUM", LEFT=left, RIGHT=right), 20)


def test_an_outer_axis_becomes_rows(engine: InferenceEngine) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    np.testing.assert_array_equal(engine.infer(request("split", x=x), 20).as_numpy("y"), x.reshape(6, 2))


def test_without_batching_a_request_brings_its_batch(engine: InferenceEngine) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    np.testing.assert_array_equal(engine.infer(request("alone", x=x), 20).as_numpy("y"), x)
    with pytest.raises(WorkbenchError, match="Expected batch_size <= 8, actual: 9"):
        engine.infer(request("alone", x=np.zeros((9, 3, 2), np.float32)), 20)
    np.testing.assert_array_equal(engine.infer(request("alone", x=x), 20).as_numpy("y"), x)


def test_a_request_whose_samples_come_out_in_different_shapes(engine: InferenceEngine) -> None:
    files = [image(5, 5, seed)[0][0] for seed in (1, 2)]
    wide, _ = image(5, 6)
    length = max(wide.shape[1], *(len(file) for file in files))
    both = np.zeros((2, length), np.uint8)
    for row, file in zip(both, (files[0], wide[0]), strict=True):
        row[: len(file)] = file
    with pytest.raises(WorkbenchError, match=r"the samples of one request have the shapes \[5, 5, 3\], \[5, 6, 3\]"):
        engine.infer(request("decode", IMAGE=both), 20)


GOOD = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }'
)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GOOD.replace('"x"', '"z"'), "Configuration file contains config for z but such input is not present"),
        (GOOD.replace("FP32", "FP16", 1), 'Mismatch of data_type config for "x".'),
        (GOOD.replace("-1, 2", "-1", 1), 'Mismatch in number of dimensions for "x"'),
        (GOOD + ' output { name: "w" }', "Model config outputs: 2"),
        (GOOD.partition("output")[0], 'Missing data_type config for "__'),
        (GOOD + ' parameters { key: "num_threads" value { string_value: "x" } }', "failed to convert 'x'"),
    ],
)
def test_a_configuration_that_does_not_fit(
    tmp_path: Path, make_engine: Callable[..., InferenceEngine], config: str, text: str
) -> None:
    def renamed() -> Any:
        return fn.copy(echo())

    put(tmp_path, "model", f'backend: "dali" max_batch_size: 8 {config}', model_dali=serialized(renamed))
    engine = make_engine(tmp_path)
    with pytest.raises(LoadFailed) as caught:
        engine.load("model")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "write it under @autoserialize"),
        ({"model_dali": b"nothing"}, "it is no serialized pipeline"),
        ({"dali_py": "raise ValueError('no luck')"}, "dali.py: ValueError: no luck"),
        ({"dali_py": "def pipe(): ..."}, "Precisely one autoserialize function must exist in the module. Found none."),
        ({"dali_py": AUTOSERIALIZED.replace("device_id=None", "device_id=0")}, "@pipeline_def(device_id=None)"),
    ],
)
def test_pipelines_that_cannot_be_read(
    tmp_path: Path, make_engine: Callable[..., InferenceEngine], files: dict[str, Any], text: str
) -> None:
    put(tmp_path, "model", 'backend: "dali"', **files)
    engine = make_engine(tmp_path)
    with pytest.raises(LoadFailed, match="Failed to load model file") as caught:
        engine.load("model")
    assert text in str(caught.value)


def test_operators_for_a_gpu_are_named_where_there_is_none(
    tmp_path: Path, make_engine: Callable[..., InferenceEngine]
) -> None:
    def mixed() -> Any:
        return fn.decoders.image(encoded(), device="mixed")

    output = 'output { name: "y" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }'
    put(tmp_path, "model", f'backend: "dali" {output}', model_dali=serialized(mixed))
    engine = make_engine(tmp_path)
    with pytest.raises(LoadFailed, match="requires a CUDA-capable GPU") as caught:
        engine.load("model")
    assert "device='cpu'" in str(caught.value)


def test_a_pipeline_made_for_a_gpu_runs_on_a_cpu_where_its_operators_can(
    tmp_path: Path, make_engine: Callable[..., InferenceEngine]
) -> None:
    """As in Triton: the device of the file is not what counts, but that of the instance."""
    from workbench.backends.dali_file import read_dali

    made_for_a_gpu = read_dali(serialized(echo)).on(0)
    put(tmp_path, "model", f'backend: "dali" max_batch_size: 8 {GOOD}', model_dali=made_for_a_gpu)
    engine = make_engine(tmp_path)
    engine.load("model")
    x = np.ones((1, 3, 2), np.float32)
    np.testing.assert_array_equal(engine.infer(request("model", x=x), 20).as_numpy("y"), x)


def test_configurations_from_the_field(
    tmp_path: Path, make_engine: Callable[..., InferenceEngine], shared: Path
) -> None:
    """Of dali_backend's own tests: one that is completed in part, one of certain versions."""

    def halves() -> Any:
        x = fn.external_source(device="cpu", name="DALI_INPUT_0", dtype=types.FLOAT16, ndim=1)
        return x, fn.cast(x, dtype=types.FLOAT)

    def bytes_as_they_are() -> Any:
        return fn.external_source(device="cpu", name="DALI_INPUT_0")

    part = serialized(halves, output_dtype=[types.FLOAT16, types.FLOAT], output_ndim=[1, 1])
    put(
        tmp_path,
        "partial_autoconfig",
        (shared / "cases" / "configs" / "58_dali_partial_auto.pbtxt").read_text(),
        model_dali=part,
    )
    put(tmp_path, "dali_specific", (shared / "cases" / "configs" / "59_dali_specific_versions.pbtxt").read_text())
    for version in ("2", "3"):
        (tmp_path / "dali_specific" / version).mkdir()
        (tmp_path / "dali_specific" / version / "model.dali").write_bytes(serialized(bytes_as_they_are, batch=256))
    engine = make_engine(tmp_path, load_models=("*",))
    x = np.array([[1.5, 2.25]], np.float16)
    answer = engine.infer(request("partial_autoconfig", DALI_INPUT_0=x), 20)
    assert [(each.name, each.datatype) for each in answer.outputs] == [
        ("DALI_OUTPUT_0", "FP16"), ("DALI_OUTPUT_1", "FP32"),
    ]  # fmt: skip
    assert all((each.data == x).all() for each in answer.outputs)
    image_bytes = np.arange(20, dtype=np.uint8).reshape(2, 10)
    answer = engine.infer(request("dali_specific", DALI_INPUT_0=image_bytes), 20)
    np.testing.assert_array_equal(answer.as_numpy("DALI_OUTPUT_0"), image_bytes)


def identity(wire: str, dims: str = "4") -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        def pipe() -> Any:
            return fn.external_source(device="cpu", name="x", dtype=KINDS[wire], ndim=1)

        (directory / "config.pbtxt").write_text(plain_config("dali", wire, dims=dims))
        (directory / "1" / "model.dali").write_bytes(serialized(pipe))

    return write


def case(wire: str) -> ModelCase:
    return ModelCase(
        identity(wire), lambda rng, rows: {"x": draw(rng, wire, (rows, 4))}, lambda given: {"y": given["x"]}
    )


def decoding(directory: Path) -> None:
    (directory / "config.pbtxt").write_text(
        'backend: "dali" max_batch_size: 8 input { name: "IMAGE" data_type: TYPE_UINT8 dims: -1 }'
        'output { name: "y" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }'
    )
    (directory / "1" / "model.dali").write_bytes(serialized(decode))


def test_a_batch_without_a_row_is_refused_in_a_word_and_rows_beside_none_are_answered(tmp_path: Path) -> None:
    host = ConformanceHost()
    rows = np.ones((2, 4), np.float32)
    try:
        with Opened(host, written(case("FP32"), tmp_path, "m")) as opened:
            with pytest.raises(WorkbenchError, match="DALI Backend error: a batch without a row"):
                opened.batch([{"x": rows[:0]}])
            got = opened.batch([{"x": rows}, {"x": rows[:0]}])
            assert [answer["y"].data.shape for answer in got] == [(2, 4), (0, 4)]
    finally:
        host.close()


class TestDali(BackendConformance):
    def kit(self) -> Kit:
        def any_length(rng: np.random.Generator, rows: int) -> dict[str, Any]:
            return {"x": draw(rng, "FP32", (rows, int(rng.integers(1, 30))))}

        def pngs(rng: np.random.Generator, rows: int) -> dict[str, Any]:
            return {"IMAGE": np.repeat(image(4, 6, 1)[0], rows, axis=0)}

        return Kit(
            "dali",
            model=case("FP32"),
            datatypes={wire: case(wire) for wire in KINDS},
            dynamic=ModelCase(identity("FP32", "-1"), any_length, lambda given: {"y": given["x"]}),
            scalar="a request brings samples, so its tensors have a first dimension",
            zero_rows="DALI runs no empty batch",
            failing=ModelCase(
                decoding, pngs, lambda given: {"y": np.stack([image(4, 6, 1)[1]] * len(given["IMAGE"]))},
                spoiled=lambda rng: {"IMAGE": rng.integers(0, 9, (1, 50)).astype(np.uint8)},
            ),
            framework=("nvidia.dali",),
        )  # fmt: skip
