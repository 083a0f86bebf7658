"""Frames cut anywhere: what libnghttp2 gets of them, what goes past it, and the windows that both leave."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import ngh2
import pytest

from workbench.server.grpc_frames import FRAME, HEAD, Frames, data_head, window_update

DATA, HEADERS, SETTINGS, PING, UPDATE = 0, 1, 4, 6, 8
END_STREAM, END_HEADERS, PADDED = 1, 4, 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Place:
    """Where the rest of a message goes."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size + HEAD)
        self.have = 0

    def place(self) -> memoryview | None:
        return memoryview(self.data)[self.have :]


class Connection:
    """What the frames are told to do: what libnghttp2 would have, frame by frame, and what messages would."""

    def __init__(self) -> None:
        self.frames = Frames(self)
        self.frames.takes_updates = True
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.places: dict[int, Place] = {}
        self.past: dict[int, int] = {}  # bytes that the client was given more to send
        self.others: list[bytes] = []  # frames that libnghttp2 has had beside DATA
        self.windows: list[tuple[int, int]] = []
        self.first_windows: list[int] = []
        self._rest = b""
        self._preface = 24

    def pass_on(self, data: Any) -> bool:
        piece = bytes(data)
        skipped = min(self._preface, len(piece))
        self._preface -= skipped
        self._rest += piece[skipped:]
        while len(self._rest) >= HEAD and len(self._rest) >= HEAD + (size := int.from_bytes(self._rest[:3], "big")):
            whole, self._rest = self._rest[: HEAD + size], self._rest[HEAD + size :]
            stream = int.from_bytes(whole[5:HEAD], "big")
            if whole[3] != DATA:
                self.others.append(whole)
                continue
            payload = whole[HEAD:]
            if whole[4] & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            self._body(stream, payload)
            if whole[4] & END_STREAM:
                self.ended.add(stream)
        return True

    def has_half_a_data_frame(self) -> bool:
        return len(self._rest) >= HEAD and self._rest[3] == DATA

    def _body(self, stream: int, data: bytes) -> None:
        assert stream not in self.ended
        self.bodies[stream] = self.bodies.get(stream, b"") + data

    def came(self, stream_id: int, size: int) -> None:
        place = self.places[stream_id]
        self._body(stream_id, bytes(place.data[place.have : place.have + size]))
        place.have += size
        self.past[stream_id] -= size

    def knows(self, stream_id: int, size: int) -> bool:
        return True

    def grow(self, stream_id: int, size: int) -> bool:
        self.windows.append((stream_id, size))
        return True

    def first_window(self, size: int) -> bool:
        self.first_windows.append(size)
        return True

    def credit(self, stream_id: int, size: int) -> None:
        pass

    def flooded(self) -> None:
        raise AssertionError("no flood")

    def expect(self, stream: int, size: int) -> None:
        """A message on a stream of which ``size`` bytes are to come."""
        place = self.places[stream] = Place(size)
        self.past[stream] = self.frames.expect(stream, place, size)

    def receive(self, data: bytes, chance: random.Random) -> None:
        """As a connection reads: to where a message is put together, where it can be, else as it comes."""
        while data:
            place = self.frames.place()
            if place is None or not chance.randrange(4):
                assert self.frames.add(data)
                return
            size = min(len(place), len(data))
            place[:size] = data[:size]
            assert self.frames.read(place, size)
            data = data[size:]


def conversation(chance: random.Random, streams: Sequence[int]) -> tuple[list[bytes], dict[int, bytes]]:
    """Frames of any kind, and the bodies of their streams."""
    frames: list[bytes] = []
    bodies = dict.fromkeys(streams, b"")
    open_streams = list(streams)
    while open_streams:
        kind, stream = chance.randrange(12), chance.choice(open_streams)
        if kind == 0:
            frames.append(window_update(chance.choice((0, stream)), chance.randrange(1, 1000)))
        elif kind == 1:
            entries = [(4, chance.randrange(2**31)), (3, 100), (5, 16_384)][: chance.randrange(4)]
            frames.append(frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in entries)))
        elif kind == 2:
            frames.append(frame(chance.choice((PING, 0x77)), 0, 0, bytes(8)))
        elif kind == 3:  # trailers would end it: as a header block in two
            frames += [frame(HEADERS, 0, 99, b"x" * 50), frame(9, END_HEADERS, 99, bytes(chance.randrange(20)))]
        else:
            data = chance.randbytes(chance.choice((1, 9, 300, 5000, 16_384, 50_000)))
            is_last = not chance.randrange(12)
            flags, payload = END_STREAM * is_last, data
            if not chance.randrange(4):
                padding = chance.choice((0, 1, 200))
                flags, payload = flags | PADDED, bytes((padding,)) + data + bytes(padding)
            frames.append(frame(DATA, flags, stream, payload))
            bodies[stream] += data
            if is_last:
                open_streams.remove(stream)
    return frames, bodies


