"""Compressed messages and bodies that unpack to much: others are answered meanwhile, and nothing is out of order."""

from __future__ import annotations

import gzip
import json
import random
import select
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import ngh2
import numpy as np
import pytest
from asking import wait_until
from grpc_models import WAITS, Wire, framed, put, request, write_models
from tritonclient.grpc import service_pb2 as pb

from workbench.server import RunningServer, ServerOptions
from workbench.server.grpc_options import GrpcLimits, GrpcOptions
from workbench.server.grpc_protos import protos
from workbench.server.http import HttpLimits
from workbench.server.unpacking import AT_ONCE, EITHER, GZIP, ZLIB, Broken, Unpacking

LARGE = 8 << 20
MEMORY = 64 << 20
GZIPPED = {"grpc-encoding": "gzip"}


class Gate:
    """Stands where a lot is unpacked: who comes there waits until it is open."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.ends: list[int] = []
        """Bytes of what was unpacked behind the gate, as each ended."""
        self.bytes_of: dict[str, int] = {}
        """Bytes by the name of the thread that unpacked them."""

    def open(self) -> None:
        self.opened.set()


class Gated:
    """An object that unpacks, with the gate before all that is more than a little."""

    def __init__(self, real: Any, gate: Gate) -> None:
        self._real = real
        self._gate = gate
        self._size = 0

    def decompress(self, data: Any, most: int = 0) -> bytes:
        if self._size >= AT_ONCE or not 0 < most <= AT_ONCE:
            self._gate.reached.set()
            assert self._gate.opened.wait(20), "nobody was answered meanwhile"
        piece: bytes = self._real.decompress(data, most)
        self._size += len(piece)
        name = threading.current_thread().name
        self._gate.bytes_of[name] = self._gate.bytes_of.get(name, 0) + len(piece)
        if self._real.eof and self._size > AT_ONCE:
            self._gate.ends.append(self._size)
        return piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, real = Gate(), zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *args, **options: Gated(real(*args, **options), made))
    yield made
    made.open()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    root = write_models(tmp_path_factory.mktemp("packed"))
    options = ServerOptions(
        name="packed", exit_timeout_s=5.0, grpc=GrpcOptions(limits=GrpcLimits(memory=MEMORY, pause_s=1.0))
    )
    with start(root, options) as server:
        yield server


def zeros(size: int, id: str = "") -> bytes:
    """A request with so many bytes of zeros."""
    made = pb.ModelInferRequest(model_name="echo", id=id)
    made.inputs.add(name="IN", datatype="FP32", shape=[size // 4])
    made.raw_input_contents.append(bytes(size))
    return bytes(made.SerializeToString())


def packed(message: bytes) -> bytes:
    data = gzip.compress(message, 6)
    return b"\1" + len(data).to_bytes(4, "big") + data


def begin(wire: Wire, method: str, *messages: bytes, end: bool = True) -> int:
    """A call with messages that are framed already."""
    stream = wire.call(method, end=False, headers=GZIPPED)
    for message in messages:
        wire.h2.send_data(stream, message)
    if end:
        wire.h2.end_stream(stream)
    wire.flush()
    return stream


def used(server: RunningServer) -> int:
    """What messages hold of their memory, in bytes."""
    return int(server._listeners[1].memory.used)  # type: ignore[attr-defined]


def answers(body: bytes) -> list[tuple[str, int]]:
    """Id and bytes of each answer on a stream."""
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        answer = pb.ModelStreamInferResponse.FromString(body[5 : 5 + size])
        assert not answer.error_message
        found.append((answer.infer_response.id, len(answer.infer_response.raw_output_contents[0])))
        body = body[5 + size :]
    return found


def still_serves(server: RunningServer, count: int = 20) -> None:
    """Others are answered."""
    with Wire(server.grpc_url) as other:
        for number in range(count):
            status, _, body = other.answer(other.call("ModelInfer", request("echo", number).SerializeToString()))
            assert status == 0
            answer = pb.ModelInferResponse.FromString(body[5:])
            assert np.frombuffer(answer.raw_output_contents[0], np.float32)[0] == number


# -- gRPC --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_others_are_answered_while_a_message_is_unpacked(served: RunningServer, gate: Gate, method: str) -> None:
    with Wire(served.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        stream = begin(wire, method, packed(zeros(LARGE)))
        assert gate.reached.wait(20)
        still_serves(served)
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0, "calls on the same connection, too"
        gate.open()
        status, _, body = wire.answer(stream)
        assert (status, len(body) > LARGE) == (0, True)
    wait_until(lambda: not used(served))


def test_what_comes_behind_it_is_answered_behind_it(served: RunningServer, gate: Gate) -> None:
    behind = [
        framed(request("echo", 1, id="plain").SerializeToString()),
        packed(zeros(400, "small")),
        packed(zeros(1 << 20, "second")),
        framed(request("echo", 1, 2, id="last").SerializeToString()),
    ]
    with Wire(served.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        stream = begin(wire, "ModelStreamInfer", packed(zeros(LARGE, "first")), *behind)
        assert gate.reached.wait(20)
        still_serves(served, 1)
        gate.open()
        status, _, body = wire.answer(stream)
        assert status == 0
        sizes = [("first", LARGE), ("plain", 4), ("small", 400), ("second", 1 << 20), ("last", 8)]
        assert answers(body) == sizes


def test_a_stream_sends_no_more_than_its_window_meanwhile(served: RunningServer, gate: Gate) -> None:
    with Wire(served.grpc_url, window=1 << 24) as wire:
        stream = begin(wire, "ModelStreamInfer", packed(zeros(LARGE)), end=False)
        assert gate.reached.wait(20)
        wire.h2.send_data(stream, framed(request("echo", *range(2000)).SerializeToString()) * 100)
        wire.flush()
        for _ in range(20):
            assert wire.answer(wire.call("ServerLive", b""))[0] == 0
        assert wire.h2.queued_body_size(stream) > 700_000, "what has no place stays with the client"
        gate.open()
        wire.h2.end_stream(stream)
        status, _, body = wire.answer(stream)
        assert (status, len(answers(body))) == (0, 101)


@pytest.mark.parametrize("how", ["reset", "gone", "deadline"])
def test_a_call_that_ends_meanwhile_is_not_gone_on_with(served: RunningServer, gate: Gate, how: str) -> None:
    sent = packed(zeros(MEMORY // 2)) + framed(request("echo", 1).SerializeToString())
    with Wire(served.grpc_url, window=1 << 24) as wire:
        headers = GZIPPED | ({"grpc-timeout": "500m"} if how == "deadline" else {})
        stream = wire.call("ModelStreamInfer", end=False, headers=headers)
        wire.h2.send_data(stream, sent)
        wire.flush()
        assert gate.reached.wait(20)
        if how == "reset":
            wire.h2.reset_stream(stream)
            wire.flush()
            assert wire.answer(wire.call("ServerLive", b""))[0] == 0
        elif how == "deadline":
            assert wire.answer(stream)[:2] == (4, "Deadline Exceeded")
    wait_until(lambda: not used(served))
    gate.open()
    with Wire(served.grpc_url, window=1 << 24) as wire:
        assert wire.answer(begin(wire, "ModelInfer", packed(zeros(1 << 20))))[0] == 0
    assert gate.ends == [len(zeros(1 << 20))], "the first one was left where it was"


def test_one_does_not_wait_for_a_larger_one(served: RunningServer, gate: Gate) -> None:
    with Wire(served.grpc_url, window=1 << 26) as first, Wire(served.grpc_url, window=1 << 24) as second:
        for wire in (first, second):
            wire.h2.set_local_window_size(1 << 30)
        begin(first, "ModelInfer", packed(zeros(MEMORY // 2)))
        assert gate.reached.wait(20)
        small = begin(second, "ModelInfer", packed(zeros(LARGE)))
        live = second.call("ServerLive", b"")
        ended: set[int] = set()
        while live not in ended:
            ended |= {each.stream_id for each in second.read() if isinstance(each, ngh2.StreamClosed)}
        gate.open()
        assert second.answer(small)[0] == 0
        wait_until(lambda: len(gate.ends) == 2)
    assert gate.ends == [len(zeros(LARGE)), len(zeros(MEMORY // 2))]


def test_many_small_ones_in_one_piece(served: RunningServer, gate: Gate) -> None:
    """Each alone would be unpacked where it comes."""
    gate.open()
    each, count = packed(zeros(200_000)), 100
    assert len(each) * count < 65_535
    with Wire(served.grpc_url, window=1 << 26) as wire:
        wire.h2.set_local_window_size(1 << 30)
        status, _, body = wire.answer(begin(wire, "ModelStreamInfer", each * count))
        assert (status, answers(body)) == (0, [("", 200_000)] * count)
    threads = {name: size for name, size in gate.bytes_of.items() if name.startswith("workbench-unpack")}
    assert sum(threads.values()) > 0.8 * sum(gate.bytes_of.values())


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_what_unpacks_to_more_than_there_is_is_refused(served: RunningServer, method: str) -> None:
    with Wire(served.grpc_url) as wire:
        for _ in range(2):
            status, text, _ = wire.answer(begin(wire, method, packed(zeros(MEMORY + (1 << 20)))))
            assert (status, text[: text.index(" that")]) == (8, f"the message unpacks to more than the {MEMORY} bytes")
    wait_until(lambda: not used(served))


def stored(message: bytes) -> bytes:
    """Packed to more bytes than it has."""
    packer = zlib.compressobj(0, wbits=GZIP)
    data = packer.compress(message) + packer.flush()
    return b"\1" + len(data).to_bytes(4, "big") + data


def hollow(message: bytes) -> bytes:
    """A small one, packed with many empty blocks."""
    packer = zlib.compressobj(wbits=GZIP)
    data = packer.flush(zlib.Z_FULL_FLUSH) + b"\0\0\0\xff\xff" * 50_000 + packer.compress(message) + packer.flush()
    return b"\1" + len(data).to_bytes(4, "big") + data


def take(wire: Wire, stream: int, size: int) -> None:
    """Reads that many bytes of a call's answers."""
    while size > 0:
        events = wire.read()
        assert not wire.closed
        size -= sum(
            len(each.data) for each in events if isinstance(each, ngh2.DataReceived) and each.stream_id == stream
        )


