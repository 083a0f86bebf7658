"""The OpenVINO backend on its own: batches as Triton has them, parameters, precision, auto-completion, texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ov = pytest.importorskip("openvino", reason="openvino is not installed")

from conformance_kits import draw  # noqa: E402
from openvino import opset13 as ops  # noqa: E402
from openvino_models import TYPES, config, identity, parameter, product, result, scale, write  # noqa: E402

from workbench.backends.base import InstanceSpec, ModelContext  # noqa: E402
from workbench.backends.conformance import BackendConformance, Kit, ModelCase  # noqa: E402
from workbench.backends.conformance.host import ConformanceHost, Opened  # noqa: E402
from workbench.backends.openvino import OpenVinoBackend  # noqa: E402
from workbench.config import ConfigDocument  # noqa: E402
from workbench.errors import InternalError, InvalidRequest, NotReady, WorkbenchError  # noqa: E402
from workbench.protocol import datatypes  # noqa: E402
from workbench.protocol.tensors import Tensor  # noqa: E402

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
F32 = "INFERENCE_PRECISION_HINT=f32"
PADDED = f"ENABLE_BATCH_PADDING=YES {F32}"


def _draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    """OpenVINO's CPU plugin computes in 32 bits where a type has 64, and has no sign bit to spare for UINT32."""
    if kind in ("INT64", "UINT64", "UINT32"):
        low = -(2**31) if kind == "INT64" else 0
        return rng.integers(low, 2**31, shape).astype(datatypes.BY_WIRE[kind].numpy)
    return draw(rng, kind, shape)


