"""Clients that mean harm over HTTP/2: floods of frames, header bombs, windows, streams without end or measure.

In each test memory stays within a bound, somebody else is served all the while, and whoever is refused is told by a
GOAWAY frame, or sees the end of the connection.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import urllib.request
import zlib
from collections.abc import Callable, Iterator

import pytest
from bystander import Bystander, bystander, over_grpc
from fuzzed_server import FuzzedServer, fuzzed_server
from grpc_bytes import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    header_block,
    literal,
    split_frames,
)
from grpc_cases import SERVICE, Case, Maker, framed
from grpc_run import Client, Outcome
from tritonclient.grpc import service_pb2 as pb

BOUND = 300 << 20
NO_ERROR, PROTOCOL, INTERNAL, FLOW_CONTROL, FRAME_SIZE, REFUSED, CANCEL, COMPRESSION, CALM = 0, 1, 2, 3, 6, 7, 8, 9, 11
END_STREAM, END_HEADERS = 1, 4
MEMORY = 32 << 20
"""What messages may take together, as the server is told."""
STREAMS = 1024
"""How many calls a connection may have at a time."""


def block(method: str, *more: tuple[bytes, bytes]) -> bytes:
    """The headers of a call."""
    return header_block(
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", f"{SERVICE}/{method}".encode()),
         (b":authority", b"localhost"), (b"te", b"trailers"), (b"content-type", b"application/grpc"), *more]
    )  # fmt: skip


LIVE = block("ServerLive")
INFER = block("ModelInfer")
OPEN = frame(HEADERS, END_HEADERS, 1, LIVE)


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def inference(model: str = "echo", datatype: str = "FP32", shape: tuple[int, ...] = (1, 4), size: int = 16) -> bytes:
    made = pb.ModelInferRequest(model_name=model)
    made.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    made.raw_input_contents.append(bytes(size))
    return framed(made.SerializeToString())


class Attacker:
    """A connection whose frames are made by hand. What comes is read all the time, unless it is ``deaf``."""

    def __init__(self, server: FuzzedServer, hello: bytes = frame(SETTINGS, 0, 0), *, deaf: bool = False) -> None:
        host, _, port = server.at("grpc").removeprefix("grpc://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.received = bytearray()
        self.ended = threading.Event()
        if not deaf:
            threading.Thread(target=self._read, daemon=True).start()
        self.socket.sendall(PREFACE + hello)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 16):
                self.received += data
        self.ended.set()

    def send(self, data: bytes) -> bool:
        """Sends; False when the server has ended the connection."""
        try:
            self.socket.sendall(data)
        except ConnectionError:
            return False
        return not self.ended.is_set()

    def flood(self, pieces: Callable[[int], bytes], times: int) -> bool:
        """Sends piece after piece; whether the server has put an end to it."""
        return not all(self.send(pieces(turn)) for turn in range(times)) or self.ended.wait(0)

    def frames(self, kind: int) -> list[bytes]:
        """Payloads of what has come, of one kind."""
        return [payload for each, _, _, payload in split_frames(bytes(self.received)) if each == kind]

    def told(self) -> list[int]:
        """Error codes of the GOAWAY frames that have come."""
        return [int.from_bytes(payload[4:8], "big") for payload in self.frames(GOAWAY)]

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a close alone would wait for who reads
        self.socket.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    with fuzzed_server(
        tmp_path_factory.mktemp("hostile_grpc"), "--exit-timeout-secs=5", f"--grpc-message-memory={MEMORY}"
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def other(server: FuzzedServer) -> Iterator[Bystander]:
    """Somebody else, who is served whatever a test does."""
    with over_grpc(server) as ask, bystander(server, ask, BOUND) as one:
        yield one


# -- wrong frames: one is enough ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(WINDOW, 0, 0, number(0)), PROTOCOL),
        (frame(WINDOW, 0, 0, number(2**31 - 1)) * 2, FLOW_CONTROL),
        (OPEN + frame(WINDOW, 0, 1, number(0)), PROTOCOL),
        (OPEN + frame(WINDOW, 0, 1, number(2**31 - 1)), FLOW_CONTROL),
        (frame(HEADERS, END_HEADERS, 1, LIVE + b"".join(literal(b"n%d" % at, b"v" * 4000) for at in range(4))), CALM),
        (frame(HEADERS, END_HEADERS, 1, LIVE + literal(b"n", b"v") * 300), CALM),
        (frame(WINDOW, 0, 0, b"abc"), FRAME_SIZE),
        (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)), FLOW_CONTROL),  # a window beyond measure
        (frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)), PROTOCOL),  # frames of one byte
        (frame(SETTINGS, 0, 0, b"12345"), FRAME_SIZE),
        (frame(SETTINGS, 0, 1), PROTOCOL),
        (frame(PING, 0, 0, b"1234567"), FRAME_SIZE),
        (frame(PING, 0, 1, bytes(8)), PROTOCOL),
        (frame(RST, 0, 5, number(CANCEL)), PROTOCOL),  # of a stream that never was
        (frame(DATA, 0, 5, b"x"), PROTOCOL),
        (frame(CONTINUATION, 0, 1, b""), PROTOCOL),
        (frame(PUSH, END_HEADERS, 1, number(2) + LIVE), PROTOCOL),
        (frame(HEADERS, END_HEADERS, 2, LIVE), PROTOCOL),  # an even stream is the server's
        (frame(HEADERS, END_HEADERS, 0, LIVE), PROTOCOL),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\x7f"), COMPRESSION),
        (frame(HEADERS, END_HEADERS, 1, b"\xbe"), COMPRESSION),  # of an empty table
        (frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\xff\xff\x0f" + LIVE), COMPRESSION),  # a table beyond measure
        (frame(DATA, 0, 1, b"", 2**24 - 1), FRAME_SIZE),
        (frame(HEADERS, 0, 1, LIVE) + frame(PING, 0, 0, bytes(8)), PROTOCOL),  # within a header block
    ],
    ids=lambda value: value[:24].hex() if isinstance(value, bytes) else str(value),
)
def test_a_wrong_frame_ends_the_connection(server: FuzzedServer, sent: bytes, code: int) -> None:
    with Attacker(server) as made:
        made.send(sent)
        assert made.ended.wait(30), "it is left open"
        assert made.told() == [code]


def test_what_concerns_one_stream_ends_no_other(server: FuzzedServer) -> None:
    ask = frame(HEADERS, END_HEADERS, 3, LIVE) + frame(DATA, END_STREAM, 3, framed(b""))
    for sent in (
        OPEN + frame(RST, 0, 1, number(99)),
        frame(HEADERS, END_HEADERS, 1, LIVE + literal(b"Upper", b"v")),
        frame(HEADERS, END_HEADERS, 1, header_block([(b":path", b"/")])),
        frame(HEADERS, END_HEADERS, 1, LIVE + literal(b":late", b"v")),
        frame(HEADERS, END_HEADERS, 1, LIVE + literal(b"connection", b"close")),
        frame(HEADERS, END_HEADERS, 1, LIVE + b"".join(literal(b"n%d" % at, b"v" * 3500) for at in range(4))),
    ):
        with Attacker(server) as made:
            made.send(sent + ask)
            while not made.frames(DATA):
                assert not made.ended.wait(0.01), sent
            assert made.frames(DATA)[0] == framed(pb.ServerLiveResponse(live=True).SerializeToString())


def test_another_protocol(server: FuzzedServer) -> None:
    for text in (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + bytes(600), bytes(99)):
        host, _, port = server.at("grpc").removeprefix("grpc://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as made:
            made.sendall(text)
            received = b""
            with contextlib.suppress(ConnectionError):
                while data := made.recv(4096):
                    received += data
            assert [kind for kind, *_ in split_frames(received)][-1] == GOAWAY


# -- floods ------------------------------------------------------------------------------------------------------------


def one_after_another(*frames: Callable[[int], bytes], many: int = 200) -> Callable[[int], bytes]:
    """Pieces of many turns, each of frames on a stream of its own."""
    return lambda turn: b"".join(each(2 * at + 1) for at in range(turn * many, (turn + 1) * many) for each in frames)


RAPID = one_after_another(
    lambda at: frame(HEADERS, END_HEADERS, at, INFER) + frame(DATA, END_STREAM, at, inference()),
    lambda at: frame(RST, 0, at, number(CANCEL)),
)
FLOODS: dict[str, tuple[Callable[[int], bytes], int, int]] = {
    # CVE-2023-44487
    "rapid resets": (one_after_another(
        lambda at: frame(HEADERS, END_HEADERS, at, INFER), lambda at: frame(RST, 0, at, number(CANCEL))), 12, INTERNAL),
    "rapid resets of inferences": (RAPID, 12, INTERNAL),
    # resets that the server is made to send (CVE-2025-8671)
    "refused headers": (one_after_another(
        lambda at: frame(HEADERS, END_HEADERS, at, LIVE + literal(b"Upper", b"v"))), 51, CALM),
    "settings": (lambda turn: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100)) * 500, 8, CALM),
    "long settings": (lambda turn: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100) * 2000), 1, CALM),
    "pings": (lambda turn: frame(PING, 0, 0, bytes(8)) * 500, 8, CALM),
    "priorities": (lambda turn: frame(PRIORITY, 0, 2 * turn + 1, number(0) + b"\x10") * 500, 21, CALM),
    "empty data": (lambda turn: (OPEN if not turn else b"") + frame(DATA, 0, 1) * 500, 21, CALM),
    "windows": (lambda turn: frame(WINDOW, 0, 0, number(1)) * 500, 21, CALM),
    "unknown frames": (lambda turn: frame(0x77, 0, 0, b"x" * 9) * 500, 21, CALM),
    # CVE-2024-27316
    "continuations": (
        lambda turn: (frame(HEADERS, 0, 1, LIVE) if not turn else b"") + frame(CONTINUATION, 0, 1), 20, CALM),
    "continuations with headers": (
        lambda turn: (frame(HEADERS, 0, 1, LIVE) if not turn else b"")
        + frame(CONTINUATION, 0, 1, literal(b"n", b"v" * 1000)), 20, CALM),
    "trailers": (
        lambda turn: (OPEN if not turn else b"") + frame(HEADERS, END_HEADERS, 1, literal(b"n", b"v")) * 500, 21, CALM),
}  # fmt: skip
"""Frames of a turn; in how many turns there are more of them than is borne; what the server then says."""


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_ended(server: FuzzedServer, other: Bystander, name: str) -> None:
    pieces, enough, code = FLOODS[name]
    with Attacker(server) as made:
        made.send(b"".join(map(pieces, range(enough))))
        while not made.ended.wait(1):  # a limit by the second is higher on a slow machine
            made.send(pieces(enough))
            enough += 1
        assert made.told() == [code]
    with Attacker(server) as made:  # however long it goes on: the reason may be lost behind what is still sent
        assert made.flood(pieces, 2000) or made.ended.wait(30), "it may go on for ever"
        assert made.ended.wait(30)
        assert made.told() in ([code], [])
    other.goes_on()


@pytest.mark.parametrize(
    "pieces",
    [
        lambda turn: frame(WINDOW, 0, 0, number(1)) * 1000,
        lambda turn: frame(PING, 1, 0, bytes(8)) * 1000,
        lambda turn: frame(SETTINGS, 0, 0, struct.pack(">HI", 1, turn % 2 * 4096)),
        lambda turn: (OPEN if not turn else b"") + frame(DATA, 8, 1, b"\xc8" + bytes(200)),
        one_after_another(lambda at: frame(HEADERS, 5, at, b"\x20\x3f\xe1\x1f" + LIVE), many=10),
        one_after_another(lambda at: frame(HEADERS, 5, at, LIVE + literal(b"n%d" % at, b"v" * 3900, 0x40)), many=10),
    ],
    ids=["windows", "pongs", "settings", "padding", "table sizes", "tables"],
)
def test_a_flood_that_costs_nothing_hurts_nobody(
    server: FuzzedServer, other: Bystander, pieces: Callable[[int], bytes]
) -> None:
    with Attacker(server) as made:
        for round_ in range(10):
            made.flood(lambda turn, start=round_ * 50: pieces(start + turn), 50)  # type: ignore[misc]
            other.goes_on()
        assert made.told() in ([], [CALM], [FLOW_CONTROL])


@pytest.mark.full
def test_padding_without_end_costs_no_memory(server: FuzzedServer, other: Bystander) -> None:
    """A client that does not read, with a byte of a large message in each frame: what it is told does not pile up."""
    with Attacker(server, deaf=True) as made:
        message = framed(bytes(20 << 20))
        made.send(frame(HEADERS, END_HEADERS, 1, INFER) + frame(DATA, 0, 1, message[:16_000]))
        received = b""
        while not any(kind == WINDOW and at == 1 for kind, _, at, _ in split_frames(received)):
            received += made.socket.recv(4096)
        before = server.memory()
        for _ in range(300):
            assert made.send(frame(DATA, 8, 1, b"\0x") * 10_000)
        assert server.memory() - before < 24 << 20
        other.goes_on()


@pytest.mark.full
def test_many_who_flood_at_once(server: FuzzedServer, other: Bystander) -> None:
    resets = one_after_another(
        lambda at: frame(HEADERS, END_HEADERS, at, INFER), lambda at: frame(RST, 0, at, number(8)), many=50
    )
    chance = random.Random(1)
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            many = [stack.enter_context(Attacker(server)) for _ in range(20)]
            for made in many:
                kind = chance.randrange(3)
                made.flood(resets if kind else lambda turn: frame(PING, 0, 0, bytes(8)) * 500, 20)
    other.goes_on()


# -- headers -----------------------------------------------------------------------------------------------------------


def test_a_header_bomb(server: FuzzedServer, other: Bystander) -> None:
    """A byte names a header of four KiB: what unpacks to more than a call's headers may take is refused."""
    entry = literal(b"x", b"v" * 4000, 0x40)
    with Attacker(server) as made:
        made.send(frame(HEADERS, 5, 1, LIVE + entry))
        for at in range(1, 400):
            if not made.send(frame(HEADERS, 5, 2 * at + 1, LIVE + b"\xbe" * 15_000)):
                break
        other.goes_on()