@pytest.mark.parametrize("pack", [stored, hollow, packed])
def test_an_answered_message_holds_nothing_while_its_stream_goes_on(
    served: RunningServer, pack: Callable[[bytes], bytes]
) -> None:
    size = 400 if pack is hollow else 1 << 20
    with Wire(served.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        stream = begin(wire, "ModelStreamInfer", pack(zeros(size)), end=False)
        take(wire, stream, size)
        wait_until(lambda: not used(served))
        wire.h2.send_data(stream, pack(zeros(size)))
        wire.flush()
        take(wire, stream, size)
        wait_until(lambda: not used(served))
        wire.h2.end_stream(stream)
        wire.flush()
        assert wire.answer(stream)[0] == 0


@pytest.mark.parametrize("pack", [framed, packed])
def test_a_large_question_of_reflection_holds_nothing_while_its_stream_goes_on(
    served: RunningServer, pack: Callable[[bytes], bytes]
) -> None:
    asked = protos().reflection_request["v1"](file_by_filename="x" * 300_000).SerializeToString()
    with Wire(served.grpc_url, window=1 << 24) as wire:
        wire.h2.set_local_window_size(1 << 30)
        stream = begin(wire, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", pack(asked), end=False)
        take(wire, stream, 300_000)
        wait_until(lambda: not used(served))


@pytest.mark.parametrize("pack", [framed, packed])
def test_a_second_message_of_a_call_that_takes_one_holds_nothing(
    tmp_path: Any, start: Any, pack: Callable[[bytes], bytes]
) -> None:
    root = write_models(tmp_path / "models")
    put(root, "waits", WAITS)
    with start(root, ServerOptions(name="second", exit_timeout_s=5.0)) as server, Wire(server.grpc_url) as wire:
        first = framed(request("waits", 1).SerializeToString())
        stream = begin(wire, "ModelInfer", first, pack(zeros(LARGE)), end=False)
        wait_until(lambda: wire.answer(wire.call("ServerLive", b""))[0] == 0 and not wire.h2.queued_body_size(stream))
        wait_until(lambda: not used(server))
        (root / "gate").touch()
        wire.h2.end_stream(stream)
        wire.flush()
        assert wire.answer(stream)[0] == 0


def test_a_message_that_breaks_late(served: RunningServer) -> None:
    whole = packed(zeros(LARGE))
    size = len(whole) - 5 - 8  # without the check at the end
    with Wire(served.grpc_url) as wire:
        broken = b"\1" + size.to_bytes(4, "big") + whole[5 : 5 + size]
        status, text, _ = wire.answer(begin(wire, "ModelInfer", broken))
        assert (status, text) == (13, "a compressed message cannot be read: it ends too early")
        wrong = whole[:-8] + bytes(8)
        status, text, _ = wire.answer(begin(wire, "ModelInfer", wrong))
        assert status == 13
        assert text.startswith("a compressed message cannot be read: ")
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0
    wait_until(lambda: not used(served))


def test_a_server_that_stops_meanwhile(tmp_path: Any, start: Any, gate: Gate) -> None:
    options = ServerOptions(name="stops", exit_timeout_s=5.0)
    with start(write_models(tmp_path), options) as server, Wire(server.grpc_url) as wire:
        stream = begin(wire, "ModelInfer", packed(zeros(LARGE)))
        assert gate.reached.wait(20)
        assert server.close(10.0), "nothing was cut: the request was not taken yet"
        assert wire.answer(stream)[0] == 14


SEVEN = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [7]}]}'


