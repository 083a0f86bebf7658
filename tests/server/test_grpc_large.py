"""Large messages over gRPC, frame by frame: cut anywhere, padded, among other frames; answers within small windows."""

from __future__ import annotations

import random
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import ngh2
import numpy as np
import pytest
from grpc_models import LARGE_ANSWERS, Wire, framed, put, request, write_models
from tritonclient.grpc import service_pb2 as pb

from workbench.server import RunningServer, ServerOptions
from workbench.server.grpc_frames import Frames, data_head, window_update
from workbench.server.grpc_send import Outgoing, Overflow

WINDOW = 65_535
END_STREAM, PADDED = 1, 8


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    root = write_models(tmp_path_factory.mktemp("large"))
    put(root, "large", LARGE_ANSWERS)
    with start(root, ServerOptions(name="large", exit_timeout_s=5.0)) as server:
        yield server


class Sender:
    """Sends a call's DATA frames by hand, within the window that the server gives; ``room`` is what is left of it."""

    def __init__(self, wire: Wire, method: str, seed: int) -> None:
        self.wire = wire
        self.stream = wire.call(method, end=False)
        self.chance = random.Random(seed)
        self.room = WINDOW
        self.events: list[Any] = []
        self._unread = b""

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Frames of any size, some with padding, some cut in two on their way, other calls between them."""
        while data:
            size = min(len(data), self.chance.choice((1, 9, 500, 16_384, 40_000, 60_000)))
            padding = self.chance.choice((0, 0, 1, 200))
            while self.room < min(size, 300) + padding + 1:
                self.read()
            size = min(size, self.room - padding - 1)  # as clients do: the server may wait for what still fits
            flags = (PADDED if padding else 0) | (END_STREAM if last and size == len(data) else 0)
            payload = bytes([padding]) * bool(padding) + data[:size] + bytes(padding)
            self.room -= len(payload)
            sent = struct.pack(">I", len(payload))[1:] + bytes((0, flags)) + struct.pack(">I", self.stream) + payload
            cut = self.chance.choice((0, 3, len(sent) // 2, len(sent) - 1))
            self.wire.socket.sendall(sent[:cut])
            self.wire.socket.sendall(sent[cut:])
            if not self.chance.randrange(8):
                self.wire.call("ServerLive", b"")
            data = data[size:]

    def read(self) -> None:
        """What the server says next. The client's library hears of no windows: it does not know what is sent here."""
        got = self.wire.socket.recv(1 << 16)
        assert got, "closed"
        self._unread += got
        while len(self._unread) >= 9 and len(self._unread) >= 9 + (size := int.from_bytes(self._unread[:3], "big")):
            kind, stream = self._unread[3], int.from_bytes(self._unread[5:9], "big")
            if kind != 8:
                self.wire.h2.receive_data(self._unread[: 9 + size])
            elif stream == self.stream:
                self.room += int.from_bytes(self._unread[9:13], "big")
            self._unread = self._unread[9 + size :]
        self.events += [each for each in self.wire.h2.events() if getattr(each, "stream_id", 0) == self.stream]
        self.wire.flush()

    def body(self) -> bytes:
        """What has been answered."""
        return b"".join(each.data for each in self.events if isinstance(each, ngh2.DataReceived))

    def status(self) -> bytes:
        """How the call ended."""
        while True:
            for each in self.events:
                if b"grpc-status" in (head := dict(getattr(each, "headers", ()))):
                    return bytes(head[b"grpc-status"])
            self.read()


@pytest.fixture
def wire(served: RunningServer) -> Iterator[Wire]:
    with Wire(served.grpc_url, window=2**31 - 1) as made:
        made.h2.set_local_window_size(2**31 - 1)
        while not any(isinstance(each, ngh2.SettingsReceived) for each in made.read()):
            pass  # from then on frames may be larger
        yield made


def numbers(count: int) -> Any:
    return request("echo", *range(count)).SerializeToString()


