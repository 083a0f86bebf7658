"""The same calls to a real Triton 2.51 and here over gRPC: the answers, statuses and texts are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_models import ECHO, put, request, write_models
from real_triton import real_triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from workbench.server import ServerOptions

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(600)]

KINDS = ("FP32", "INT8", "UINT16", "INT64", "UINT64", "BOOL", "BYTES", "FP64", "INT32", "FP16")
Call = Callable[[Any], Any]
ROWS = "max_batch_size: 8"

DIFFERENT = {
    "infer shape [-1, 2]": "2.51 computes the size of a batch of -1 rows in 32 bits",
    "infer shape [0, 2]": "2.51 takes the data of a batch of no rows for a tensor without a batch dimension",
    "infer shape [1, -2] BYTES": "2.51 counts the strings of a negative shape one by one",
    "ServerMetadata": "another release",
    "CudaSharedMemoryRegister": "the 2.51 binary is built for GPUs, though there is none",
}
"""Rows that differ, and why."""


def build(root: Path) -> Path:
    write_models(root)
    for kind in KINDS:
        put(root, f"rows_{kind}", ECHO, ROWS, kind)
    return root


def rows(kind: str = "FP32", shape: Any = (1, 2), raw: Any = (bytes(8),), name: str = "IN", **fields: Any) -> Any:
    made = pb.ModelInferRequest(**({"model_name": f"rows_{kind}"} | fields))
    made.inputs.add(name=name, datatype=kind, shape=shape)
    made.raw_input_contents.extend(raw)
    return made


def typed(kind: str, field: str, *values: Any, model: str = "", raw: Any = ()) -> Any:
    made = rows(kind, raw=raw, **({"model_name": model} if model else {}))
    getattr(made.inputs[0].contents, field).extend(values)
    return made


def with_parameter(key: str, **value: Any) -> Any:
    made = rows()
    made.parameters[key].SetInParent()
    for name, content in value.items():
        setattr(made.parameters[key], name, content)
    return made


def with_output(name: str = "OUT", twice: bool = False, **parameters: tuple[str, Any]) -> Any:
    made = rows()
    output = made.outputs.add(name=name)
    for key, (kind, value) in parameters.items():
        setattr(output.parameters[key], kind, value)
    if twice:
        made.outputs.add(name=name)
    return made


def with_place(contents: bool = False, **parameters: tuple[str, Any]) -> Any:
    made = rows(raw=())
    for key, (kind, value) in parameters.items():
        setattr(made.inputs[0].parameters[key], kind, value)
    if contents:
        made.inputs[0].contents.SetInParent()
    return made


def inferences() -> Iterator[tuple[str, Any]]:
    yield "plain", rows(id="x")
    for shape in ((1, -2), (-1, 2), (), (1, 2, 1), (1, 3), (0, 2), (9, 1)):
        yield f"shape {list(shape)}", rows(shape=shape)
    for size in (0, 7, 9):
        yield f"{size} bytes", rows(raw=(bytes(size),))
    for kind in ("INT32", "FP64", "FLOAT", "", "BYTES"):
        made = rows()
        made.inputs[0].datatype = kind
        yield f"data type {kind}", made
    yield "no input", pb.ModelInferRequest(model_name="rows_FP32")
    twice = rows()
    twice.inputs.add(name="IN", datatype="FP32", shape=[1, 2])
    yield "an input twice", twice
    yield "another input", rows(name="X")
    yield "more contents than inputs", rows(raw=(bytes(8), b"x"))
    yield "no contents", rows(raw=())
    for kind, field, values in (
        ("FP32", "fp32_contents", (1.5, -2)), ("FP64", "fp64_contents", (1.5, 2)),
        ("BOOL", "bool_contents", (True, False)),
        ("INT8", "int_contents", (1, 300)), ("INT32", "int_contents", (-1, 2**31 - 1)),
        ("UINT16", "uint_contents", (1, 70_000)),
        ("INT64", "int64_contents", (-(2**63), 1)), ("UINT64", "uint64_contents", (2**64 - 1, 1)),
        ("BYTES", "bytes_contents", (b"a", b"")), ("BYTES", "bytes_contents", (b"a",)),
        ("BYTES", "bytes_contents", (b"",) * 3),
        ("FP32", "fp32_contents", (1, 2, 3)), ("FP32", "int_contents", (1, 2)), ("FP16", "fp32_contents", (1, 2)),
        ("INT64", "int_contents", (1, 2)), ("INT8", "uint_contents", (1, 2)), ("FP32", "bytes_contents", (b"a",)),
    ):  # fmt: skip
        yield f"typed {kind} {field} {len(values)}", typed(kind, field, *values)
    yield "typed for another model", typed("INT32", "int_contents", 1, 2, model="rows_FP32")
    yield "typed and raw", typed("FP32", "fp32_contents", 1, 2, raw=(bytes(8),))
    both = typed("FP32", "fp32_contents", 1, 2)
    both.inputs[0].contents.fp64_contents.extend([1, 2])
    yield "typed twice", both
    empty = rows(raw=())
    empty.inputs[0].contents.SetInParent()
    yield "empty contents", empty
    for name, content in (
        ("short", b"\1\0\0"),
        ("long", b"\1\0\0\0a" * 3),
        ("past the end", b"\x09\0\0\0a"),
        ("few", b"\0" * 4),
    ):
        yield f"strings {name}", rows("BYTES", raw=(content,))
    yield "shape [1, -2] BYTES", rows("BYTES", (1, -2), (b"\1\0\0\0a",))
    for key, value in (
        ("sequence_id", {"int64_param": 3}), ("sequence_id", {"string_param": "s"}),
        ("sequence_id", {"bool_param": True}),
        ("sequence_id", {"int64_param": -3}), ("sequence_start", {"int64_param": 1}),
        ("sequence_end", {"string_param": ""}),
        ("priority", {"int64_param": -1}), ("priority", {"uint64_param": 1}), ("priority", {"string_param": "1"}),
        ("timeout", {"int64_param": -5}), ("timeout", {"uint64_param": 5}), ("triton_x", {"bool_param": True}),
        ("triton_enable_empty_final_response", {"bool_param": True}),
        ("triton_enable_empty_final_response", {"int64_param": 1}), ("x", {"uint64_param": 1}),
        ("x", {"double_param": 1}),
        ("x", {"int64_param": 1}), ("x", {}),
    ):  # fmt: skip
        yield f"parameter {key} {value}", with_parameter(key, **value)
    yield "output", with_output()
    yield "output twice", with_output(twice=True)
    yield "another output", with_output("Z")
    for kind, value in (
        ("int64_param", 1),
        ("int64_param", 0),
        ("int64_param", -1),
        ("int64_param", 99),
        ("string_param", "1"),
    ):
        yield f"classes {value!r}", with_output(classification=(kind, value))
    yield "an unknown parameter of an output", with_output(zz=("int64_param", 1))
    region, size = ("string_param", "r"), ("int64_param", 8)
    for name, places in (
        ("region", {"shared_memory_region": region}), ("size", {"shared_memory_byte_size": size}),
        ("offset", {"shared_memory_offset": size}), ("wrong type", {"shared_memory_region": size}),
        ("unknown", {"shared_memory_region": region, "shared_memory_byte_size": size}),
        ("wrong size", {"shared_memory_region": region, "shared_memory_byte_size": region}),
    ):  # fmt: skip
        yield f"input's place {name}", with_place(**places)
        yield f"output's place {name}", with_output(**places)
    yield "a place and contents", with_place(True, shared_memory_region=region, shared_memory_byte_size=size)
    yield (
        "a place and classes",
        with_output(shared_memory_region=region, shared_memory_byte_size=size, classification=("int64_param", 1)),
    )
    for version in ("1", "7", "x", "-1", "0", " 01z", "9" * 20):
        yield f"version {version}", rows(model_version=version)
    yield "unknown model", rows(model_name="zz")
    yield "decoupled", request("repeat", 1)


def loads() -> Iterator[tuple[str, str, Any]]:
    for kind, name in ((pb.RepositoryModelLoadRequest, "Load"), (pb.RepositoryModelUnloadRequest, "Unload")):
        method = f"RepositoryModel{name}"
        yield "unknown", method, kind(model_name="zz")
        yield "repository", method, kind(model_name="zz", repository_name="r")
        for key, value in (
            ("config", {"int64_param": 1}), ("config", {"string_param": "{"}), ("file:x", {"string_param": "1"}),
            ("zz", {"string_param": "1"}), ("unload_dependents", {"int64_param": 1}),
            ("unload_dependents", {"bool_param": True}),
        ):  # fmt: skip
            made = kind(model_name="zz" if name == "Unload" else "rows_BOOL")
            made.parameters[key].SetInParent()
            for field, content in value.items():
                setattr(made.parameters[key], field, content)
            yield f"{key} {value}", method, made


def others() -> Iterator[tuple[str, str, Any]]:
    for method in ("ServerLive", "ServerReady", "ServerMetadata", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus"):
        yield "", method, getattr(pb, f"{method}Request")()
    for method in ("ModelMetadata", "ModelReady", "ModelStatistics"):
        for name, version in (("zz", ""), ("rows_FP32", "7"), ("rows_FP32", "x"), ("repeat", "-2")):
            yield f"{name} {version}", method, getattr(pb, f"{method}Request")(name=name, version=version)
    for name, version in (("zz", ""), ("rows_FP32", "7"), ("rows_FP32", "x")):
        yield f"{name} {version}", "ModelConfig", pb.ModelConfigRequest(name=name, version=version)
    yield "", "ModelMetadata", pb.ModelMetadataRequest(name="rows_FP32", version="1")
    yield "repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="r")
    yield "name", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="x")
    yield "name", "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="x")
    yield "none", "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="x", key="/nope", byte_size=4)
    yield "", "CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=b"x", byte_size=4)
    yield "name", "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name="x")
    yield "name", "CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(name="x")
    for given in (
        {}, {"trace_rate": ["x"]}, {"trace_rate": ["1", "2"]}, {"trace_rate": []}, {"trace_count": ["-2"]},
        {"trace_count": ["x"]}, {"trace_file": ["x"]}, {"trace_level": ["OFF", "TENSORS"]}, {"trace_level": ["Z"]},
        {"trace_level": []}, {"trace_rate": ["99999999999"]}, {"log_frequency": ["x"]},
        {"trace_count": ["99999999999"]},
        {"zz": ["1"]},
    ):  # fmt: skip
        for model in ("", "zz", "rows_FP32"):
            yield f"{model} {given}", "TraceSetting", trace(model, given)
    for model in ("", "rows_FP32"):
        for level in (["TIMESTAMPS"], ["TENSORS"], ["TIMESTAMPS", "TENSORS"], ["OFF"], []):
            yield f"{model} level {level}", "TraceSetting", trace(model, {"trace_level": level, "trace_rate": ["6"]})
            yield f"{model} after", "TraceSetting", trace(model, {})
        yield f"{model} 0", "TraceSetting", trace(model, {"trace_level": ["TIMESTAMPS"], "trace_rate": ["0"]})
        yield f"{model} rate 0", "TraceSetting", trace(model, {"trace_rate": ["0"]})
        yield f"{model} no rate", "TraceSetting", trace(model, {"trace_rate": []})
    for key, kind, value in (
        ("log_file", "string_param", "x"), ("log_info", "string_param", "x"), ("log_warning", "uint32_param", 1),
        ("log_info", "bool_param", False), ("log_info", "bool_param", True), ("log_verbose_level", "bool_param", True),
        ("log_verbose_level", "uint32_param", 0), ("log_format", "string_param", "x"),
        ("log_format", "uint32_param", 1),
        ("log_format", "string_param", "default"), ("zz", "bool_param", True),
    ):  # fmt: skip
        made = pb.LogSettingsRequest()
        setattr(made.settings[key], kind, value)
        yield f"{key} {value!r}", "LogSettings", made


def trace(model: str, given: dict[str, list[str]]) -> Any:
    made = pb.TraceSettingRequest(model_name=model)
    for key, values in given.items():
        made.settings[key].SetInParent()
        made.settings[key].value.extend(values)
    return made


def streams() -> Iterator[tuple[str, list[Any], Any]]:
    strict = (("triton_grpc_error", "true"),)

    def repeat(count: float, id: str, empty: bool = False) -> Any:
        made = request("repeat", count, id=id)
        if empty:
            made.parameters["triton_enable_empty_final_response"].bool_param = True
        return made

    for metadata in ((), strict):
        how = " strict" if metadata else ""
        yield f"two{how}", [rows(id="a"), rows(id="b")], metadata
        yield f"unknown model{how}", [rows(model_name="zz", id="q"), rows(id="r")], metadata
        yield f"wrong data{how}", [rows(raw=(b"",), id="q"), rows(id="r")], metadata
        yield f"decoupled error{how}", [repeat(-1, "d")], metadata
        yield f"wrong data for decoupled{how}", [rows(model_name="repeat", id="z", shape=(3,))], metadata
        yield f"wrong version{how}", [rows(model_version="x", id="v")], metadata
    for count in (0, 2):
        yield f"decoupled {count}", [repeat(count, "d")], ()
        yield f"decoupled {count} with an end", [repeat(count, "d", empty=True)], ()
    yield "classes", [with_output(classification=("int64_param", 1))], ()
    yield "nothing", [], ()


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except grpc.RpcError as error:
        return error.code().name, error.details()


def stream_outcome(call: Any) -> list[Any]:
    found: list[Any] = []
    try:
        found.extend(call)
    except grpc.RpcError as error:
        found.append((error.code().name, error.details()))
    return found


def raw_outcomes(channel: grpc.Channel) -> Iterator[tuple[str, Any]]:
    """Bytes that are no messages, and calls that there are not."""
    service = "/inference.GRPCInferenceService"
    for path, data in (
        (f"{service}/ModelInfer", b"\xff\xff"), (f"{service}/ServerLive", b"\xff\xff"), (f"{service}/Nothing", b""),
        ("/other/Call", b""), (f"{service}/ModelReady", b"\x0a\x02\xff\xfe"), ("/grpc.health.v1.Health/Check", b""),
        ("/grpc.health.v1.Health/Check", b"\x0a\x04nope"),
    ):  # fmt: skip
        call = channel.unary_unary(path)
        yield f"bytes {path} {data!r}", outcome(lambda call=call, data=data: call(data, timeout=20))
    for path, sent in (
        (f"{service}/ModelStreamInfer", [b"\xff\xff"]), (f"{service}/ServerLive", []),
        (f"{service}/ServerLive", [b"", b""]),
        ("/grpc.health.v1.Health/Watch", [b""]),
    ):  # fmt: skip
        yield f"stream {path} {sent!r}", stream_outcome(channel.stream_stream(path)(iter(sent), timeout=20))


def outcomes(address: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, asked in inferences():
            found[f"infer {name}"] = outcome(lambda asked=asked: stub.ModelInfer(asked, timeout=30))
        for name, method, asked in (*others(), *loads()):
            call = getattr(stub, method)
            found[f"{method} {name}".strip()] = outcome(lambda call=call, asked=asked: call(asked, timeout=60))
        for name, requests, metadata in streams():
            call = stub.ModelStreamInfer(iter(requests), timeout=30, metadata=metadata)
            found[f"stream {name}"] = stream_outcome(call)
        found |= dict(raw_outcomes(channel))
    return found


def test_the_same_answers_as_a_real_triton(oracle: Path, tmp_path: Path, start: Callable[..., Any]) -> None:
    root = build(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with real_triton(oracle, root, tmp_path / "triton.log", flags) as addresses:
        stub_ready(addresses.grpc)
        theirs = outcomes(addresses.grpc)
    options = ServerOptions(name="ours", allow_file_override=True, allow_client_shm=True, exit_timeout_s=5.0)
    with start(root, options) as server:
        mine = outcomes(server.grpc_url.removeprefix("grpc://"))
    assert theirs.keys() == mine.keys()
    assert len(theirs) > 190
    different = {name for name in theirs if theirs[name] != mine[name]}
    shown = [
        f"{name}\n  triton {theirs[name]!s:.600}\n  here   {mine[name]!s:.600}" for name in different - set(DIFFERENT)
    ]
    assert not shown, "\n".join(shown)
    assert different == set(DIFFERENT), "a difference that is listed is none any more"


def stub_ready(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)


def test_statistics_have_the_same_counts(oracle: Path, tmp_path: Path, start: Callable[..., Any]) -> None:
    root = build(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=rows_FP32", "--load-model=fails")

    def counts(address: str) -> Any:
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for size in (1, 3, 3):
                stub.ModelInfer(rows(shape=(size, 2), raw=(bytes(8 * size),)), timeout=30)
            with pytest.raises(grpc.RpcError):
                stub.ModelInfer(rows(raw=(b"",)), timeout=30)
            with pytest.raises(grpc.RpcError):
                stub.ModelInfer(request("fails", 1), timeout=30)
            every = stub.ModelStatistics(pb.ModelStatisticsRequest(version="3"), timeout=30).model_stats
            # of all models: the version does not count
            found: list[Any] = [sorted(row.name for row in every if row.name in ("fails", "rows_FP32"))]
            for name in ("rows_FP32", "fails"):
                (row,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name=name), timeout=30).model_stats
                stats = row.inference_stats
                batches = [(batch.batch_size, batch.compute_infer.count) for batch in row.batch_stats]
                kinds = ("success", "fail", "queue", "compute_infer", "cache_hit")
                found.append(
                    (row.inference_count, row.execution_count, [getattr(stats, kind).count for kind in kinds], batches)
                )
            return found

    with real_triton(oracle, root, tmp_path / "triton.log", flags) as addresses:
        stub_ready(addresses.grpc)
        theirs = counts(addresses.grpc)
    with start(root, ServerOptions(name="ours", exit_timeout_s=5.0)) as server:
        assert counts(server.grpc_url.removeprefix("grpc://")) == theirs


def test_large_and_odd_arrays(oracle: Path, tmp_path: Path, start: Callable[..., Any]) -> None:
    root = build(tmp_path / "models")
    array = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    with (
        start(root, ServerOptions(name="large", exit_timeout_s=5.0)) as server,
        grpc.insecure_channel(
            server.grpc_url.removeprefix("grpc://"),
            options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        ) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request("echo", *array.tolist()), timeout=60)
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), array)