def _case(model: Any, text: str, shape: tuple[int, ...] = (4,), kind: str = "FP32", factor: float = 1.0) -> ModelCase:
    def inputs(rng: np.random.Generator, rows: int) -> Mapping[str, Any]:
        return {"x": _draw(rng, kind, (rows, *(size if size > 0 else int(rng.integers(1, 9)) for size in shape)))}

    def expected(given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": given["x"] if factor == 1 else given["x"] * np.float32(factor)}

    return ModelCase(lambda folder: (write(folder, model, text), None)[1], inputs, expected)


def _kit(parameters: str) -> Kit:
    double = _case(scale(), config(parameters=parameters), factor=2.0)
    spoiled = _case(scale(), config(dims="-1", out="4", parameters=parameters), factor=2.0)
    scalar = config(rows=0, dims="1", parameters=parameters).replace("[ 1 ]", "[ 1 ] reshape { shape: [ ] }")
    return Kit(
        "openvino",
        model=double,
        datatypes={kind: _case(identity(kind), config(kind, parameters=parameters), kind=kind) for kind in TYPES},
        dynamic=_case(scale(dims=(-1, -1)), config(dims="-1", parameters=parameters), (-1,), factor=2.0),
        scalar=ModelCase(
            lambda folder: (write(folder, scale(dims=()), scalar), None)[1],
            lambda rng, rows: {"x": np.asarray(rng.standard_normal(), np.float32)},
            lambda given: {"y": given["x"] * np.float32(2)},
        ),
        zero_rows=double,
        failing=ModelCase(
            spoiled.write, spoiled.inputs, spoiled.expected, spoiled=lambda rng: {"x": np.ones((1, 5), np.float32)}
        ),
        framework=("openvino",),
    )


class TestPadded(BackendConformance):
    """As Triton runs batches: filled up to max_batch_size."""

    def kit(self) -> Kit:
        return _kit(PADDED)


class TestDynamicBatch(BackendConformance):
    """The workbench's own parameter: batches of any size."""

    def kit(self) -> Kit:
        return _kit(f"WORKBENCH_DYNAMIC_BATCH=YES {F32}")


def _open(folder: Path, model: Any, text: str) -> Opened:
    return Opened(ConformanceHost(), write(folder / "m", model, text))


def _ask(rows: int, width: int = 4, value: float = 1.0) -> Mapping[str, Any]:
    return {"x": np.full((rows, width), value, np.float32)}


def test_without_padding_a_batch_is_exactly_full(tmp_path: Path) -> None:
    """Triton's backend compares after each request, so that even 4 + 4 rows are not 8."""
    with _open(tmp_path, scale(), config(parameters=F32)) as opened:
        (answer,) = opened.batch([_ask(8)])
        assert (answer["y"].data == 2).all()
        for rows, got in (([3], 3), ([4, 4], 4)):
            text = (
                f"expected requests with batch size '8', got '{got}'... this error can be avoided by setting "
                "'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
            with pytest.raises(InternalError, match=re.escape(text)):
                opened.batch([_ask(each) for each in rows])
        assert any("exactly 8 rows" in line for line in opened.host.lines)


def test_answers_are_nobodys_memory(tmp_path: Path) -> None:
    """What a request was answered with does not change with the next batch, and what it brought is not written to."""
    with _open(tmp_path, scale(), config(parameters=PADDED)) as opened:
        given = _ask(8)
        given["x"].setflags(write=False)
        (first,) = opened.batch([given])
        opened.batch([_ask(8, value=5.0)])
        assert (first["y"].data == 2).all()
        assert (given["x"] == 1).all()


def test_precision_is_told_and_chosen(tmp_path: Path) -> None:
    """The default is the device's; the parameters decide; the log and the details say what is in effect."""
    given, exact = np.random.default_rng(1).standard_normal((1, 256)).astype(np.float32), {}
    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for index, (asked, wanted) in enumerate(
        ((F32, "f32"), ("HINT_BF16=YES", "bf16"), ("", "bf16" if has_bf16 else "f32"))
    ):
        text = config(rows=1, dims="256", parameters=asked)
        with _open(tmp_path / str(index), product(), text) as opened:
            details = opened.loaded.details  # type: ignore[attr-defined]
            if asked == F32 or has_bf16:
                assert details["precision"] == wanted
            assert details["engine"].startswith("OpenVINO 20")
            told = [line for line in opened.host.lines if "computes in bf16" in line]
            assert bool(told) == (asked == "" and has_bf16)
            (answer,) = opened.batch([{"x": given}])
            exact[asked] = answer["y"].data
    if has_bf16:
        assert 1e-4 < np.abs(exact[F32] - exact["HINT_BF16=YES"]).max() < 0.1
        assert (exact["HINT_BF16=YES"] == exact[""]).all()


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("INFERENCE_NUM_THREADS=two", "'INFERENCE_NUM_THREADS' to be a non-negative number, got two"),
        ("COMPILATION_NUM_THREADS=-1", "'COMPILATION_NUM_THREADS' to be a non-negative number, got -1"),
        ("HINT_BF16=NO", "expected the parameter 'HINT_BF16' to be YES, got no"),
        ("NUM_STREAMS=MANY", "expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got many"),
        (
            "PERFORMANCE_HINT=FAST",
            "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast",
        ),
        ("INFERENCE_PRECISION_HINT=i4", "expected the parameter 'INFERENCE_PRECISION_HINT' to be f32/bf16/f16, got i4"),
        (f"HINT_BF16=YES {F32}", "contradict each other"),
        ("TARGET_DEVICE=nowhere", "openvino error in loading model : "),
        ("CPU_EXTENSION_PATH=/no/such.so", "openvino error in  loading custom CPU extensions : "),
    ],
)  # fmt: skip
def test_parameters_that_are_refused(tmp_path: Path, parameters: str, text: str) -> None:
    with pytest.raises(WorkbenchError, match=re.escape(text)):
        _open(tmp_path, scale(), config(parameters=parameters))


def test_parameters_take_effect(tmp_path: Path) -> None:
    asked = "INFERENCE_NUM_THREADS=2 NUM_STREAMS=2 PERFORMANCE_HINT=throughput TARGET_DEVICE=cpu"
    with _open(tmp_path, scale(), config(rows=1, parameters=asked)) as opened:
        details = opened.loaded.details  # type: ignore[attr-defined]
        wanted = {"device": "CPU", "streams": "2", "threads": "2", "performance hint": "THROUGHPUT"}
        assert {key: details[key] for key in wanted} == wanted
        (answer,) = opened.batch([_ask(1)])
        assert (answer["y"].data == 2).all()
        with pytest.raises(InvalidRequest, match="supports only Kind CPU and AUTO"):
            opened.loaded.create_instance(InstanceSpec("m_1", "KIND_GPU", 0, 1))


