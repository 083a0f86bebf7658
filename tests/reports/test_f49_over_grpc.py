"""Public reports on numbers, types, shapes and decoupled models, over gRPC, raw and typed (F16, F37 to F58)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from wire_models import MANY, TYPES, add_echo, serving

ODD = [math.nan, math.inf, -math.inf, 1.0, 2.0, 3.0]
NUMPY = {
    "FP32": np.float32, "FP64": np.float64, "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16,
    "UINT32": np.uint32, "UINT64": np.uint64,
}  # fmt: skip


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Calls to a server of identities, named by their types, and of ``many``, which answers so often."""
    root = tmp_path_factory.mktemp("grpc_wire")
    for kind in TYPES:
        add_echo(root, kind.lower(), kind)
    add_echo(root, "many", "FP32", MANY, "model_transaction_policy { decoupled: true }\n")
    with serving(root) as server, grpc.insecure_channel(server.grpc_url.partition("://")[2]) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request(datatype: str, shape: list[int], raw: bytes | None = None, model: str = "", **contents: Any) -> Any:
    made = pb.ModelInferRequest(model_name=model or {"BYTES": "string"}.get(datatype, datatype.lower()))
    item = made.inputs.add(name="IN0", datatype=datatype, shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    for field, values in contents.items():
        getattr(item.contents, field).extend(values)
    return made


def refusal(stub: Any, asked: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(asked, timeout=20)
    return caught.value.code(), caught.value.details()


def raw_of(answer: Any) -> bytes:
    (raw,) = answer.raw_output_contents
    return bytes(raw)


@pytest.mark.parametrize(("datatype", "field"), [("FP32", "fp32_contents"), ("FP64", "fp64_contents")])
def test_f49_server_3711_not_a_number_over_grpc(stub: Any, datatype: str, field: str) -> None:
    array = np.array(ODD, NUMPY[datatype])
    for asked in (request(datatype, [1, 6], array.tobytes()), request(datatype, [1, 6], **{field: ODD})):
        answer = np.frombuffer(raw_of(stub.ModelInfer(asked)), NUMPY[datatype])
        np.testing.assert_array_equal(answer, array)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_f50_server_5960_halves_go_raw_bit_by_bit(stub: Any, datatype: str) -> None:
    given = np.arange(2**16, dtype=np.uint16).tobytes()  # each half that there is, each NaN among them
    assert raw_of(stub.ModelInfer(request(datatype, [1, 2**16], given))) == given
    code, text = refusal(stub, request(datatype, [1, 2], fp32_contents=[1.0, 2.0]))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("unexpected explicit tensor data for input tensor 'IN0'")
    assert text.endswith(f"expected datatype '{datatype}'")


@pytest.mark.parametrize(
    ("datatype", "field"),
    [("INT8", "int_contents"), ("INT16", "int_contents"), ("INT32", "int_contents"), ("INT64", "int64_contents"),
     ("UINT8", "uint_contents"), ("UINT16", "uint_contents"), ("UINT32", "uint_contents"),
     ("UINT64", "uint64_contents")],
)  # fmt: skip
def test_f51_server_8821_the_ends_of_each_integer_type_over_grpc(stub: Any, datatype: str, field: str) -> None:
    info = np.iinfo(NUMPY[datatype])
    values = [info.min, info.max, 2**53 + 1 if info.bits == 64 else 1]
    array = np.array(values, NUMPY[datatype])
    for asked in (request(datatype, [1, 3], array.tobytes()), request(datatype, [1, 3], **{field: values})):
        assert np.frombuffer(raw_of(stub.ModelInfer(asked)), NUMPY[datatype]).tolist() == values, "digit by digit"


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_f52_server_5185_compressed_requests_over_grpc(stub: Any, kind: grpc.Compression) -> None:
    array = np.arange(5000, dtype=np.int64)
    assert raw_of(stub.ModelInfer(request("INT64", [1, 5000], array.tobytes()), compression=kind)) == array.tobytes()


@pytest.mark.parametrize(
    "shape",
    [[-1, 4], [1, -4], [-1, -4], [2**62, 2**62], [2**31, 2**31], [2**63 - 1, 1], [2**62, 4], [0, 2**62], [9, 4]],
)
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("typed", [False, True])
def test_f56_server_3563_shapes_that_cannot_be_over_grpc(
    stub: Any, shape: list[int], datatype: str, typed: bool
) -> None:
    if typed:
        asked = request(datatype, shape, **({"fp32_contents": [1.0] * 4} if datatype == "FP32" else
                                            {"bytes_contents": [b"a"] * 4}))  # fmt: skip
    else:
        asked = request(datatype, shape, bytes(16))
    code, text = refusal(stub, asked)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "IN0" in text or "shape" in text or "batch" in text
    assert raw_of(stub.ModelInfer(request("FP32", [1, 4], bytes(16)))) == bytes(16), "and the server is up"


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_f58_server_6791_data_and_shape_differ_over_grpc(stub: Any, count: int) -> None:
    for asked in (request("FP32", [1, 4], bytes(4 * count)), request("FP32", [1, 4], fp32_contents=[1.0] * count)):
        code, text = refusal(stub, asked)
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
        assert "IN0" in text


def test_f16_server_4903_a_missing_batch_axis_over_grpc(stub: Any) -> None:
    code, text = refusal(stub, request("BYTES", [2], bytes_contents=[b"a", b"b"]))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "unexpected shape for input 'IN0' for model 'string'. Expected [-1,-1], got [2]. NOTE: Setting a" in text


def test_f37_server_2168_a_decoupled_model_over_grpc(stub: Any) -> None:
    asked = request("FP32", [1, 1], np.float32(3).tobytes(), model="many")
    code, text = refusal(stub, asked)
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert text.startswith("ModelInfer RPC doesn't support models with decoupled transaction policy")
    answers = [
        np.frombuffer(raw_of(each.infer_response), np.float32)[0] for each in stub.ModelStreamInfer(iter([asked]))
    ]
    assert answers == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("wanted", [False, True])
def test_f38_server_5936_the_end_of_a_decoupled_request_over_grpc(stub: Any, count: int, wanted: bool) -> None:
    asked = request("FP32", [1, 1], np.float32(count).tobytes(), model="many")
    if wanted:
        asked.parameters["triton_enable_empty_final_response"].bool_param = True
    answers = [each.infer_response for each in stub.ModelStreamInfer(iter([asked]))]
    finals = [each.parameters["triton_final_response"].bool_param for each in answers]
    assert finals == [False] * count + [True] * wanted
    assert [len(each.outputs) for each in answers] == [1] * count + [0] * wanted
