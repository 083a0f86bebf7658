"""The gRPC port frame by frame: odd calls, deadlines, floods, pages of browsers, other protocols, memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ngh2
import numpy as np
import pytest
from grpc_models import LARGE_ANSWERS, SERVICE, Wire, framed, put, request, values_of, write_models
from tritonclient.grpc import service_pb2 as pb

from workbench.server import RunningServer, ServerOptions
from workbench.server.access import GRPC_PREFIX, parse_restrictions
from workbench.server.grpc_options import GrpcLimits, GrpcOptions, KeepAlive
from workbench.server.grpc_protos import protos

LIVE = pb.ServerLiveResponse(live=True).SerializeToString()
OPTIONS = ServerOptions(name="wire", exit_timeout_s=5.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    with start(write_models(tmp_path_factory.mktemp("wire")), OPTIONS) as server:
        yield server


@pytest.fixture
def wire(served: RunningServer) -> Iterator[Wire]:
    with Wire(served.grpc_url) as made:
        yield made


def still_serves(server: RunningServer) -> bool:
    with Wire(server.grpc_url) as wire:
        return wire.answer(wire.call("ServerLive", b"")) == (0, "", framed(LIVE))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def raw(server: RunningServer) -> socket.socket:
    """A connection that has said hello."""
    host, _, port = server.grpc_url.partition("://")[2].rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=20)
    made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    return made


# -- calls -----------------------------------------------------------------------------------------------------------


def test_several_calls_share_a_connection(wire: Wire) -> None:
    streams = [
        wire.call("ModelInfer", request("echo", number, id=str(number)).SerializeToString()) for number in range(20)
    ]
    found = {}
    body: dict[int, bytes] = {}
    while len(found) < len(streams):
        for event in wire.read():
            if isinstance(event, ngh2.DataReceived):
                body[event.stream_id] = body.get(event.stream_id, b"") + event.data
            elif isinstance(event, ngh2.StreamClosed):
                found[event.stream_id] = pb.ModelInferResponse.FromString(body[event.stream_id][5:])
    assert [values_of(found[stream]) for stream in streams] == [[number] for number in range(20)]


def test_a_message_in_single_bytes(wire: Wire) -> None:
    stream = wire.call("ModelInfer", end=False)
    for byte in framed(request("echo", 1, 2, 3).SerializeToString()):
        wire.h2.send_data(stream, bytes((byte,)))
        wire.flush()
    wire.h2.end_stream(stream)
    wire.flush()
    status, _, body = wire.answer(stream)
    assert status == 0
    assert values_of(pb.ModelInferResponse.FromString(body[5:])) == [1, 2, 3]


def test_what_is_no_call(wire: Wire) -> None:
    assert wire.answer(wire.call("Nothing", b""))[:2] == (12, "")
    assert wire.answer(wire.call("/other.Service/Call", b""))[0] == 12
    assert wire.http_status(wire.call("ServerLive", b"", headers={"content-type": "application/json"})) == b"415"
    assert wire.http_status(wire.call("ServerLive", b"", headers={"content-type": "application/grpc-web"})) == b"415"
    assert wire.http_status(wire.call("ServerLive", b"", headers={":method": "PUT"})) == b"405"
    assert wire.answer(wire.call("ServerLive", b"", headers={"content-type": "application/grpc+proto"}))[0] == 0


def test_messages_that_cannot_be_read(wire: Wire) -> None:
    assert wire.answer(wire.call("ServerLive", b"\xff\xff"))[:2] == (13, "Unable to parse request")
    assert wire.answer(wire.call("ModelInfer", b"\xff\xff"))[:2] == (13, "Unable to parse request")
    assert wire.answer(wire.call("ServerLive"))[:2] == (13, "Unable to parse request")
    stream = wire.call("ServerLive", end=False)
    wire.h2.send_data(stream, b"\0\0\0\0\x09abc", end_stream=True)
    wire.flush()
    assert wire.answer(stream)[0] == 13
    stream = wire.call("ServerLive", end=False)
    wire.h2.send_data(stream, b"\0\xff\xff\xff\xff", end_stream=True)
    wire.flush()
    assert wire.answer(stream)[:2] == (8, "Received message larger than max (4294967295 vs. 2147483647)")
    stream = wire.call("ServerLive", end=False)
    wire.h2.send_data(stream, b"\7\0\0\0\0", end_stream=True)
    wire.flush()
    assert wire.answer(stream)[0] == 13


def test_compressed_messages(wire: Wire) -> None:
    message = request("echo", 5).SerializeToString()
    for kind, wbits in (("gzip", 31), ("deflate", 15)):
        packer = zlib.compressobj(wbits=wbits)
        data = packer.compress(message) + packer.flush()
        for content, wanted in ((data, 0), (data[:-4], 13), (b"nonsense", 13)):
            stream = wire.call("ModelInfer", end=False, headers={"grpc-encoding": kind})
            wire.h2.send_data(stream, b"\1" + len(content).to_bytes(4, "big") + content, end_stream=True)
            wire.flush()
            assert wire.answer(stream)[0] == wanted
    assert wire.answer(wire.call("ServerLive", b"", headers={"grpc-encoding": "br"}))[0] == 12


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_the_server_keeps_the_deadline_itself(wire: Wire, method: str) -> None:
    for _ in range(2):  # heads that come again are known
        stream = wire.call(method, request("slow", 1).SerializeToString(), headers={"grpc-timeout": "50m"})
        assert wire.answer(stream)[:2] == (4, "Deadline Exceeded")
    assert wire.answer(wire.call("ServerLive", b"", headers={"grpc-timeout": "x"}))[0] == 13
    assert wire.answer(wire.call("ServerLive", b"", headers={"grpc-timeout": "10S"}))[0] == 0


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_bytes_of_messages_are_counted_with_their_framing(served: RunningServer, wire: Wire, method: str) -> None:
    def counts() -> tuple[int, int, int]:
        row = served.api.wire.to_json().get("echo", {"requests": 0, "received": 0, "sent": 0})
        return row["requests"], row["received"], row["sent"]

    before = counts()
    asked = [
        request("echo", *range(count)).SerializeToString() for count in ((3, 900) if "Stream" in method else (900,))
    ]
    _, _, body = wire.answer(wire.call(method, *asked))
    requests, received, sent = (now - then for now, then in zip(counts(), before, strict=True))
    assert (requests, received, sent) == (len(asked), sum(len(framed(each)) for each in asked), len(body))


def test_texts_are_percent_encoded(wire: Wire) -> None:
    asked = pb.ModelReadyRequest(name="echo", version="é%\n").SerializeToString()
    assert "version string '%C3%A9%25%0A'" in wire.answer(wire.call("ModelReady", asked))[1]


def test_a_call_that_is_answered_early_is_told_to_stop(wire: Wire) -> None:
    stream = wire.call("ModelInfer", request("nobody", 1).SerializeToString(), end=False)
    while not wire.closed:
        events = wire.read()
        if any(isinstance(event, ngh2.StreamReset) and event.error_code == 0 for event in events):
            break
    assert not wire.closed
    assert stream == 1


# -- services beside Triton's ------------------------------------------------------------------------------------------


def test_health(wire: Wire) -> None:
    assert wire.answer(wire.call("/grpc.health.v1.Health/Check", b"")) == (0, "", framed(b"\x08\x01"))
    assert wire.answer(wire.call("/grpc.health.v1.Health/Watch", b""))[0] == 12


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(wire: Wire, version: str) -> None:
    asked, answered = protos().reflection_request[version], protos().reflection_response[version]

    def ask(**fields: str) -> Any:
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        status, _, body = wire.answer(wire.call(path, asked(**fields).SerializeToString()))
        assert status == 0
        return answered.FromString(body[5:])

    names = [service.name for service in ask(list_services="").list_services_response.service]
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(names)
    files = ask(file_containing_symbol="inference.GRPCInferenceService.ModelInfer").file_descriptor_response
    assert b"ModelStreamInfer" in files.file_descriptor_proto[0]
    assert len(files.file_descriptor_proto) > 1, "with what it imports"
    assert ask(file_containing_symbol="grpc.health.v1.Health").file_descriptor_response.file_descriptor_proto
    assert ask(file_containing_symbol="no.such.Thing").error_response.error_code == 5
    assert ask(file_by_filename="no.proto").error_response.error_code == 5


# -- who may call ------------------------------------------------------------------------------------------------------


def test_a_page_of_another_site_may_not_call(wire: Wire) -> None:
    assert wire.http_status(wire.call("ServerLive", b"", headers={"origin": "https://evil.example"})) == b"403"
    assert wire.answer(wire.call("ServerLive", b"", headers={"origin": "http://localhost:8888"}))[0] == 0


def test_restrictions_tokens_and_forwarded_headers(repository: Any, start: Any) -> None:
    restricted = parse_restrictions(["statistics:key=value"], "grpc-restricted-protocol", "protocol", GRPC_PREFIX)
    grpc = GrpcOptions(restricted=restricted, header_forward_pattern="^x-.*|^timeout$")
    options = replace(OPTIONS, name="guarded", repository_token="secret", grpc=grpc)
    with start(repository, options) as server, Wire(server.grpc_url) as wire:
        text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
        assert wire.answer(wire.call("ModelStatistics", b""))[:2] == (14, text)
        assert wire.answer(wire.call("ModelStatistics", b"", headers={"triton-grpc-protocol-key": "value"}))[0] == 0
        load = pb.RepositoryModelLoadRequest(model_name="texts").SerializeToString()
        assert wire.answer(wire.call("RepositoryModelLoad", load))[0] == 16
        assert wire.answer(wire.call("RepositoryModelLoad", load, headers={"authorization": "Bearer secret"}))[0] == 0
        files = pb.RepositoryModelLoadRequest(model_name="texts")
        files.parameters["file:1/x"].bytes_param = b"x"
        answer = wire.answer(
            wire.call("RepositoryModelLoad", files.SerializeToString(), headers={"authorization": "Bearer secret"})
        )
        assert (answer[0], "--allow-file-override" in answer[1]) == (12, True)
        infer = pb.ModelInferRequest(model_name="echo")
        infer.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
        infer.raw_input_contents.append(bytes(16))
        seen = []
        submit = server.engine.submit
        server.engine.submit = lambda asked, then: (seen.append(dict(asked.parameters)), submit(asked, then))[1]  # type: ignore[method-assign]
        assert wire.answer(wire.call("ModelInfer", infer.SerializeToString(), headers={"x-one": "1"}))[0] == 0
        assert seen == [{"x-one": "1"}]
        status, said, _ = wire.answer(wire.call("ModelInfer", infer.SerializeToString(), headers={"timeout": "1"}))
        assert (status, said) == (3, "Header 'timeout' is reserved for Triton usage and cannot be forwarded.")


@pytest.mark.parametrize(("level", "kind"), [("low", b"gzip"), ("medium", b"deflate"), ("high", b"deflate")])
def test_compressed_answers(repository: Any, start: Any, level: str, kind: bytes) -> None:
    options = replace(OPTIONS, name="packed", grpc=GrpcOptions(compression_level=level))
    with start(repository, options) as server, Wire(server.grpc_url) as wire:
        asked = pb.ModelInferRequest(model_name="ints")
        asked.inputs.add(name="INPUT0", datatype="INT64", shape=[1, 5000])
        asked.raw_input_contents.append(bytes(40_000))
        taken = {"grpc-accept-encoding": "identity, deflate, gzip"}
        status, _, body = wire.answer(wire.call("ModelInfer", asked.SerializeToString(), headers=taken))
        assert (status, body[0], len(body) < 2000) == (0, 1, True)
        plain = zlib.decompress(body[5:], wbits=31 if kind == b"gzip" else 15)
        assert pb.ModelInferResponse.FromString(plain).raw_output_contents[0] == bytes(40_000)
        status, _, body = wire.answer(wire.call("ModelInfer", asked.SerializeToString()))
        assert (status, body[0]) == (0, 0), "a client that takes nothing packed gets nothing packed"
        assert wire.answer(wire.call("ServerLive", b"", headers=taken))[2] == framed(LIVE)


# -- memory and floods -------------------------------------------------------------------------------------------------


def test_large_messages_wait_for_each_other(served: RunningServer, repository: Any, start: Any) -> None:
    size = 4 << 20
    limits = GrpcLimits(memory=size + 4096)
    options = replace(OPTIONS, name="short", grpc=GrpcOptions(limits=limits))
    asked = pb.ModelInferRequest(model_name="ints")
    asked.inputs.add(name="INPUT0", datatype="INT64", shape=[1, size // 8])
    asked.raw_input_contents.append(np.arange(size // 8, dtype=np.int64).tobytes())
    message = framed(asked.SerializeToString())
    with start(repository, options) as server, Wire(server.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        streams = [wire.call("ModelInfer", end=False) for _ in range(3)]
        first = streams[0]
        wire.h2.send_data(first, message[: size // 2])  # it has the memory, and pauses
        for stream in streams[1:]:
            wire.h2.send_data(stream, message, end_stream=True)
        wire.flush()
        while wire.h2.queued_body_size(first):
            wire.read()
        waits = [wire.h2.queued_body_size(stream) for stream in streams[1:]]
        assert all(waiting > size - 200_000 for waiting in waits), "what has no memory stays with the client"
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0, "small calls go on"
        wire.h2.send_data(first, message[size // 2 :], end_stream=True)
        wire.flush()
        body: dict[int, bytearray] = {stream: bytearray() for stream in streams}
        open_streams = set(streams)
        while open_streams and not wire.closed:
            for event in wire.read():
                if isinstance(event, ngh2.DataReceived):
                    body[event.stream_id] += event.data
                    wire.h2.acknowledge_received_data(len(event.data), event.stream_id)
                elif isinstance(event, ngh2.StreamClosed):
                    open_streams.discard(event.stream_id)
            wire.flush()
        assert not open_streams
        for data in body.values():
            assert pb.ModelInferResponse.FromString(bytes(data[5:])).raw_output_contents == asked.raw_input_contents


@pytest.mark.parametrize(("method", "count"), [("ModelInfer", 1), ("ModelStreamInfer", 3)])
@pytest.mark.parametrize("past", [-4096, 4096])
def test_a_packed_message_that_is_alone_has_all_the_memory(
    repository: Any, start: Any, method: str, count: int, past: int
) -> None:
    """Packed it takes three quarters: what it unpacks to takes their place, and needs no room besides."""
    memory = 3 << 20
    options = replace(OPTIONS, name="packed", grpc=GrpcOptions(limits=GrpcLimits(memory=memory)))
    values = np.random.default_rng(1).integers(0, 1 << 48, (memory + past) // 8)
    asked = pb.ModelInferRequest(model_name="ints")
    asked.inputs.add(name="INPUT0", datatype="INT64", shape=[1, len(values)])
    asked.raw_input_contents.append(values.tobytes())
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(asked.SerializeToString()) + packer.flush()
    assert 2 << 20 < len(packed) < memory
    with start(repository, options) as server, Wire(server.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        stream = wire.call(method, end=False, headers={"grpc-encoding": "gzip"})
        for _ in range(count):
            wire.h2.send_data(stream, b"\1" + len(packed).to_bytes(4, "big") + packed)
        wire.h2.end_stream(stream)
        wire.flush()
        status, text, answers = wire.answer(stream)
        if past > 0:
            assert (status, text[: text.index(" that")]) == (8, f"the message unpacks to more than the {memory} bytes")
        else:
            assert (status, text) == (0, "")
            assert answers.count(asked.raw_input_contents[0]) == count
        assert server._listeners[1].memory.used == 0  # type: ignore[attr-defined]


# -- time --------------------------------------------------------------------------------------------------------------


def test_who_says_nothing_or_stops_half_way_is_cut_off(repository: Any, start: Any) -> None:
    options = replace(OPTIONS, name="slow", grpc=GrpcOptions(limits=GrpcLimits(hello_s=0.3, pause_s=0.3)))
    with start(repository, options) as server:
        host, _, port = server.grpc_url.partition("://")[2].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as made:
            made.sendall(b"PRI * HTTP")
            with contextlib.suppress(ConnectionError):
                while made.recv(4096):
                    pass
        with Wire(server.grpc_url) as wire:
            stream = wire.call("ModelInfer", end=False)
            wire.h2.send_data(stream, b"\0\0\0\1\0half")
            wire.flush()
            assert wire.answer(stream)[:2] == (1, "a message paused for 0.3 s")
            idle = wire.call("ModelStreamInfer", end=False)
            assert wire.answer(wire.call("ServerLive", b""))[0] == 0
            assert idle, "a stream between two messages may be silent"


def test_keep_alive(repository: Any, start: Any) -> None:
    keep = KeepAlive(time_ms=100, timeout_ms=400, permit_without_calls=True)
    with start(repository, replace(OPTIONS, name="alive", grpc=GrpcOptions(keep_alive=keep))) as server:
        with Wire(server.grpc_url) as wire:
            while not any(isinstance(event, ngh2.PingReceived) for event in wire.read()):
                assert not wire.closed
            assert wire.answer(wire.call("ServerLive", b""))[0] == 0, "who answers stays"
        with raw(server) as silent, contextlib.suppress(ConnectionError):
            while silent.recv(4096):  # until it is cut off
                pass


def test_too_many_pings(served: RunningServer) -> None:
    with Wire(served.grpc_url) as wire:
        codes = []
        with contextlib.suppress(OSError):
            for _ in range(6):
                wire.h2.ping()
                wire.flush()
        while not wire.closed:
            codes += [event.error_code for event in wire.read() if isinstance(event, ngh2.GoAwayReceived)]
        assert codes == [ngh2.ErrorCode.ENHANCE_YOUR_CALM]
    assert still_serves(served)


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize(
    "last", [b"", frame(3, 0, 1, bytes(4)), frame(0, 0, 1, b"\0\0\0\1\0half"), frame(6, 0, 0, bytes(8))]
)
def test_too_many_pings_at_once(served: RunningServer, calls: int, last: bytes) -> None:
    """Whatever follows in the same piece, a client is told why, and nothing goes wrong."""
    events: list[Any] = []
    stop = served.engine.events.subscribe(events.append)
    with Wire(served.grpc_url) as wire:
        for _ in range(calls):
            wire.call("ModelStreamInfer", end=False)
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0
        wire.socket.sendall(frame(6, 0, 0, bytes(8)) * 4 + last)
        codes = []
        while not wire.closed:
            codes += [event.error_code for event in wire.read() if isinstance(event, ngh2.GoAwayReceived)]
    assert codes == [ngh2.ErrorCode.ENHANCE_YOUR_CALM]
    assert still_serves(served)
    stop()
    assert not [event for event in events if event.level == "error"]


def test_the_age_of_a_connection(repository: Any, start: Any) -> None:
    keep = KeepAlive(max_connection_age_ms=200, max_connection_age_grace_ms=200)
    options = replace(OPTIONS, name="aged", grpc=GrpcOptions(keep_alive=keep))
    with start(repository, options) as server, Wire(server.grpc_url) as wire:
        seen: list[Any] = []
        while not wire.closed:
            seen += wire.read()
        assert any(isinstance(event, ngh2.GoAwayReceived) for event in seen)


def test_a_server_that_stops_lets_calls_end(tmp_path: Any, start: Any) -> None:
    with start(write_models(tmp_path), replace(OPTIONS, name="stopping")) as server, Wire(server.grpc_url) as wire:
        stream = wire.call("ModelInfer", request("slow", 3).SerializeToString())
        while server.engine.snapshot().version("slow").running == 0:
            pass
        assert server.close(10.0), "nothing was cut"
        status, _, body = wire.answer(stream)
        assert status == 0
        assert values_of(pb.ModelInferResponse.FromString(body[5:])) == [3]
        wire.until_closed()


def test_the_service_is_named_as_tritons() -> None:
    assert SERVICE == "/inference.GRPCInferenceService"


def test_a_call_that_is_reset_at_once(served: RunningServer, capfd: pytest.CaptureFixture[str]) -> None:
    with Wire(served.grpc_url) as wire:
        for headers in ({}, {":method": "PUT"}, {"grpc-timeout": "x"}):
            fields = {
                ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}/ServerLive", ":authority": "localhost",
                "te": "trailers", "content-type": "application/grpc",
            } | headers  # fmt: skip
            stream = wire.h2.send_request([(name.encode(), value.encode()) for name, value in fields.items()])
            wire.h2.send_data(stream, framed(b""), end_stream=True)
            head = wire.h2.data_to_send()
            wire.h2.reset_stream(stream)
            wire.socket.sendall(head + wire.h2.data_to_send())  # both in one piece
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0, "the connection goes on"
    assert "failed" not in capfd.readouterr().err


def test_large_messages_of_one_stream(repository: Any, start: Any) -> None:
    options = replace(OPTIONS, name="long", grpc=GrpcOptions(limits=GrpcLimits(memory=3 << 20)))
    asked = pb.ModelInferRequest(model_name="ints")
    asked.inputs.add(name="INPUT0", datatype="INT64", shape=[1, 1 << 17])
    asked.raw_input_contents.append(bytes(1 << 20))
    with start(repository, options) as server, Wire(server.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        stream = wire.call("ModelStreamInfer", *[asked.SerializeToString()] * 10)
        status, _, body = wire.answer(stream)
        assert status == 0
        sizes = []
        while body:
            size = int.from_bytes(body[1:5], "big")
            sizes.append(
                len(pb.ModelStreamInferResponse.FromString(body[5 : 5 + size]).infer_response.raw_output_contents[0])
            )
            body = body[5 + size :]
        assert sizes == [1 << 20] * 10
        assert server._listeners[1].memory.used == 0  # type: ignore[attr-defined]


def test_who_does_not_read_answers_has_no_further_calls_begun(repository: Any, start: Any) -> None:
    """Not even calls like those before, which are known by their heads."""
    options = replace(OPTIONS, grpc=GrpcOptions(limits=GrpcLimits(memory=100_000)))
    small = request("plain", 0, 0, 0, 0)
    small.inputs[0].name, small.inputs[0].shape[:] = "INPUT0", [2, 2]
    large = pb.ModelInferRequest(model_name="ints")
    large.inputs.add(name="INPUT0", datatype="INT64", shape=[1, 40_000])
    large.raw_input_contents.append(bytes(320_000))

    def executed(server: RunningServer) -> int:
        return int(server.engine.statistics("plain")["model_stats"][0]["execution_count"])

    with start(repository, options, control_mode="none") as server, Wire(server.grpc_url, window=1000) as wire:
        assert wire.answer(wire.call("ModelInfer", small.SerializeToString()))[0] == 0
        wire.call("ModelInfer", large.SerializeToString())  # its answer is not acknowledged
        while not any(isinstance(event, ngh2.DataReceived) for event in wire.read()):
            pass
        before = executed(server)
        status, text, _ = wire.answer(wire.call("ModelInfer", small.SerializeToString()))
        assert (status, text) == (8, "too many answers are not read: read those that have come before asking for more")
        assert executed(server) == before == 1


def test_answers_that_wait_in_the_socket_count_as_not_read(tmp_path: Any, start: Any) -> None:
    put(tmp_path, "large", LARGE_ANSWERS)
    options = replace(OPTIONS, grpc=GrpcOptions(limits=GrpcLimits(memory=1_000_000)))
    small, large = (request("large", size).SerializeToString() for size in (1, 3_000_000))
    with start(tmp_path, options, control_mode="none") as server, Wire(server.grpc_url, window=2**31 - 1) as wire:
        wire.h2.set_local_window_size(2**31 - 1)
        assert wire.answer(wire.call("ModelInfer", small))[0] == 0
        stream = wire.call("ModelInfer", large)
        wire.socket.recv(100_000, socket.MSG_PEEK | socket.MSG_WAITALL)  # it is on its way, and stays there
        other = wire.call("ModelInfer", small)
        statuses: dict[int, bytes] = {}
        while len(statuses) < 2:
            events = wire.read()
            assert events, "closed"
            for event in events:
                head = dict(getattr(event, "headers", ()))
                if b"grpc-status" in head:
                    statuses[event.stream_id] = head[b"grpc-status"]
        assert statuses == {stream: b"0", other: b"8"}
        assert wire.answer(wire.call("ModelInfer", small))[0] == 0, "it has read them all"
