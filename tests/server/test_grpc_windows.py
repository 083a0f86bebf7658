"""Flow control as RFC 9113 has it, by a client that counts itself: windows below nothing and near 2**31, calls that end
amid a frame or with their windows used up, and the memory of what stays half sent.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import ngh2
import numpy as np
import psutil
import pytest
from counting_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MOST,
    PADDED,
    RST,
    Counting,
    frame,
)
from grpc_models import LARGE_ANSWERS, Wire, framed, put, request, write_models
from tritonclient.grpc import service_pb2_grpc

from workbench.server import RunningServer, ServerOptions
from workbench.server.grpc_frames import data_head
from workbench.server.grpc_options import GrpcLimits, GrpcOptions, KeepAlive

OPTIONS = ServerOptions(name="windows", exit_timeout_s=5.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    root = write_models(tmp_path_factory.mktemp("windows"))
    put(root, "large", LARGE_ANSWERS)
    with start(root, OPTIONS) as server:
        yield server


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("beyond", [0, 1])
def test_a_first_window_near_the_largest(served: RunningServer, is_large: bool, beyond: int) -> None:
    """What has been sent makes room for it, whoever counts; a byte too much is an error of the connection."""
    with Counting(served.grpc_url) as client:
        client.settled()
        client.grow(0, 1 << 30)
        client.call(1, "ModelStreamInfer", end=False)
        client.grow(1, 1 << 20)
        if is_large:
            client.begin_large(3)
        for _ in range(14):  # none of them large
            client.ask(1, 15_000)
        client.take(1, 14 * 60_000)
        client.settle(MOST - client.windows[1] + client.first_window + beyond)
        if beyond:
            client.until_closed()
            assert [reason for _, reason in client.gone_away] == [ngh2.ErrorCode.FLOW_CONTROL_ERROR]
            return
        client.settled()
        client.call(9, "ServerLive", b"")
        client.answered(9)
        client.ask(1, 5)
        client.end(1)
        client.answered(1)
        assert client.counts(1) == [15_000] * 14 + [5]
        assert not client.gone_away


def test_a_window_below_nothing_and_up_again(served: RunningServer) -> None:
    with Counting(served.grpc_url) as client:
        client.settled()
        client.grow(0, 1 << 30)
        client.call(1, "ModelStreamInfer", end=False)
        client.grow(1, 780_000)
        client.begin_large(3)
        client.ask(1, 200_000)
        client.take(1, 800_000)
        for first in (0, 100, 65_535, 0):
            client.settle(first)
        client.settled()
        assert client.windows[1] < 0
        client.grow(1, 1 - client.windows[1])
        client.ask(1, 300)
        before = len(client.bodies[1])
        client.take(1, before + 1)
        client.call(9, "ModelInfer", request("large", 50).SerializeToString())
        client.grow(9, 4000)
        client.answered(9)  # trailers, too, though windows are shut at first
        assert len(client.bodies[1]) == before + 1
        client.settle(MOST // 2)
        client.end(1)
        client.answered(1)
        assert client.counts(1) == [200_000, 300]


@pytest.mark.parametrize("seed", range(6))
def test_windows_that_change_all_the_time(served: RunningServer, seed: int) -> None:
    """Answers of any size on calls that run together: never a byte too much, and all of them come."""
    chance = random.Random(seed)
    with Counting(served.grpc_url, chance.choice((0, 500, 65_535))) as client:
        client.settled()
        asked = {}
        for stream in (1, 3, 5, 7):
            asked[stream] = [chance.choice((1, 40, 600, 600, 60_000)) for _ in range(12)]
            messages = [request("large", count).SerializeToString() for count in asked[stream]]
            client.call(stream, "ModelStreamInfer", *messages)
        while len(client.ended) < len(asked):
            for _ in range(chance.randrange(4)):
                if client.may_read(0.002):
                    client.read()
            # no window may be made larger than the largest, nor may one that is not acknowledged yet
            room = MOST - max(client.windows.values()) + client.first_window
            if client.is_settled and not chance.randrange(4):
                client.settle(max(0, min(room, chance.choice((0, 0, 100, 5000, 65_535, 1 << 20, MOST)))))
            if client.window < 1 << 20:
                client.grow(0, chance.choice((1, 999, 70_000, 400_000)))
            stream = chance.choice([each for each in asked if each not in client.ended] or [1])
            if client.is_settled and client.windows[stream] < 30_000:
                client.grow(stream, chance.choice((1, 300, 10_000, 60_000)) + max(0, -client.windows[stream]) // 2)
            assert not client.gone_away
        assert {stream: client.counts(stream) for stream in asked} == asked


@pytest.mark.parametrize("seed", range(4))
def test_large_messages_both_ways_on_calls_that_run_together(served: RunningServer, seed: int) -> None:
    """In frames of any size, some padded, cut anywhere, while the windows of both sides change."""
    chance = random.Random(seed)
    with Counting(served.grpc_url, chance.choice((0, 3000, 65_535))) as client:
        client.settled()
        asked, left = {}, {}
        for stream in (1, 3, 5):
            asked[stream] = [chance.choice((1, 3, 500, 20_000, 60_000, 120_000)) for _ in range(6)]
            messages = [request("echo", *range(count)).SerializeToString() for count in asked[stream]]
            left[stream] = b"".join(framed(message) for message in messages)
            client.call(stream, "ModelStreamInfer", end=False)
            client.room[stream] = 65_535
        unsent = b""
        while len(client.ended) < len(asked):
            while client.may_read(0.002 * chance.randrange(2)):
                client.read()
            for stream, window in client.windows.items():
                if window < 20_000 and stream not in client.ended and client.is_settled:
                    unsent += client.growing(stream, chance.choice((1000, 60_000)) + max(0, -window))
            if client.window < 200_000:
                unsent += client.growing(0, 400_000)
            if client.is_settled and not chance.randrange(20):
                unsent += client.settling(chance.choice((0, 700, 65_535, 1 << 20)))
            for stream in chance.sample(sorted(left), len(left)):
                padding = chance.choice((0, 0, 1, 200))
                size = min(len(left[stream]), chance.choice((1, 9, 5000, 16_000)), client.room[stream] - padding - 1)
                if size > 0:
                    piece, left[stream] = left[stream][:size], left[stream][size:]
                    flags, payload = (PADDED, bytes((padding,)) + piece + bytes(padding)) if padding else (0, piece)
                    client.room[stream] -= len(payload)
                    unsent += frame(DATA, flags | END_STREAM * (not left[stream]), stream, payload)
                if not left[stream]:
                    del left[stream]
            cut = max(0, len(unsent) - chance.choice((0, 5, 11, 3000)))
            client.socket.sendall(unsent[:cut])
            unsent = unsent[cut:]
            assert not client.gone_away
        assert {stream: client.counts(stream) for stream in asked} == asked


# -- calls that end early ----------------------------------------------------------------------------------------------


def test_a_status_waits_for_the_window_before_the_client_is_told_to_stop(served: RunningServer) -> None:
    """The answers have used the window up to the last byte: the library sends trailers when it is open again."""
    asked = request("echo", 1, 2, 3).SerializeToString()
    with Wire(served.grpc_url) as wire:
        size = len(wire.answer(wire.call("ModelStreamInfer", asked))[2])
    with Wire(served.grpc_url, window=size) as wire:
        stream = wire.call("ModelStreamInfer", asked, end=False)
        left = size
        while left:
            left -= sum(len(each.data) for each in wire.read() if isinstance(each, ngh2.DataReceived))
        wire.h2.send_data(stream, b"\7\0\0\0\0")
        wire.flush()
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0, "that has been heard"
        wire.h2.acknowledge_received_data(size, stream)
        wire.flush()
        assert wire.answer(stream)[:2] == (13, "Bad GRPC frame type 0x07")


@pytest.mark.parametrize("size", [60_000, 300_000], ids=["small", "large"])
def test_a_deadline_amid_a_frame(served: RunningServer, size: int) -> None:
    """What the rest of the frame says is nobody's; the connection goes on."""
    message = framed(bytes(size))
    with Wire(served.grpc_url) as wire:
        while not any(isinstance(each, ngh2.SettingsReceived) for each in wire.read()):
            pass
        for _ in range(3):
            stream = wire.call("ModelInfer", end=False, headers={"grpc-timeout": "500m"})
            sent = 0
            if size > 100_000:  # until it is told that it may send all
                wire.socket.sendall(data_head(stream, 50_000) + message[:50_000])
                while wire.h2.stream_remote_window_size(stream) < size - 50_000:
                    wire.read()
                sent = 50_000
            wire.socket.sendall(data_head(stream, 40_000) + message[sent : sent + 17_000])
            assert wire.answer(stream)[:2] == (4, "Deadline Exceeded")
            wire.socket.sendall(message[sent + 17_000 : sent + 40_000])
            assert wire.answer(wire.call("ModelInfer", request("echo", 5).SerializeToString()))[0] == 0