@pytest.mark.full
def test_streams_left_open(server: FuzzedServer, other: Bystander) -> None:
    """Calls begun and never gone on with, their headers as large as may be."""
    grown = server.grown()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            made = stack.enter_context(Attacker(server))
            more = b"".join(literal(b"n%d" % at, b"v" * 700) for at in range(20))
            for at in range(STREAMS):
                assert made.send(frame(HEADERS, END_HEADERS, 2 * at + 1, INFER + more))
            made.send(frame(PING, 0, 0, b"are here"))
            while b"are here" not in made.frames(PING):
                assert not made.ended.wait(0.01)
        other.goes_on()
        assert server.grown() - grown < 3 * STREAMS * 20_000 + (20 << 20)
    while server.grown() - grown > 60 << 20:
        other.goes_on()


@pytest.mark.full
def test_more_streams_than_there_may_be(server: FuzzedServer, other: Bystander) -> None:
    with Attacker(server) as made:  # which has not said that it knows the limit
        for at in range(STREAMS + 10_000):
            assert made.send(frame(HEADERS, END_HEADERS, 2 * at + 1, INFER))
        made.send(frame(PING, 0, 0, b"are here"))
        while b"are here" not in made.frames(PING):
            assert not made.ended.wait(0.05)
        assert made.frames(RST) == [number(REFUSED)] * 10_000
        made.send(frame(DATA, END_STREAM, 1, inference()))
        while not made.frames(DATA):
            assert not made.ended.wait(0.05), "the calls within the limit are answered"
        other.goes_on()
    with Attacker(server) as made:  # which has
        while not made.frames(SETTINGS):
            assert not made.ended.wait(0.01)
        made.send(frame(SETTINGS, 1, 0))
        for at in range(STREAMS + 1):
            made.send(frame(HEADERS, END_HEADERS, 2 * at + 1, INFER))
        assert made.ended.wait(30)
        assert made.told() == [PROTOCOL]


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_messages_that_stop_half_way(server: FuzzedServer, other: Bystander) -> None:
    """Two gigabytes are announced, a few bytes come: nothing is taken for what does not come."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            made = stack.enter_context(Attacker(server))
            for at in range(10):
                made.send(frame(HEADERS, END_HEADERS, 2 * at + 1, INFER))
                made.send(frame(DATA, 0, 2 * at + 1, b"\0\x7f\xff\xff\xff" + inference()[:20]))
        other.goes_on()
    other.goes_on()


@pytest.mark.parametrize("size", [2**31, 2**32 - 1])
def test_messages_beyond_measure(server: FuzzedServer, size: int) -> None:
    with Attacker(server) as made:
        made.send(frame(HEADERS, END_HEADERS, 1, INFER) + frame(DATA, 0, 1, b"\0" + number(size) + bytes(100)))
        while not made.frames(HEADERS):
            assert not made.ended.wait(0.01)
        assert b"Received message larger than max" in made.frames(HEADERS)[0] or made.frames(HEADERS), "refused at once"
        made.send(frame(HEADERS, END_HEADERS, 3, LIVE) + frame(DATA, END_STREAM, 3, framed(b"")))
        while not made.frames(DATA):
            assert not made.ended.wait(0.01), "the connection goes on"


def test_what_is_sent_beyond_the_window(server: FuzzedServer) -> None:
    """In one piece, so that the server has not opened it further meanwhile; where it has, it is tried again."""
    frames = [frame(HEADERS, END_HEADERS, 1, INFER), frame(DATA, 0, 1, b"\0\x7f\xff\xff\xff" + bytes(16_000))]
    frames += [frame(DATA, 0, 1, bytes(16_384))] * 4  # a little more than it: more, unread at the end, loses the reason
    for _ in range(20):
        with Attacker(server) as made:
            made.send(b"".join(frames))
            for _ in range(200):
                if made.ended.wait(0.01) or made.frames(RST):
                    break
            if made.told() or made.frames(RST):
                assert made.told() == [FLOW_CONTROL] or made.frames(RST) == [number(FLOW_CONTROL)]
                return
    pytest.fail("the server never says what was wrong")


@pytest.mark.full
def test_bombs_stop_at_the_limit(server: FuzzedServer, other: Bystander) -> None:
    """Messages that unpack to ten times what all messages may take together."""
    made = pb.ModelInferRequest(model_name="ints")
    made.inputs.add(name="INPUT0", datatype="INT64", shape=[1, 1 << 26])
    packer = zlib.compressobj(9, wbits=31)
    content = packer.compress(made.SerializeToString() + b"\x3a\x80\x80\x80\x80\x02")
    content += b"".join(packer.compress(bytes(16 << 20)) for _ in range(MEMORY * 10 >> 24)) + packer.flush()
    message = b"\1" + number(len(content)) + content
    pieces = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    with contextlib.ExitStack() as stack:
        for method in ("ModelInfer", "ModelStreamInfer") * 4:
            attacker = stack.enter_context(Attacker(server))
            attacker.send(frame(HEADERS, END_HEADERS, 1, block(method, (b"grpc-encoding", b"gzip"))))
            for at, piece in enumerate(pieces):
                while at * 16_000 > 60_000 and len(attacker.frames(WINDOW)) < 2 and not attacker.frames(HEADERS):
                    assert not attacker.ended.wait(0.01)  # until it is told that it may send more
                attacker.send(frame(DATA, at == len(pieces) - 1, 1, piece))
            while not attacker.frames(HEADERS):
                assert not attacker.ended.wait(0.01)
            assert b"grpc-status" in attacker.frames(HEADERS)[0] or attacker.frames(HEADERS)
            other.goes_on()


# -- answers that nobody takes -----------------------------------------------------------------------------------------


def executed(server: FuzzedServer) -> int:
    """How many requests ``zeros`` has answered."""
    with urllib.request.urlopen(f"http://{server.address}/v2/models/zeros/stats", timeout=60) as answer:
        return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])


@pytest.mark.full
@pytest.mark.parametrize("deaf", [False, True], ids=["window", "socket"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_answers_that_nobody_takes(server: FuzzedServer, other: Bystander, method: str, deaf: bool) -> None:
    """A window of nothing, or a socket that is not read, and gigabytes of answers asked for."""
    hello = frame(SETTINGS, 0, 0) if deaf else frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    asked = pb.ModelInferRequest(model_name="zeros")
    asked.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    asked.raw_input_contents.append((1 << 20).to_bytes(4, "little"))
    large = framed(asked.SerializeToString()) * (1 if method == "ModelInfer" else 3)
    ask, before = block(method), executed(server)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            made = stack.enter_context(Attacker(server, hello, deaf=deaf))
            for stream in range(1, 2000, 2):
                made.send(frame(HEADERS, END_HEADERS, stream, ask) + frame(DATA, END_STREAM, stream, large))
            other.goes_on()
        while executed(server) - before < 600:  # of which half could not be kept
            other.goes_on()
        other.goes_on(20)
    while server.grown() > 6 * MEMORY:  # until it has been given back
        other.goes_on()


@pytest.mark.full
def test_who_takes_his_answers_late_has_them_all(server: FuzzedServer) -> None:
    """More than there is room for, of one who reads: nothing is lost, or it is said."""
    client = Client(server.at("grpc").removeprefix("grpc://"), Outcome())
    asked = pb.ModelInferRequest(model_name="zeros")
    asked.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    asked.raw_input_contents.append((1 << 20).to_bytes(4, "little"))
    case = Case("late", f"{SERVICE}/ModelInfer", Maker.headers(f"{SERVICE}/ModelInfer"))
    case.data = [framed(asked.SerializeToString())]
    with client.socket:
        for _ in range(90):
            client.begin(case)
        client.finish()
    assert client.outcome.answers["0"] >= MEMORY >> 20
    assert client.outcome.answers["0"] + client.outcome.answers["8"] == 90
