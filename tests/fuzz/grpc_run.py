"""Sends calls and frames to a live gRPC port and looks at all that comes back."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import ngh2
from fuzzed_server import MODELS, FuzzedServer
from google.protobuf.message import DecodeError
from grpc_bytes import HEADERS, PREFACE, SETTINGS, conversation, frame, header_block, mutated, split_frames
from grpc_cases import KINDS, SERVICE, STREAMS, Case, Maker, framed

STATUSES = {0, 1, 3, 4, 5, 6, 8, 12, 13, 14}
"""OK, CANCELLED (a message that paused), INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS,
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE: what Triton ends calls with."""
AT_ONCE = 16
PATIENCE_S = 60.0
_TEXT = re.compile(rb"(?:[ -$&-~]|%[0-9A-F]{2})*")
_INFER = f"{SERVICE}/ModelInfer"
_STREAM = f"{SERVICE}/ModelStreamInfer"


class Broken(AssertionError):
    """What came is no well-formed answer."""


@dataclass
class Outcome:
    """What came of a run: how calls ended, by status; how many inputs of each kind; how many echoes were compared."""

    inputs: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    """Well-ended calls by method."""
    answers: Counter[str] = field(default_factory=Counter)
    compared: int = 0

    def text(self) -> str:
        """For people."""
        return (
            f"{self.inputs} inputs in {self.seconds:.0f} s ({self.inputs / self.seconds:.0f}/s); "
            f"endings {dict(sorted(self.answers.items()))}; {self.compared} echoes compared; "
            f"inputs by kind {dict(sorted(self.kinds.items()))}; well ended {dict(sorted(self.methods.items()))}"
        )


@dataclass
class _Answer:
    case: Case
    heads: list[dict[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)


class Client:
    """A connection with several calls at a time."""

    def __init__(self, address: str, outcome: Outcome) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(peer_max_concurrent_streams=100))
        self.h2.initiate_connection()
        self.outcome = outcome
        self.open: dict[int, _Answer] = {}

    def begin(self, case: Case) -> None:
        """Sends a call."""
        stream = self.h2.send_request(case.head)
        self.open[stream] = _Answer(case)
        for piece in case.data:
            self.h2.send_data(stream, piece)
        if case.reset:
            self._flush()
            self.h2.reset_stream(stream)
        else:
            self.h2.end_stream(stream)

    def finish(self) -> None:
        """Waits for all calls; fails when one is not answered well, or the connection ends."""
        self._flush()
        while self.open:
            data = self.socket.recv(1 << 18)
            if not data:
                raise Broken(f"a wrong call has cost the connection: {self._open()}")
            try:
                self.h2.receive_data(data)
            except ngh2.NGH2Error as error:
                raise Broken(f"no HTTP/2: {error}: {self._open()}") from error
            self._events()
            self._flush()

    def _open(self) -> str:
        return repr([answer.case for answer in self.open.values()])[:3000]

    def _flush(self) -> None:
        while data := self.h2.data_to_send():
            self.socket.sendall(data)
        self._events()

    def _events(self) -> None:
        for event in self.h2.events():
            if isinstance(event, ngh2.GoAwayReceived):
                raise Broken(f"told to go away ({event.error_code}): {self._open()}")
            answer = self.open.get(getattr(event, "stream_id", 0))
            if answer is None:
                continue
            if isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
                answer.heads.append(dict(event.headers))
            elif isinstance(event, ngh2.DataReceived):
                answer.body += event.data
            elif isinstance(event, ngh2.StreamClosed):
                del self.open[event.stream_id]
                try:
                    ending = self._check(answer, event.error_code)
                except Exception as error:
                    error.add_note(f"{answer.case!r}"[:3000])
                    error.add_note(f"{answer.heads} {bytes(answer.body[:500])!r}")
                    raise
                self.outcome.answers[ending] += 1
                if ending == "0":
                    self.outcome.methods[answer.case.path.rpartition("/")[2]] += 1

    # ---- what an answer must be

    def _check(self, answer: _Answer, error_code: int) -> str:
        """How the call has ended."""
        case, heads = answer.case, answer.heads
        trailers = heads[-1] if heads else {}
        if b"grpc-status" not in trailers:
            status = heads[0].get(b":status") if heads else b""
            if case.odd_head and (status in (b"403", b"405", b"415") or (not heads and error_code)):
                return f"HTTP {status.decode()}" if heads else "refused stream"
            if case.reset:
                return "reset"
            raise Broken(f"a call without a status, error {error_code}")
        if heads[0].get(b":status") != b"200" or heads[0].get(b"content-type") != b"application/grpc":
            raise Broken("no head of gRPC")
        if len(heads) > 2 or any(name.startswith(b"grpc-s") for head in heads[:-1] for name in head):
            raise Broken("heads")
        text = trailers.get(b"grpc-message", b"")
        status = int(trailers[b"grpc-status"])
        if status not in STATUSES or not _TEXT.fullmatch(text):
            raise Broken("status or text")
        if b"internal error" in text or b"Traceback" in text:
            raise Broken(f"nobody meant this error: {text!r}")
        unquote_to_bytes(text).decode()
        if not text and status not in (0, 12):
            raise Broken(f"status {status} without a text")
        messages = _messages(bytes(answer.body))
        if case.path not in STREAMS and len(messages) != (status == 0) and not case.odd_head:
            raise Broken(f"{len(messages)} messages with status {status}")
        if case.good and not case.reset and status:
            raise Broken(f"a good call has ended with {status} {text!r}")
        if not case.odd_head:
            self._messages_are_right(case, messages)
        return str(status)

    def _messages_are_right(self, case: Case, messages: list[bytes]) -> None:
        answers = [_parsed(KINDS[case.path][1], message) for message in messages]
        if None in answers:
            raise Broken("a message that is none of the answer's type")
        if case.path == _STREAM:
            for answer in answers:
                if "internal error" in answer.error_message:
                    raise Broken(f"nobody meant this error: {answer.error_message}")
        if case.reset or case.sent is None:
            return
        sent = [_parsed(KINDS[case.path][0], message) for message in case.sent]
        if case.path == _INFER and answers and sent[0] is not None:
            self._compare(sent[0], answers[0])
        elif case.path == _STREAM and case.good:
            self._compare_stream(sent, answers)

    def _compare_stream(self, sent: list[Any], answers: list[Any]) -> None:
        """A good stream: each identity answers once, in order, ``repeat`` as often as COUNT says."""
        if any(answer.error_message for answer in answers):
            raise Broken("an error in a good stream")
        repeats = [answer.infer_response for answer in answers if answer.infer_response.model_name == "repeat"]
        echoes = [answer.infer_response for answer in answers if answer.infer_response.model_name != "repeat"]
        asked = [each for each in sent if each.model_name == "repeat"]
        wanted = sum(each.raw_input_contents[0][0] for each in asked)
        if sum(bool(each.outputs) for each in repeats) != wanted:
            raise Broken(f"{len(repeats)} answers of repeat, not {wanted}")
        others = [each for each in sent if each.model_name != "repeat"]
        if len(others) != len(echoes):
            raise Broken(f"{len(echoes)} answers to {len(others)} requests")
        for one, other in zip(others, echoes, strict=True):
            self._compare(one, other)

    def _compare(self, request: Any, answer: Any) -> None:
        """What an identity is given raw is what it answers; with typed contents their bytes."""
        if request.model_name not in MODELS or request.id != answer.id:
            raise Broken("another answer")
        if len(request.inputs) != 1 or request.inputs[0].parameters or any(o.parameters for o in request.outputs):
            return
        item = request.inputs[0]
        given = request.raw_input_contents[0] if request.raw_input_contents else _typed(item)
        got = answer.raw_output_contents[0]
        # a tensor of texts may have been given with other bytes behind it only if it is refused
        if (answer.outputs[0].datatype, list(answer.outputs[0].shape)) != (item.datatype, list(item.shape)):
            raise Broken("type or shape")
        if given != got:
            raise Broken(f"given {given[:100]!r}, answered {got[:100]!r}")
        self.outcome.compared += 1


def _typed(item: Any) -> bytes:
    import numpy as np

    contents = item.contents
    if item.datatype == "BYTES":
        return b"".join(len(text).to_bytes(4, "little") + text for text in contents.bytes_contents)
    values = contents.int64_contents if item.datatype == "INT64" else contents.fp32_contents
    return np.array(values, {"INT64": np.int64, "FP32": np.float32}[item.datatype]).tobytes()


def _messages(body: bytes) -> list[bytes]:
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        if body[0] or len(body) < 5 + size:
            raise Broken(f"framing {body[:5]!r} of {len(body)} bytes")
        found.append(body[5 : 5 + size])
        body = body[5 + size :]
    return found


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def frames(address: str, maker: Maker, outcome: Outcome) -> None:
    """A connection with wrong frames: the server may close it, in HTTP/2, and ends it when the client does."""
    chance = maker.random
    case = maker.case()
    good = [
        frame(SETTINGS, 0, 0, bytes.fromhex("000300000064")),
        frame(HEADERS, 4, 1, header_block(maker.headers(_INFER))),
        frame(0, 1, 1, framed(maker.inference(chance.choice([*MODELS])).SerializeToString())),
        frame(HEADERS, 4, 3, header_block(maker.headers(case.path))),
        *(frame(0, 0, 3, piece[:16384]) for piece in case.data),
        frame(0, 1, 3, b""),
        frame(6, 0, 0, b"12345678"),
    ]
    hello = mutated(PREFACE, chance) if chance.random() < 0.05 else PREFACE
    host, _, port = address.rpartition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as made:
        try:
            made.sendall(hello + conversation(good, chance))
            made.shutdown(socket.SHUT_WR)
            while data := made.recv(1 << 16):
                received += data
        except ConnectionError:  # cut off in the middle of what it sent: the server's right
            pass
    found = split_frames(received)
    if found and found[0][0] != SETTINGS:
        raise Broken(f"the server begins with {found[0]}")
    outcome.kinds["frames"] += 1
    outcome.answers["went away" if any(kind == 7 for kind, *_ in found) else "connection ended"] += 1


def fuzz(server: FuzzedServer, count: int, seed: int) -> Outcome:
    """Sends ``count`` inputs: calls, sixteen at a time on a connection, a good one among them; wrong frames between.

    Memory, log and life of the server are looked at now and then.
    """
    outcome = Outcome()
    address = server.at("grpc").removeprefix("grpc://")
    maker = Maker(seed, server.region)
    start = time.perf_counter()
    looked = 0
    while outcome.inputs < count:
        client = Client(address, outcome)
        for _ in range(20):
            for _ in range(AT_ONCE - 1):
                case = maker.case()
                outcome.kinds[case.kind] += 1
                client.begin(case)
            client.begin(maker.sentinel())
            client.finish()
            outcome.inputs += AT_ONCE
        client.socket.close()
        for _ in range(80):
            frames(address, maker, outcome)
        outcome.inputs += 80
        if outcome.inputs - looked > 10_000:
            looked = outcome.inputs
            server.check()
    outcome.seconds = time.perf_counter() - start
    return outcome
