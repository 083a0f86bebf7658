"""The ONNX Runtime backend on its own: data types, batches, parameters, and what it says of files that do not fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_models
import pytest
from onnx import helper
from onnx_models import TYPES, graph, identity, scale

from workbench.backends.base import Execution, InstanceSpec, ModelContext
from workbench.backends.onnxruntime import OnnxRuntimeBackend
from workbench.backends.onnxruntime_config import session_options
from workbench.backends.registry import create_backend
from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument
from workbench.errors import BackendError, InvalidRequest, Unsupported, WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor


def context(root: Path, config: str, model: bytes | None, *, name: str = "m") -> ModelContext:
    directory = root / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    if model is not None:
        (directory / "1" / "model.onnx").write_bytes(model)
    message = ConfigDocument.parse(config.encode()).message
    message.name = name
    host: Any = SimpleNamespace(clock=monotonic_ns)
    return ModelContext(name, 1, message, "{}", directory, directory / "1", host)


def instance(made: ModelContext) -> Any:
    return OnnxRuntimeBackend().open(made).create_instance(InstanceSpec("m_0_0", "KIND_CPU", 0, 0))


def run(running: Any, requests: list[InferenceRequest]) -> list[InferenceResponse]:
    answers: dict[int, InferenceResponse] = {}
    rows = [max(1, each.inputs[0].shape[0]) if each.inputs[0].shape else 1 for each in requests]
    execution = Execution(requests, answers.__setitem__, lambda error: None, lambda index: False, rows=rows)
    running.execute(execution)
    assert 0 < execution.input_end <= execution.output_start
    return [answers[index] for index in range(len(requests))]


def ask(array: Any) -> InferenceRequest:
    return InferenceRequest("m", [Tensor.from_numpy("x", np.asarray(array))])


IO = "max_batch_size: 8 input {{ name: 'x' data_type: {0} dims: 4 }} output {{ name: 'y' data_type: {0} dims: 4 }}"


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_data_type_alone_and_batched(tmp_path: Path, kind: str) -> None:
    row = datatypes.BY_WIRE[kind]
    running = instance(context(tmp_path, IO.format(row.config), identity(kind)))

    def values(rows: int, start: int) -> Any:
        if kind == "BYTES":
            words = np.array([[f"é{start + r}-{c}".encode() for c in range(4)] for r in range(rows)], dtype=object)
            words[0, 0] = b""
            return words
        return (np.arange(rows * 4).reshape(rows, 4) + start).astype(row.numpy)

    arrays = [values(1, 0), values(2, 5), values(1, 9)]
    for batch in ([arrays[1]], arrays):
        for response, array in zip(run(running, [ask(each) for each in batch]), batch, strict=True):
            (out,) = response.outputs
            assert (out.name, out.datatype, out.shape) == ("y", kind, array.shape)
            assert out.data.dtype == row.numpy
            assert (out.data == array).all()


def test_one_request_is_not_copied(tmp_path: Path) -> None:
    """A single request's outputs are the framework's own array; those of a batch are views of one."""
    running = instance(context(tmp_path, IO.format("TYPE_FP32"), scale()))
    x = np.ones((1, 4), np.float32)
    first, second = (response.outputs[0].data for response in run(running, [ask(x), ask(x)]))
    assert first.base is second.base is not None
    bf16 = np.ones((1, 4), ml_dtypes.bfloat16)
    assert bf16.dtype == datatypes.BY_WIRE["BF16"].numpy


def test_scalars(tmp_path: Path) -> None:
    made = graph([helper.make_node("Neg", ["x"], ["y"])], [("x", "FP32", ())], [("y", "FP32", ())])
    config = "input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }"
    running = instance(context(tmp_path, config, made))
    (response,) = run(running, [ask(np.array([3], np.float32))])
    assert response.outputs[0].shape == (1,)
    assert response.outputs[0].data[0] == -3


def test_a_scalar_of_a_model_that_batches_is_one_for_the_batch(tmp_path: Path) -> None:
    made = graph(
        [helper.make_node("Mul", ["x", "s"], ["y"])],
        [("x", "FP32", ("b", 4)), ("s", "FP32", ())],
        [("y", "FP32", ("b", 4))],
    )
    config = IO.format("TYPE_FP32") + " input { name: 's' data_type: TYPE_FP32 dims: 1 }"
    running = instance(context(tmp_path, config, made))

    def asked(*factors: float) -> InferenceRequest:
        rows = np.ones((len(factors), 4), np.float32)
        scalar = Tensor.from_numpy("s", np.array(factors, np.float32)[:, None])
        return InferenceRequest("m", [Tensor.from_numpy("x", rows), scalar])

    for batch in ([asked(3)], [asked(3, 3)], [asked(3), asked(3, 3)]):
        assert all((answer.outputs[0].data == 3).all() for answer in run(running, batch))
    for batch, text in (([asked(3), asked(4)], "differs from row to row"), ([asked()], "has no row")):
        with pytest.raises(BackendError, match=f"input 's' is one value for a whole batch, and in this one it {text}"):
            run(running, batch)


WORDS = IO.format("TYPE_STRING").replace("'y' data_type: TYPE_STRING", "'y' data_type: TYPE_INT64")


def words(*items: bytes) -> InferenceRequest:
    row = np.empty((1, 4), dtype=object)
    row[0] = items
    return ask(row)


def encoder(shape: tuple[Any, Any] = ("b", 4)) -> bytes:
    """Words to numbers: "a" is 1, "é" 2, "" 3, another one -1."""
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "é", ""], values_int64s=[1, 2, 3]
    )
    return graph([node], [("x", "BYTES", shape)], [("y", "INT64", shape)])


def test_strings_that_are_no_text_are_taken_as_bytes(tmp_path: Path) -> None:
    """As real Triton does, alone and beside others."""
    running = instance(context(tmp_path, WORDS, encoder()))
    odd, text = words(b"\xff\xfe", b"a", b"", "é".encode()), words("é".encode(), b"a", b"", b"long words")
    for batch, expected in (
        ([odd], [[-1, 1, 3, 2]]), ([odd, text], [[-1, 1, 3, 2], [2, 1, 3, -1]]),
        ([text, odd], [[2, 1, 3, -1], [-1, 1, 3, 2]]),
    ):  # fmt: skip
        answers = run(running, batch)
        assert [answer.error for answer in answers] == [None] * len(batch)
        assert [answer.outputs[0].data.tolist()[0] for answer in answers] == expected


def test_a_request_that_cannot_be_run_fails_alone(tmp_path: Path) -> None:
    """Bytes that are no text and hold a zero go in by no way; nor does what is no text come out."""
    running = instance(context(tmp_path / "in", WORDS, encoder()))
    both, zero, odd = words(b"\xff\0", b"a", b"", b""), words(b"a\0", b"a", b"", b""), words(b"\xff", b"a", b"", b"")
    with pytest.raises(InvalidRequest, match="input 'x' holds a string that is not UTF-8, and a zero byte"):
        run(running, [both])
    alone = [run(running, [each])[0].outputs[0].data.tolist() for each in (zero, odd)]
    assert alone == [[[-1, 1, 3, 3]]] * 2
    answers = run(running, [zero, both, odd])
    assert [answer.error is None for answer in answers] == [True, False, True]
    assert [answers[0].outputs[0].data.tolist(), answers[2].outputs[0].data.tolist()] == alone
    same = instance(context(tmp_path / "out", IO.format("TYPE_STRING"), identity("BYTES")))
    with pytest.raises(InvalidRequest, match="an output holds a string that is not UTF-8"):
        run(same, [odd])
    answers = run(same, [zero, odd, words(b"b", b"", b"", b"")])
    assert [answer.error is None for answer in answers] == [True, False, True]
    assert answers[0].outputs[0].data.tolist() == [[b"a\0", b"a", b"", b""]]
    assert answers[2].outputs[0].data.tolist() == [[b"b", b"", b"", b""]]


def test_a_long_string_beside_many_short_ones_takes_no_memory_for_each(tmp_path: Path) -> None:
    """Bytes of one length: of a megabyte each, for a request of one in all."""
    running = instance(context(tmp_path, WORDS.replace("dims: 4", "dims: -1"), encoder(("b", "n"))))
    row = np.full((1, 128), b"a", dtype=object)
    row[0, 0] = b"\xff" * (1 << 20)
    with pytest.raises(InvalidRequest, match="one length, 1048576, the 128 of them take 128 MiB"):
        run(running, [ask(row)])
    (answer,) = run(running, [ask(row[:, :2])])
    assert answer.outputs[0].data.tolist() == [[-1, 1]]


def test_errors_of_a_run_are_the_backends(tmp_path: Path) -> None:
    weights = helper.make_tensor("w", TYPES["FP32"], [4, 4], np.eye(4, dtype=np.float32).tobytes(), raw=True)
    made = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", "FP32", ("b", "n"))],
        [("y", "FP32", ("b", 4))],
        [weights],
    )
    config = IO.format("TYPE_FP32").replace("dims: 4", "dims: -1", 1)
    running = instance(context(tmp_path, config, made))
    with pytest.raises(BackendError, match=r"^onnx runtime error \d+: .*MatMul"):
        run(running, [ask(np.ones((1, 5), np.float32))])
    assert run(running, [ask(np.ones((1, 4), np.float32))])[0].error is None


def test_a_model_that_drops_the_batch_dimension(tmp_path: Path) -> None:
    shape = helper.make_tensor("s", TYPES["INT64"], [2], [-1, 8])
    made = graph(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [("x", "FP32", ("b", 4))], [("y", "FP32", ("c", 8))], [shape]
    )
    config = IO.replace("'y' data_type: {0} dims: 4", "'y' data_type: {0} dims: 8").format("TYPE_FP32")
    running = instance(context(tmp_path, config, made))
    text = "failed to split the output tensor 'y' in responses: expected batch size of atleast 2 in model output, got 1"
    with pytest.raises(Unsupported, match=text):
        run(running, [ask(np.ones((1, 4), np.float32))] * 2)
    with pytest.raises(Unsupported, match="atleast 2 in model output, got 1"):
        run(running, [ask(np.ones((2, 4), np.float32))])


def test_description(tmp_path: Path) -> None:
    described = OnnxRuntimeBackend().describe(context(tmp_path, "", identity("INT64", ("b", "s", 3))))
    assert described.batching
    assert [(each.name, each.datatype, each.dims) for each in described.inputs] == [("x", "INT64", (-1, -1, 3))]
    fixed = OnnxRuntimeBackend().describe(context(tmp_path, "", identity("FP32", (2, 3))))
    assert not fixed.batching


def test_files_that_are_missing_or_broken(tmp_path: Path) -> None:
    made = context(tmp_path, IO.format("TYPE_FP32"), None)
    with pytest.raises(WorkbenchError) as caught:
        instance(made)
    assert caught.value.status_text == (
        f"Unavailable: unable to find '{tmp_path}/m/1/model.onnx' for model instance 'm'"
    )
    with pytest.raises(
        WorkbenchError, match=r"^onnx runtime error 7: Load model from .* failed:Protobuf parsing failed"
    ):
        instance(context(tmp_path, IO.format("TYPE_FP32"), b"nonsense"))


def test_a_file_by_another_name_or_in_a_directory(tmp_path: Path) -> None:
    made = context(tmp_path, IO.format("TYPE_FP32") + " default_model_filename: 'other.onnx'", None)
    (tmp_path / "m" / "1" / "other.onnx").mkdir()
    (tmp_path / "m" / "1" / "other.onnx" / "model.onnx").write_bytes(scale())
    assert run(instance(made), [ask(np.ones((1, 4), np.float32))])[0].error is None


@pytest.mark.parametrize("folder", ["", "model.onnx"])
def test_weights_beside_the_file_and_in_its_directory(tmp_path: Path, folder: str) -> None:
    weights = helper.make_tensor("w", TYPES["FP32"], [4, 4], (2 * np.eye(4, dtype=np.float32)).tobytes(), raw=True)
    made = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", "FP32", ("b", 4))], [("y", "FP32", ("b", 4))], [weights]
    )
    prepared = context(tmp_path, IO.format("TYPE_FP32"), None)
    place = prepared.version_dir / folder
    place.mkdir(exist_ok=True)
    options: Any = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save_model(onnx.load_model_from_string(made), str(place / "model.onnx"), **options)
    assert (place / "weights.bin").stat().st_size >= 64
    (answer,) = run(instance(prepared), [ask(np.ones((1, 4), np.float32))])
    assert (answer.outputs[0].data == 2).all()


def test_threads_for_all_sessions_are_not_left_out_silently(tmp_path: Path) -> None:
    told: list[str] = []
    prepared = context(tmp_path, IO.format("TYPE_FP32"), scale())
    prepared.backend_config = {"enable-global-threadpool": "1"}
    host: Any = SimpleNamespace(clock=monotonic_ns, log=lambda level, text, **about: told.append(text))
    prepared.host = host
    instance(prepared)
    assert any("enable-global-threadpool is not offered here" in text for text in told)


def test_bf16_beside_strings_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    """Not at each request: the binding makes no values of strings for the call that BF16 takes."""
    made = graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["t"], ["u"])],
        [("x", "BF16", ("b", 4)), ("t", "BYTES", ("b", 4))],
        [("y", "BF16", ("b", 4)), ("u", "BYTES", ("b", 4))],
    )
    config = IO.format("TYPE_BF16") + "".join(
        f" {kind} {{ name: '{name}' data_type: TYPE_STRING dims: 4 }}"
        for kind, name in (("input", "t"), ("output", "u"))
    )
    with pytest.raises(Unsupported, match="has tensors of BF16 and takes strings") as raised:
        instance(context(tmp_path, config, made))
    assert "Cast" in raised.value.hint


TWO = graph(
    [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ],
    [("INPUT0", "FP32", ("b", 16)), ("INPUT1", "FP32", ("b", 16))],
    [("OUTPUT0", "FP32", ("b", 16)), ("OUTPUT1", "FP32", ("b", 16))],
)


def io(*, inputs: dict[str, str] | None = None, outputs: dict[str, str] | None = None) -> str:
    parts = ["max_batch_size: 8"]
    for kind, given in (("input", inputs), ("output", outputs)):
        for name, rest in (given or {f"{kind.upper()}{i}": "data_type: TYPE_FP32 dims: 16" for i in range(2)}).items():
            parts.append(f"{kind} {{ name: '{name}' {rest} }}")
    return "\n".join(parts)


F16 = "data_type: TYPE_FP32 dims: 16"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            io(inputs={"INPUT0": F16, "INPUT1": F16, "INPUT2": F16}),
            "unable to load model 'm', configuration expects 3 inputs, model provides 2",
        ),
        (io(inputs={"INPUT0": F16}), "unable to load model 'm', configuration expects 1 inputs, model provides 2"),
        (
            io(inputs={"INPUT0": F16, "UNKNOWN": F16}),
            "unexpected inference input 'UNKNOWN', allowed inputs are: INPUT0, INPUT1",
        ),
        (
            io(outputs={"UNKNOWN": F16}),
            "unexpected inference output 'UNKNOWN', allowed outputs are: OUTPUT0, OUTPUT1",
        ),
        (
            io(inputs={"INPUT0": F16, "INPUT1": "data_type: TYPE_INT32 dims: 16"}),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'INPUT1', model provides "
            "TYPE_FP32",
        ),
        (
            io(inputs={"INPUT0": "data_type: TYPE_FP32 dims: [ 16, 1 ]", "INPUT1": F16}),
            "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,16,1])",
        ),
        (
            io(outputs={"OUTPUT1": "data_type: TYPE_FP32 dims: 1"}),
            "model 'm', tensor 'OUTPUT1': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,1])",
        ),
        (
            io().replace("max_batch_size: 8", "max_batch_size: 0"),
            "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 1 dimensions (shape [16])",
        ),
        (
            io(inputs={"INPUT0": F16 + " optional: true", "INPUT1": F16}),
            "unable to load model 'm', optional input 'INPUT0' is not supported for models that support batching",
        ),
    ],
)
def test_configurations_that_do_not_fit(tmp_path: Path, config: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        instance(context(tmp_path, config, TWO))
    assert caught.value.message == text


@pytest.mark.parametrize("dims", [(1, 256), (1, -1)])
def test_a_shape_that_the_file_does_not_have(tmp_path: Path, dims: tuple[int, int]) -> None:
    config = IO.format("TYPE_FP32").replace("max_batch_size: 8", "max_batch_size: 0")
    config = config.replace("dims: 4 ", f"dims: {list(dims)} ", 1)
    with pytest.raises(InvalidRequest) as caught:
        instance(context(tmp_path, config, scale(dims=(1, 4))))
    assert caught.value.message == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [1,4]) but the model configuration specifies "
        f"2 dimensions (shape [{dims[0]},{dims[1]}])"
    )


def test_a_fixed_first_dimension_cannot_batch(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="for the model to support batching the shape should have at least 1 dim"):
        instance(context(tmp_path, IO.format("TYPE_FP32"), scale(dims=(1, 4))))


def parameters(**values: str) -> Any:
    text = " ".join(f"parameters {{ key: '{k}' value {{ string_value: '{v}' }} }}" for k, v in values.items())
    return ConfigDocument.parse(text.replace("__", ".").encode()).message


def test_session_parameters() -> None:
    import onnxruntime as ort

    plain = session_options(parameters())
    assert (plain.intra_op_num_threads, plain.inter_op_num_threads) == (0, 0), "Triton's default: the runtime decides"
    assert plain.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert plain.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    options = session_options(
        parameters(
            intra_op_thread_count="2", inter_op_thread_count="3", execution_mode="1", enable_mem_arena="false",
            enable_mem_pattern="0", session__intra_op__allow_spinning="0",
        )
    )  # fmt: skip
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    config = ConfigDocument.parse(b"optimization { graph { level: 2 } }").message
    assert session_options(config).graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"execution_mode": "2"}, "Expected values for  execution_mode are 0 or 1 but got 2 ."),
        ({"intra_op_thread_count": "many"}, "failed to convert 'many' to integral number"),
        ({"enable_mem_arena": "perhaps"}, "failed to convert 'perhaps' to boolean value"),
    ],
)
def test_parameters_that_cannot_be_read(values: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text.replace("  ", " +").rstrip(".")):
        session_options(parameters(**values))


def test_backends_by_name() -> None:
    assert create_backend("onnxruntime").name == "onnxruntime"
    with pytest.raises(InvalidRequest, match="unable to find backend library for backend 'nope'"):
        create_backend("nope")
    with pytest.raises(InvalidRequest, match=r"unable to find backend library for backend '\.\./evil'"):
        create_backend("../evil")
    assert onnx_models.CONFIG