def test_who_stops_amid_the_first_frame_is_cut_off(repository: Any, start: Any) -> None:
    options = replace(OPTIONS, grpc=GrpcOptions(limits=GrpcLimits(pause_s=0.3)))
    with start(repository, options) as server, Wire(server.grpc_url) as wire:
        stream = wire.call("ModelInfer", end=False)
        wire.socket.sendall(data_head(stream, 10_000) + framed(bytes(9995))[:5000])
        assert wire.answer(stream)[:2] == (1, "a message paused for 0.3 s")


def test_a_message_that_was_given_up_amid_a_frame_takes_no_memory(repository: Any, start: Any) -> None:
    """However long its sender keeps the connection."""
    size = 64 << 20
    options = replace(OPTIONS, grpc=GrpcOptions(limits=GrpcLimits(pause_s=0.3, memory=size + 4096)))
    first = b"\0" + size.to_bytes(4, "big") + bytes(15_995)
    piece = data_head(1, 1 << 14) + bytes(1 << 14)
    with start(repository, options) as server, contextlib.ExitStack() as stack:
        before = psutil.Process().memory_info().rss
        for _ in range(5):
            client = stack.enter_context(Counting(server.grpc_url))
            client.call(1, "ModelInfer", end=False)
            client.socket.sendall(data_head(1, 16_000) + first)
            while client.room.get(1, 0) < size - 16_000:
                client.read()
            for _ in range((size >> 14) - 2):
                client.socket.sendall(piece)
            client.socket.sendall(piece[:5000])
            client.answered(1)
        assert psutil.Process().memory_info().rss - before < 2 * size


