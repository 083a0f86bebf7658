"""A connection's first large answer: from it on the server frames what it sends, and counts the windows, itself; but
where something else is on its way then, which it leaves to libnghttp2.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from counting_client import DATA, GOAWAY, RST, Counting, frame
from grpc_models import LARGE_ANSWERS, put, request, values_of
from tritonclient.grpc import service_pb2_grpc

from workbench.server import RunningServer, ServerOptions

LIBRARYS = 16_384
"""Bytes of the largest frame that libnghttp2 makes, whatever a client allows."""

MOST_FRAME = 1 << 20
COUNT = 60_000
SIZE = 4 * COUNT


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("first")
    put(root, "large", LARGE_ANSWERS)
    with start(root, ServerOptions(name="first", exit_timeout_s=5.0)) as server:
        yield server


@pytest.fixture
def client(served: RunningServer) -> Iterator[Counting]:
    """One that takes large frames, and much."""
    with Counting(served.grpc_url) as made:
        made.allow_frames(MOST_FRAME)
        made.grow(0, 1 << 28)
        made.settled()
        yield made


def ask(count: int) -> bytes:
    return bytes(request("large", count).SerializeToString())


@pytest.mark.parametrize("before", [0, 3])
def test_a_single_call(client: Counting, before: int) -> None:
    for stream in range(101, 101 + 2 * before, 2):
        client.call(stream, "ModelInfer", ask(50))
        client.answered(stream)
    client.call(201, "ModelInfer", ask(COUNT))
    client.grow(201, 1 << 20)
    client.answered(201)
    assert client.largest[201] > LIBRARYS
    assert client.counts(201, single=True) == [COUNT]


def test_several_at_once(client: Counting) -> None:
    client.settle(1 << 20)
    client.settled()
    for stream in (1, 3, 5, 7):
        client.call(stream, "ModelInfer", ask(COUNT))
    for stream in (1, 3, 5, 7):
        client.answered(stream)
        assert client.largest[stream] > LIBRARYS
        assert client.counts(stream, single=True) == [COUNT]


def test_a_stream_that_was_sent_small_answers(client: Counting) -> None:
    """What of its window they have taken is known."""
    client.call(1, "ModelStreamInfer", ask(10), ask(9000), end=False)
    client.take(1, 4 * 9010)
    client.ask(1, COUNT)
    client.take(1, 65_535)  # up to the window's last byte, and ``Counting`` takes no more
    client.grow(1, 1 << 20)
    client.end(1)
    client.answered(1)
    assert client.largest[1] > LIBRARYS
    assert client.counts(1) == [10, 9000, COUNT]


def test_behind_small_answers_that_wait_for_their_window(client: Counting) -> None:
    """Those are libnghttp2's, and so is what comes while they wait; the next one is not."""
    client.call(1, "ModelStreamInfer", *[ask(5000)] * 6, end=False)
    client.take(1, 65_535)
    client.call(3, "ModelInfer", ask(COUNT))
    client.grow(3, 1 << 20)
    client.answered(3)
    assert client.largest[3] <= LIBRARYS
    client.grow(1, 1 << 20)
    client.take(1, 6 * 20_000)
    client.ask(1, COUNT)
    client.end(1)
    client.answered(1)
    assert client.largest[1] > LIBRARYS
    assert client.counts(1) == [5000] * 6 + [COUNT]


def test_small_answers_of_a_call_whose_window_is_shut(client: Counting) -> None:
    """The large one of another call does not wait for it, and what it waits with is not lost."""
    client.settle(0)
    client.settled()
    client.call(1, "ModelInfer", ask(50))
    client.call(3, "ModelInfer", ask(COUNT))
    client.grow(3, 1 << 20)
    client.answered(3)
    client.grow(1, 1 << 20)
    client.answered(1)
    assert [client.counts(stream, single=True) for stream in (1, 3)] == [[50], [COUNT]]


@pytest.mark.parametrize("cut", [0, 3, 9, 11])
@pytest.mark.parametrize("what", ["call", "connection", "first"])
def test_a_window_that_is_half_here(served: RunningServer, what: str, cut: int) -> None:
    """The frame that opens it comes in two pieces, and the answer between them: it counts once."""
    with Counting(served.grpc_url) as client:
        client.allow_frames(MOST_FRAME)
        client.settled()
        client.call(1, "ModelInfer", end=False)
        more = {
            "call": lambda: client.growing(1, 1 << 20),
            "connection": lambda: client.growing(0, 1 << 20),
            "first": lambda: client.settling(1 << 20),
        }[what]()
        asked = ask(COUNT)
        head = len(asked).to_bytes(4, "big")
        client.socket.sendall(frame(DATA, 1, 1, b"\0" + head + asked) + more[:cut])
        if what != "first" or cut:
            client.read_until(DATA)
        client.socket.sendall(more[cut:])
        if what != "call":
            client.grow(1, 1 << 20)
        if what != "connection":
            client.grow(0, 1 << 20)
        client.answered(1)
        assert client.counts(1, single=True) == [COUNT]