# -- HTTP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0, 300_000], ids=["packed_small", "packed_large"])
def test_others_are_answered_while_a_body_is_unpacked(served: RunningServer, gate: Gate, noise: int) -> None:
    filler = "".join(random.Random(1).choices(" \n\t\r", k=4 * noise)) + " " * LARGE
    body = gzip.compress(SEVEN + filler.encode())
    connection = HTTPConnection(served.http_url.removeprefix("http://"), timeout=20)
    connection.request("POST", "/v2/models/echo/infer", body, {"Content-Encoding": "gzip"})
    assert gate.reached.wait(20)
    still_serves(served)
    gate.open()
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["outputs"][0]["data"]) == (200, [7.0])
    connection.close()


def test_a_body_that_nobody_waits_for_is_left_where_it_is(served: RunningServer, gate: Gate) -> None:
    connection = HTTPConnection(served.http_url.removeprefix("http://"), timeout=20)
    connection.request("POST", "/v2/models/echo/infer", gzip.compress(bytes(32 << 20)), {"Content-Encoding": "gzip"})
    assert gate.reached.wait(20)
    http = served._listeners[0]
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # not only half closed
    connection.close()
    wait_until(lambda: not http.connections)  # type: ignore[attr-defined]
    gate.open()
    still_serves(served)
    answer = HTTPConnection(served.http_url.removeprefix("http://"), timeout=20)
    whole = SEVEN + b" " * LARGE
    answer.request("POST", "/v2/models/echo/infer", gzip.compress(whole), {"Content-Encoding": "gzip"})
    assert answer.getresponse().status == 200
    answer.close()
    assert gate.ends == [len(whole)]