def test_inputs_and_outputs_are_reshaped_and_converted(tmp_path: Path) -> None:
    """RESHAPE_IO_LAYERS opens dimensions that the file has fixed; data types follow the configuration."""
    fixed = scale(dims=(1, 4))
    with pytest.raises(InvalidRequest, match=re.escape("(shape [1,4]) but the model configuration specifies 2")):
        _open(tmp_path / "a", fixed, config(rows=0, dims="1, -1"))
    text = config(rows=0, dims="-1, -1", parameters=f"RESHAPE_IO_LAYERS=yes {F32}").replace("TYPE_FP32", "TYPE_FP16", 1)
    with _open(tmp_path / "b", fixed, text) as opened:
        for shape in ((1, 4), (3, 2)):
            (answer,) = opened.batch([{"x": np.ones(shape, np.float16)}])
            assert answer["y"].datatype == "FP32"
            assert (answer["y"].data == np.full(shape, 2)).all()


def _context(folder: Path, text: str, lines: list[str]) -> ModelContext:
    message = ConfigDocument.parse(text.encode()).message
    message.name = "m"
    host: Any = type("Host", (), {"log": lambda self, level, line, **more: lines.append(line)})()
    return ModelContext("m", 1, message, "{}", folder / "m", folder / "m" / "1", host)


def test_auto_completion(tmp_path: Path) -> None:
    """Layouts say whether a model batches; one variable dimension makes all of them -1."""
    lines: list[str] = []
    completed = []
    for index, model in enumerate((scale(layout="NC"), scale(dims=(1, 4)), scale())):
        folder = tmp_path / str(index)
        write(folder / "m", model, "")
        completed.append(OpenVinoBackend().auto_complete(_context(folder, 'backend: "openvino"', lines)))
    batching, fixed, variable = completed
    assert (batching.max_batch_size, batching.HasField("dynamic_batching"), list(batching.input[0].dims)) == (
        4,
        True,
        [-1],
    )
    assert (fixed.max_batch_size, fixed.HasField("dynamic_batching"), list(fixed.output[0].dims)) == (0, False, [1, 4])
    assert (variable.max_batch_size, list(variable.input[0].dims)) == (0, [-1, -1])
    assert (fixed.input[0].name, fixed.input[0].data_type, fixed.output[0].name) == ("x", 11, "y")
    assert [line for line in lines if "autofilled max_batch_size to 4 for model 'm'" in line]
    with pytest.raises(InvalidRequest, match=re.escape("(shape [-1,4]) but the model configuration")) as refused:
        OpenVinoBackend().open(_context(tmp_path / "2", str(variable), lines))
    assert "write dims as the model has them" in refused.value.hint
    text = 'backend: "openvino" max_batch_size: 8'
    kept = OpenVinoBackend().auto_complete(_context(tmp_path / "2", text, lines))
    assert (kept.max_batch_size, kept.HasField("dynamic_batching")) == (8, False)
    assert lines[-1] == "model layout for model m does not support batching while non-zero max_batch_size is specified"


def test_a_complete_configuration_that_batches_is_no_reason_to_warn(tmp_path: Path) -> None:
    """Few files have layouts, and nothing is guessed where inputs and outputs are written."""
    told: list[tuple[str, str]] = []
    folder = write(tmp_path / "m", scale(), config(parameters=PADDED))
    made = _context(tmp_path, (folder / "config.pbtxt").read_text(), [])
    made.host.log = lambda level, line, **more: told.append((level, line))  # type: ignore[method-assign]
    OpenVinoBackend().auto_complete(made)
    OpenVinoBackend().open(made)
    assert {level for level, _ in told} == {"info"}
    assert any("says of no axis that it is the batch" in line for _, line in told)