@pytest.mark.parametrize("seed", range(40))
def test_frames_cut_anywhere(seed: int) -> None:
    """Every byte comes once and in its place, ends come behind them; libnghttp2 never has half a DATA frame."""
    chance = random.Random(seed)
    streams = (1, 3, 5)
    frames, bodies = conversation(chance, streams)
    made = Connection()
    sent = bytes(24) + b"".join(frames)
    position = 0
    while position < len(sent):
        size = chance.choice((1, 8, 9, 10, 13, 100, 4000, 20_000, 100_000))
        made.receive(sent[position : position + size], chance)
        position += size
        assert not made.has_half_a_data_frame()
        stream = chance.choice(streams)
        if stream not in made.frames.expected and stream not in made.ended and not chance.randrange(3):
            missing = len(bodies[stream]) - len(made.bodies.get(stream, b""))
            made.expect(stream, chance.randint(0, missing))
    assert made.bodies == {stream: body for stream, body in bodies.items() if body}
    assert made.ended == set(streams)
    assert not any(made.past.values()), "what goes past libnghttp2 is what the client was given more to send"
    updates = [each for each in frames if each[3] == UPDATE]
    assert len(made.windows) == len(updates)
    entries = [each[at : at + 6] for each in frames if each[3] == SETTINGS for at in range(HEAD, len(each), 6)]
    assert made.first_windows == [int.from_bytes(each[2:], "big") for each in entries if each[1] == 4]
    others = [each for each in frames if each[3] not in (DATA, UPDATE)]
    assert [each[3:HEAD] for each in made.others] == [each[3:HEAD] for each in others], "in their order"
    told = [each[at : at + 6] for each in made.others if each[3] == SETTINGS for at in range(HEAD, len(each), 6)]
    assert told == [each for each in entries if each[1] != 4]


class Library:
    """A connection on libnghttp2 itself, which acknowledges all that it is handed."""

    def __init__(self) -> None:
        self.h2 = ngh2.Connection(ngh2.Role.SERVER, ngh2.Configuration(auto_window_update=False))
        self.h2.initiate_connection({ngh2.Setting.MAX_FRAME_SIZE: FRAME})
        self.frames = Frames(self)  # type: ignore[arg-type]

    def pass_on(self, data: Any) -> bool:
        self.h2.receive_data(data)
        for event in self.h2.events():
            if isinstance(event, ngh2.DataReceived):
                self.h2.acknowledge_received_data(len(event.data), event.stream_id)
        return True


@pytest.mark.parametrize("padding", [-1, 0, 100])
def test_a_call_that_is_ended_amid_a_frame_takes_nothing_of_the_connections_window(padding: int) -> None:
    server, client = Library(), ngh2.Connection(ngh2.Role.CLIENT)
    client.initiate_connection()
    head = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"localhost")]
    payload = bytes(12_000) if padding < 0 else bytes((padding,)) + bytes(12_000 + padding)
    for _ in range(30):
        stream = client.send_request([*head])
        assert server.frames.add(client.data_to_send())
        sent = frame(DATA, PADDED * (padding >= 0), stream, payload)
        for begin, end in ((0, 5), (5, 10), (10, 4000), (4000, 9000)):
            assert server.frames.add(sent[begin:end])
        server.h2.reset_stream(stream)
        client.receive_data(server.h2.data_to_send())
        assert server.frames.add(sent[9000:])
        client.receive_data(server.h2.data_to_send())
    # the client's library has sent none of this: what it may send is what it was given at first, and since
    assert client.remote_window_size - 30 * len(payload) > 20_000


def test_a_late_update_is_counted_once() -> None:
    """What concerns a call that is over libnghttp2 is told; that makes it no two."""
    made = Connection()
    made.grow = lambda stream_id, size: None  # type: ignore[assignment,method-assign,return-value]
    made.knows = lambda stream_id, size: False  # type: ignore[method-assign]
    assert made.frames.add(bytes(24))
    for _ in range(100):
        assert made.frames.add(window_update(1, 5) * 3)
    assert made.frames.idle_updates == 300
    assert made.others == [window_update(1, 5)] * 300


def test_the_end_of_a_frame_that_libnghttp2_is_told_in_parts() -> None:
    made = Connection()
    made.receive(bytes(24) + data_head(1, 1000, END_STREAM) + bytes(400), random.Random(0))
    assert (len(made.bodies[1]), made.ended) == (400, set())
    made.receive(bytes(600), random.Random(0))
    assert (len(made.bodies[1]), made.ended) == (1000, {1})


@pytest.mark.parametrize("sent", [window_update(0, 5), frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 5))])
def test_the_beginning_of_windows_that_libnghttp2_has(sent: bytes) -> None:
    """As long as it has half of them nobody else may begin to count."""
    made = Connection()
    made.frames.takes_updates = False
    for data, is_inside in ((bytes(24), False), (sent[:4], False), (sent[4:11], True), (sent[11:], False)):
        assert made.frames.add(data)
        assert made.frames.in_update == is_inside
    assert made.others == [sent]