@pytest.mark.parametrize("when", ["at_once", "amid"])
def test_the_call_is_reset(served: RunningServer, when: str) -> None:
    """It takes nothing of the connection's window that it was not sent, and the next one is answered."""
    with Counting(served.grpc_url) as client:
        client.allow_frames(MOST_FRAME)
        client.settled()
        reset = frame(RST, 0, 1, (8).to_bytes(4, "big"))
        client.call(1, "ModelInfer", ask(COUNT))
        if when == "amid":
            client.take(1, 30_000)
        client.socket.sendall(reset)
        client.call(3, "ModelInfer", ask(COUNT))
        client.grow(3, 1 << 20)
        client.grow(0, 1 << 20)
        client.answered(3)
        assert client.counts(3, single=True) == [COUNT]
        client.call(5, "ModelInfer", ask(1_000_000))
        client.grow(5, 1 << 24)
        while client.window:  # all of it is used
            client.read()


@pytest.mark.parametrize("when", ["before", "amid"])
def test_the_client_goes_away(served: RunningServer, when: str) -> None:
    with Counting(served.grpc_url) as client:
        client.settled()
        away = frame(GOAWAY, 0, 0, bytes(8))
        client.call(1, "ModelInfer", ask(COUNT))
        if when == "amid":
            client.take(1, 30_000)
        client.socket.sendall(away)
        client.grow(0, 1 << 20)
        client.grow(1, 1 << 20)
        client.answered(1)
        assert client.counts(1, single=True) == [COUNT]
        client.until_closed()


def test_a_call_that_begins_in_the_piece_that_lets_the_answer_go(client: Counting) -> None:
    """Its window was opened in the same piece: that counts, too."""
    client.call(1, "ModelInfer", ask(COUNT))
    client.grow(1, 1 << 20)
    client.windows[3], client.bodies[3] = client.first_window, b""
    asked = ask(2 * COUNT)
    data = b"\0" + len(asked).to_bytes(4, "big") + asked
    client.socket.sendall(client.heading(3, "ModelInfer") + client.growing(3, 1 << 20) + frame(DATA, 1, 3, data))
    client.answered(1)
    client.answered(3)
    assert client.counts(3, single=True) == [2 * COUNT]


def test_a_client_that_reads_late(client: Counting) -> None:
    """More small answers than its socket takes, then a large one, and windows that just hold them."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    count, small = 300, 16_000
    client.call(1, "ModelStreamInfer", *[ask(small)] * count, end=False)
    client.take(1, 65_000)
    client.grow(1, count * 4 * small)
    client.call(3, "ServerLive", b"")
    while not client.bodies[3]:
        client.read()
    client.call(5, "ModelStreamInfer", ask(5), ask(COUNT))
    client.grow(5, 1 << 20)
    client.ask(1, COUNT)
    client.grow(1, 1 << 20)
    client.end(1)
    client.answered(1)
    client.answered(5)
    assert client.counts(1) == [small] * count + [COUNT]
    assert client.counts(5) == [5, COUNT]


@pytest.mark.parametrize("seed", range(8))
def test_any_order(served: RunningServer, seed: int) -> None:
    """Small and large answers, calls that are reset, windows that grow when they please."""
    chance = random.Random(seed)
    with Counting(served.grpc_url, chance.choice((0, 700, 65_535, 1 << 20))) as client:
        client.allow_frames(chance.choice((LIBRARYS, MOST_FRAME)))
        client.settled()
        asked: dict[int, list[int]] = {}
        reset: set[int] = set()
        for stream in range(1, 17, 2):
            asked[stream] = [chance.choice((1, 50, 4000, 17_000, COUNT)) for _ in range(chance.choice((1, 1, 4)))]
            client.call(stream, "ModelStreamInfer", *map(ask, asked[stream]))
            if not chance.randrange(4):
                client.socket.sendall(frame(RST, 0, stream, (8).to_bytes(4, "big")))
                reset.add(stream)
            while client.may_read(0.002 * chance.randrange(3)):
                client.read()
        while len(client.ended | reset) < len(asked):
            for stream in asked:
                if stream not in client.ended | reset and client.windows[stream] < 100_000 and chance.randrange(2):
                    client.grow(stream, chance.choice((1, 5000, 300_000)))
            if client.window < 200_000:
                client.grow(0, chance.choice((1, 40_000, 500_000)))
            while client.may_read(0.002):
                client.read()
            assert not client.gone_away
        for stream in asked.keys() - reset:
            assert client.counts(stream) == asked[stream]
        client.call(99, "ServerLive", b"")
        client.grow(99, 100)
        client.grow(0, 100)
        client.answered(99)


@pytest.mark.parametrize("size", [COUNT, 4_000_000])
def test_a_channel_of_grpc(served: RunningServer, size: int) -> None:
    """gRPC's own core takes it, on a connection of its own each time."""
    for _ in range(3):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(served.grpc_url.removeprefix("grpc://"), options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert len(values_of(stub.ModelInfer(request("large", size), timeout=30))) == size
            stream = stub.ModelStreamInfer(iter([request("large", 5), request("large", size)]), timeout=30)
            assert [len(each.infer_response.raw_output_contents[0]) // 4 for each in stream] == [5, size]