def test_packed_bodies_wait_for_memory(tmp_path: Any, start: Any) -> None:
    """Each is small as it comes, and large until it is answered: no more of them are taken than there is room for."""
    size, count = 4 << 20, 8
    limits = HttpLimits(memory=2 * size + (1 << 20))
    tensor = (
        f'{{"name": "IN", "datatype": "FP32", "shape": [{size // 4}], "parameters": {{"binary_data_size": {size}}}}}'
    )
    head = f'{{"inputs": [{tensor}], "outputs": [{{"name": "OUT", "parameters": {{"binary_data": true}}}}]}}'.encode()
    body = gzip.compress(head + bytes(size))
    assert len(body) < 64 * 1024
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    options = ServerOptions(name="small", exit_timeout_s=5.0, limits=limits)
    with start(write_models(tmp_path), options) as server:
        clients = [HTTPConnection(server.http_url.removeprefix("http://"), timeout=20) for _ in range(count + 1)]
        for client in clients:
            client.request("POST", "/v2/models/slow/infer", body, headers)
        clients.pop().close()  # who leaves does not keep his place
        done, most = 0, 0
        while done < count:
            version = server.engine.snapshot().version("slow")
            most = max(most, version.pending + version.running)
            readable, _, _ = select.select([client.sock for client in clients], [], [], 0.01)
            for client in [each for each in clients if each.sock in readable]:
                answer = client.getresponse()
                assert (answer.status, len(answer.read()) > size) == (200, True)
                client.close()
                clients.remove(client)
                done += 1
        assert 1 <= most <= 2
        wait_until(lambda: server._listeners[0].bodies.used == 0)


def test_who_leaves_while_his_body_waits_for_memory_is_not_unpacked(tmp_path: Any, start: Any, gate: Gate) -> None:
    """He is told so at once, if he has only said that he sends no more."""
    body = gzip.compress(SEVEN + b" " * LARGE)
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    options = ServerOptions(name="leaves", exit_timeout_s=5.0, limits=HttpLimits(memory=LARGE))
    with start(write_models(tmp_path), options) as server:
        host, _, port = server.http_url.removeprefix("http://").rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as first,
            socket.create_connection((host, int(port)), timeout=20) as second,
        ):
            first.sendall(head + body)
            assert gate.reached.wait(20)
            second.sendall(head + body)
            second.shutdown(socket.SHUT_WR)
            assert second.recv(4096).startswith(b"HTTP/1.1 400 ")
            gate.open()
            assert first.recv(4096).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: not server._listeners[0].bodies.used)
    assert gate.ends == [len(SEVEN) + LARGE]


# -- bit by bit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_in_steps_of_any_size(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice((0, 1, 1000, 300_000, 3_000_000))
    plain = bytes(size) if chance.randrange(2) else chance.randbytes(size)
    form = chance.choice((GZIP, ZLIB))
    packer = zlib.compressobj(wbits=form)
    data = packer.compress(plain) + packer.flush()
    unpacking = Unpacking(data, chance.choice((form, EITHER)))
    steps = 0
    while not unpacking.step(most := chance.choice((1, 258, 70_000, 1 << 22))):
        steps += most
        assert unpacking.size == steps
    assert (unpacking.plain, unpacking.size) == (plain, size)
    assert unpacking.step(1), "it stays whole"
    short = Unpacking(data[: chance.randrange(len(data))], form)
    with pytest.raises(Broken):
        all(short.step(100_000) is False for _ in range(1000))