@pytest.mark.parametrize(
    "case", ["bad_input_dims", "bad_output_dims", "too_few_inputs", "too_many_inputs", "unknown_output"]
)
def test_texts_of_triton(tmp_path: Path, case: str) -> None:
    """The cases of Triton's own tests (../shared/cases/expected_errors.md), on a model of that form."""
    if not CASES.is_dir():
        pytest.skip("no reference material: ../shared is absent")
    table = (CASES / "expected_errors.md").read_text()
    (pattern,) = re.findall(rf"^- `autofill_noplatform/openvino/{case}` — (.*)$", table, re.MULTILINE)
    first, second = (parameter(name, (1, 4), "INT32") for name in ("Func/PartitionedCall/input/_0:0", "input1"))
    outputs = [
        result("Func/PartitionedCall/output/_2:0", ops.add(first, second)),
        result("Func/PartitionedCall/output/_3:0", ops.subtract(first, second)),
    ]
    write(tmp_path / "m", ov.Model(outputs, [first, second], "two"), "")
    written = CASES / "expected_errors" / "autofill_noplatform" / "openvino" / case / "config.pbtxt"
    made = _context(tmp_path, written.read_text(), [])
    made.config.name = case
    made.config = OpenVinoBackend().auto_complete(made)
    with pytest.raises(WorkbenchError, match=re.sub(r"[()]", r"\\\g<0>", pattern)):
        OpenVinoBackend().open(made)


def test_files_that_are_missing_or_broken(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", scale(), config())
    (folder / "1" / "model.xml").write_text("<net")
    with pytest.raises(InternalError, match="openvino error in reading model : "):
        OpenVinoBackend().open(_context(tmp_path, config(), []))
    (folder / "1" / "model.xml").unlink()
    with pytest.raises(NotReady, match=r"unable to find '.*model\.xml'"):
        OpenVinoBackend().auto_complete(_context(tmp_path, 'backend: "openvino"', []))
    with pytest.raises(InternalError, match="unsupported datatype TYPE_FP64 for input 'x' for model 'm'"):
        _open(tmp_path / "b", scale(), config("FP64"))


def test_an_onnx_file(tmp_path: Path) -> None:
    """The same file that ONNX Runtime reads, by default_model_filename."""
    import onnx_models

    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(onnx_models.scale())
    (folder / "config.pbtxt").write_text(config(parameters=PADDED, more='default_model_filename: "model.onnx"'))
    with Opened(ConformanceHost(), folder) as opened:
        answers = opened.batch([_ask(1), _ask(3, value=2.0)])
        tensors: list[Tensor] = [answer["y"] for answer in answers]
        assert [tensor.shape for tensor in tensors] == [(1, 4), (3, 4)]
        assert (tensors[1].data == 4).all()


def test_a_request_without_an_optional_input_gets_no_other_requests_values(tmp_path: Path) -> None:
    a, b = parameter("a", (-1, 4)), parameter("b", (-1, 4))
    total = ov.Model([result("y", ops.add(a, b))], [a, b], "total")
    inputs = "".join(
        f'input {{ name: "{name}" data_type: TYPE_FP32 dims: 4 {more} }}\n'
        for name, more in (("a", ""), ("b", "optional: true"))
    )
    text = (
        f'backend: "openvino"\nmax_batch_size: 8\n{inputs}output {{ name: "y" data_type: TYPE_FP32 dims: 4 }}\n'
        'parameters { key: "ENABLE_BATCH_PADDING" value { string_value: "YES" } }\n'
    )
    rows = np.ones((2, 4), np.float32)
    with _open(tmp_path, total, text) as opened:
        for _ in range(2):
            assert (opened.batch([{"a": rows, "b": 5 * rows}])[0]["y"].data == 6).all()
            with pytest.raises(WorkbenchError, match="input 'b' of model 'm' is missing"):
                opened.batch([{"a": rows}])