# -- connections that end ----------------------------------------------------------------------------------------------


def test_a_client_that_is_sent_elsewhere_is_told_which_call_was_the_last(repository: Any, start: Any) -> None:
    keep = KeepAlive(max_connection_age_ms=300)
    options = replace(OPTIONS, grpc=GrpcOptions(keep_alive=keep))
    with start(repository, options) as server, Counting(server.grpc_url) as client:
        client.call(1, "ServerLive", b"")
        client.call(3, "ServerLive", b"")
        client.until_closed()
        assert client.ended == {1, 3}
        assert client.gone_away == [(MOST, 0), (3, 0)]


def test_pings_between_answers_that_are_only_a_status(served: RunningServer) -> None:
    """They are answers, too: a client may ping again after them, as with gRPC's own servers."""
    with Wire(served.grpc_url) as wire:
        for _ in range(6):
            wire.h2.ping()
            wire.flush()
            assert wire.answer(wire.call("Nothing", b""))[0] == 12


@pytest.mark.parametrize("is_large", [False, True], ids=["before", "after"])
def test_a_client_that_goes_away_has_its_answers_first(served: RunningServer, is_large: bool) -> None:
    with Counting(served.grpc_url) as client:
        client.settled()
        if is_large:
            client.begin_large(3)
        client.call(1 if not is_large else 9, "ModelStreamInfer", request("large", 60_000).SerializeToString())
        stream = max(client.windows)
        client.take(stream, 60_000)
        client.socket.sendall(frame(GOAWAY, 0, 0, bytes(8)))
        client.grow(0, 1 << 20)
        client.grow(stream, 1 << 20)
        client.answered(stream)
        assert client.counts(stream) == [60_000]
        client.until_closed()


# -- calls among others ------------------------------------------------------------------------------------------------


def test_calls_that_are_cancelled_amid_large_answers_take_nothing_of_the_connections_window(
    served: RunningServer,
) -> None:
    with Counting(served.grpc_url) as client:
        client.settled()
        client.begin_large(1)
        for stream in range(5, 65, 2):
            client.grow(0, 65_535)
            client.call(stream, "ModelInfer", request("large", 60_000).SerializeToString())
            client.take(stream, 30_000)
            client.socket.sendall(frame(RST, 0, stream, (8).to_bytes(4, "big")))
        client.call(99, "ModelInfer", request("large", 2_000_000).SerializeToString())
        client.grow(99, 1 << 24)
        while client.window:  # all of it is used
            client.read()


def test_trailers_amid_a_large_message(served: RunningServer) -> None:
    message = framed(request("echo", *range(100_000)).SerializeToString())
    with Counting(served.grpc_url) as client:
        client.call(1, "ModelInfer", end=False)
        for at in range(0, 60_000, 15_000):
            client.socket.sendall(frame(DATA, 0, 1, message[at : at + 15_000]))
        while client.room.get(1, 0) < 300_000:
            client.read()
        client.socket.sendall(frame(DATA, 0, 1, message[60_000:75_000]))
        client.socket.sendall(frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\0\1x\1y"))
        client.answered(1)
        assert not client.bodies[1], "a status, and no answer"
        client.call(3, "ServerLive", b"")
        client.answered(3)
        assert client.bodies[3]


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_large_messages_that_are_compressed(served: RunningServer, kind: grpc.Compression) -> None:
    values = np.random.default_rng(1).random(300_000, np.float32)
    with grpc.insecure_channel(served.grpc_url.removeprefix("grpc://")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked = request("echo", *values)
        assert len(zlib.compress(asked.raw_input_contents[0])) > 1_000_000
        for _ in range(2):
            answer = stub.ModelInfer(asked, timeout=30, compression=kind)
            assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), values)
        answers = stub.ModelStreamInfer(iter([asked, request("echo", 5), asked]), timeout=30, compression=kind)
        assert [len(each.infer_response.raw_output_contents[0]) for each in answers] == [1_200_000, 4, 1_200_000]