@pytest.mark.parametrize("seed", range(4))
def test_a_large_message_in_frames_of_any_kind(wire: Wire, seed: int) -> None:
    sender = Sender(wire, "ModelInfer", seed)
    sender.send(framed(numbers(200_000)), last=True)
    assert sender.status() == b"0"
    answer = pb.ModelInferResponse.FromString(sender.body()[5:])
    assert np.array_equal(
        np.frombuffer(answer.raw_output_contents[0], np.float32), np.arange(200_000, dtype=np.float32)
    )


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_a_stream_and_the_window_after_them(wire: Wire, seed: int) -> None:
    sender = Sender(wire, "ModelStreamInfer", seed)
    counts = (200_000, 3, 50_000, 20_000, 100_000)
    sender.send(b"".join(framed(numbers(count)) for count in counts))
    while len(sender.body()) < 4 * sum(counts):
        sender.read()
    assert 0 < sender.room <= WINDOW, (
        "a call may send no more than its window before the server says that it takes more"
    )
    sender.send(framed(numbers(1)), last=True)
    assert sender.status() == b"0"
    body, found = sender.body(), []
    while body:
        size = int.from_bytes(body[1:5], "big")
        answer = pb.ModelStreamInferResponse.FromString(body[5 : 5 + size]).infer_response
        found.append(len(answer.raw_output_contents[0]) // 4)
        body = body[5 + size :]
    assert found == [*counts, 1]


def test_a_large_message_that_ends_too_early(wire: Wire) -> None:
    sender = Sender(wire, "ModelInfer", 1)
    sender.send(framed(numbers(200_000))[:-70_000], last=True)
    assert sender.status() == b"13"


@pytest.mark.parametrize("window", [1, 1000, 300_000])
def test_answers_within_the_windows(served: RunningServer, window: int) -> None:
    """The client's library ends the connection where its windows are not kept."""
    count = 500 if window == 1 else 300_000
    with Wire(served.grpc_url, window=window) as wire:
        status, _, body = wire.answer(wire.call("ModelInfer", request("large", count).SerializeToString()))
        assert status == 0
        assert len(pb.ModelInferResponse.FromString(body[5:]).raw_output_contents[0]) == 4 * count


class Cut(Wire):
    """A connection whose bytes come in pieces of any size, the ends of which the server hears a while apart."""

    def __init__(self, url: str, *, window: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rest = b""
        super().__init__(url, window=window)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def flush(self) -> None:
        """Sends what is to be sent, but for its end, which goes with what follows or when nothing else comes."""
        data = self.rest + self.h2.data_to_send()
        self.rest = b""
        if len(data) > 13 and self.chance.randrange(2):
            kept = self.chance.randrange(1, 13)
            data, self.rest = data[:-kept], data[-kept:]
        self.socket.sendall(data)

    def read(self) -> list[Any]:
        """As ``Wire``'s."""
        while self.rest and not select.select([self.socket], [], [], 0.005)[0]:
            self.socket.sendall(self.rest)
            self.rest = b""
        return super().read()


@pytest.mark.parametrize("seed", range(6))
def test_small_and_large_answers_of_calls_that_run_together(served: RunningServer, seed: int) -> None:
    """From the first large one on the server keeps the windows itself: no byte too much, and none that never comes."""
    with Cut(served.grpc_url, window=2000, seed=seed) as wire:
        chance = random.Random(seed)
        sizes = {}
        for turn in range(6):
            counts = [chance.choice((1, 40, 600)) for _ in range(20)]
            if turn != 1:
                counts.insert(chance.randrange(20), 60_000)
            stream = wire.call("ModelStreamInfer", *(request("large", n).SerializeToString() for n in counts))
            sizes[stream] = counts
        bodies: dict[int, bytes] = dict.fromkeys(sizes, b"")
        ended = {}
        while len(ended) < len(sizes):
            events = wire.read()
            assert not wire.closed
            for event in events:
                if isinstance(event, ngh2.DataReceived):
                    bodies[event.stream_id] += event.data
                    wire.h2.acknowledge_received_data(len(event.data), event.stream_id)
                elif isinstance(event, ngh2.TrailersReceived):
                    ended[event.stream_id] = dict(event.headers)[b"grpc-status"]
            wire.flush()
        for stream, counts in sizes.items():
            body, found = bodies[stream], []
            while body:
                size = int.from_bytes(body[1:5], "big")
                answer = pb.ModelStreamInferResponse.FromString(body[5 : 5 + size]).infer_response
                found.append(len(answer.raw_output_contents[0]) // 4)
                body = body[5 + size :]
            assert (found, ended[stream]) == (counts, b"0")


def ask(wire: Wire, stream: int, count: int) -> None:
    wire.h2.send_data(stream, framed(request("large", count).SerializeToString()))
    wire.flush()


def take(wire: Wire, stream: int, size: int, *, acknowledge: bool) -> None:
    """Reads at least ``size`` bytes of answers on a stream."""
    while size > 0:
        events = wire.read()
        assert not wire.closed
        for event in events:
            if isinstance(event, ngh2.DataReceived) and event.stream_id == stream:
                size -= len(event.data)
                if acknowledge:
                    wire.h2.acknowledge_received_data(len(event.data), stream)
        wire.flush()


def test_what_a_call_was_sent_before_the_first_large_answer_counts(served: RunningServer) -> None:
    with Wire(served.grpc_url, window=2000) as wire:
        first = wire.call("ModelStreamInfer", end=False)
        ask(wire, first, 200)
        take(wire, first, 800, acknowledge=False)
        assert wire.answer(wire.call("ModelInfer", request("large", 60_000).SerializeToString()))[0] == 0
        ask(wire, first, 60_000)
        take(wire, first, 240_000, acknowledge=True)  # the library ends the connection where too much comes


@pytest.mark.parametrize("cut", [0, 3, 10])
def test_what_a_call_may_be_sent_more_before_the_first_large_answer_counts(served: RunningServer, cut: int) -> None:
    """Also where the frame that says so is cut in two, and the answer is sent in between."""
    with Wire(served.grpc_url, window=1 << 20) as wire:
        wire.h2.set_local_window_size(2**31 - 1)
        first = wire.call("ModelStreamInfer", end=False)
        ask(wire, first, 1)
        take(wire, first, 4, acknowledge=False)
        wire.h2.set_local_window_size(4 << 20, stream_id=first)
        update = wire.h2.data_to_send()
        second = wire.call("ModelStreamInfer", end=False)
        wire.h2.send_data(second, framed(request("large", 60_000).SerializeToString()))
        wire.socket.sendall(wire.h2.data_to_send() + update[: cut or 13])
        take(wire, second, 240_000, acknowledge=False)
        wire.socket.sendall(update[cut or 13 :])
        ask(wire, second, 60_000)
        take(wire, second, 240_000, acknowledge=False)
        ask(wire, first, 500_000)
        take(wire, first, 2_000_000, acknowledge=False)


def outgoing() -> Outgoing:
    """What a connection sends without libnghttp2 from its first answer on."""
    server = ngh2.Connection(ngh2.Role.SERVER)
    server.initiate_connection({})
    return Outgoing(server, ())


class Told:
    """A connection whose calls are over: what libnghttp2 is told."""

    def __init__(self) -> None:
        self.data = b""

    def pass_on(self, data: Any) -> bool:
        self.data += bytes(data)
        return True

    def knows(self, stream_id: int, size: int) -> bool:
        return False

    def grow(self, stream_id: int, size: int) -> None:
        return None


@pytest.mark.parametrize(
    ("first", "parts"),
    [
        (data_head(3, 100), (data_head(3, 50) + b"x" * 50) * 2),
        (data_head(3, 100, 8), data_head(3, 100, 8) + b"x" * 100),
        (b"\0\0\x64\1\0\0\0\0\5", b"\0\0\x64\1\0\0\0\0\5" + b"x" * 100),
    ],
    ids=["data", "padded", "headers"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_late_window_is_told_before_the_frame_that_follows_it(first: bytes, parts: bytes, count: int) -> None:
    """It is of a call that is over, and the frame is cut: in it the window would be taken for its payload."""
    told = Told()
    frames = Frames(told)  # type: ignore[arg-type]
    frames.takes_updates = True
    sent = bytes(24) + window_update(1, 5) * count + first + b"x" * 100
    for begin, end in ((0, 24), (24, len(sent) - 50), (len(sent) - 50, len(sent))):
        assert frames.add(sent[begin:end])
    assert told.data == bytes(24) + window_update(1, 5) * count + parts


def wait_for_large(wire: Wire) -> None:
    """From then on the server keeps the windows itself."""
    for _ in range(2):
        assert wire.answer(wire.call("ModelInfer", request("large", 60_000).SerializeToString()))[0] == 0


def test_calls_end_whose_windows_are_shut_at_first(served: RunningServer) -> None:
    with Wire(served.grpc_url) as wire:
        wait_for_large(wire)
        wire.h2.update_settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
        wire.flush()
        while not any(isinstance(each, ngh2.SettingsAcknowledged) for each in wire.read()):
            pass
        for _ in range(3):
            stream = wire.call("ModelInfer", request("large", 50).SerializeToString())
            wire.h2.set_local_window_size(4000, stream_id=stream)
            wire.flush()
            assert wire.answer(stream)[0] == 0


def test_a_window_below_nothing_when_the_first_large_answer_comes(served: RunningServer) -> None:
    with Wire(served.grpc_url, window=5000) as wire:
        first = wire.call("ModelStreamInfer", end=False)
        ask(wire, first, 1000)
        take(wire, first, 4000, acknowledge=False)
        wire.h2.update_settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 100})
        wire.flush()
        wait_for_large(wire)
        ask(wire, first, 60_000)
        wire.h2.update_settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 20_000})
        wire.flush()
        take(wire, first, 240_000, acknowledge=True)  # the library ends the connection where too much comes


@pytest.mark.parametrize("large", [False, True])
def test_windows_between_answers_are_no_flood(served: RunningServer, large: bool) -> None:
    with Wire(served.grpc_url) as wire:
        if large:
            wait_for_large(wire)
        for _ in range(60):
            wire.socket.sendall(window_update(0, 1) * 300)
            status, _, _ = wire.answer(wire.call("ModelInfer", request("large", 5).SerializeToString()))
            assert status == 0


def test_what_is_dropped_leaves_nothing() -> None:
    out = outgoing()
    out.add(1, bytes(65_535))
    assert out.take(1 << 20).size == 65_535
    for stream in range(3, 201, 2):
        out.add(stream, bytes(1000))
        out.drop(stream)
    assert out.queued == 0
    out.grow(0, 500)
    assert not out.sendable
    out.add(201, bytes(1000))
    assert out.take(1 << 20).size == 500


def test_a_window_that_grew_before_much_was_sent() -> None:
    out = outgoing()
    out.grow(1, 2**31 - 1 - 65_535)
    out.add(1, bytes(20_000))
    assert out.take(1 << 20).size == 20_000
    out.settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 65_635})
    out.add(1, bytes(20_000))
    assert out.take(1 << 20).size == 20_000


def test_a_window_that_shrinks_before_a_small_answer_is_sent() -> None:
    out = outgoing()
    out.add(1, bytes(1000))
    out.settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 10})
    assert out.take(9999).size == 10


def test_a_window_that_changes_while_an_answer_waits() -> None:
    out = outgoing()
    out.settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 10})
    out.add(1, bytes(100))
    assert out.waiting(1) == 100
    assert out.take(1000).size == 10
    out.settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 5})
    out.grow(1, 5)
    assert not out.sendable, "what is sent is more than the window is now"
    out.grow(1, 3)
    assert out.take(1000).size == 3
    assert not out.end(3, ())
    assert out.end(1, ((b"grpc-status", b"0"),))
    out.grow(1, 1000)
    assert out.take(1000)[1:] == (87, [(1, ((b"grpc-status", b"0"),))])
    assert out.queued == 0
    with pytest.raises(Overflow):
        out.grow(1, 2**31 - 1)
