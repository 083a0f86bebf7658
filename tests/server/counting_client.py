"""A client of the gRPC front end that makes every frame itself and counts its windows."""

from __future__ import annotations

import contextlib
import select
import socket
import struct

from grpc_models import SERVICE, framed, request
from tritonclient.grpc import service_pb2 as pb

from workbench.server.grpc_frames import window_update

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, PADDED, ACK = 1, 4, 8, 1
MOST = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Counting:
    """A client that makes every frame itself and counts its windows, beyond which nothing may come."""

    def __init__(self, url: str, first_window: int = 65_535) -> None:
        host, _, port = url.partition("://")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.first_window = first_window
        self.window = 65_535  # of the connection
        self.windows: dict[int, int] = {}
        self.room: dict[int, int] = {}  # what the client has been told that it may send more
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.gone_away: list[tuple[int, int]] = []  # last stream and reason of each GOAWAY
        self.largest: dict[int, int] = {}  # the largest frame of answers by stream, in bytes
        self._said: list[int] = []  # first windows that are not acknowledged yet
        self._unread = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.settle(first_window)

    def settle(self, first_window: int) -> None:
        """Says how large windows are at first."""
        self.socket.sendall(self.settling(first_window))

    def settling(self, first_window: int) -> bytes:
        """The frame that says it; it counts from the acknowledgement on."""
        self._said.append(first_window)
        return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, first_window))

    def allow_frames(self, size: int) -> None:
        """Says how large frames may be; settled as the windows are."""
        self._said.append(self.first_window)
        self.socket.sendall(frame(SETTINGS, 0, 0, struct.pack(">HI", 5, size)))

    @property
    def is_settled(self) -> bool:
        """Whether all that was said of first windows is acknowledged."""
        return not self._said

    def heading(self, stream: int, method: str) -> bytes:
        """The frame that begins a call."""
        fields = {
            ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}/{method}", ":authority": "localhost",
            "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        block = b"".join(
            b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
            for name, value in fields.items()
        )
        return frame(HEADERS, END_HEADERS, stream, block)

    def call(self, stream: int, method: str, *messages: bytes, end: bool = True) -> None:
        self.windows[stream], self.bodies[stream] = self.first_window, b""
        data = b"".join(framed(message) for message in messages)
        self.socket.sendall(self.heading(stream, method) + frame(DATA, END_STREAM * end, stream, data))

    def ask(self, stream: int, count: int) -> None:
        """Asks for so many numbers of four bytes on a stream."""
        self.socket.sendall(frame(DATA, 0, stream, framed(request("large", count).SerializeToString())))

    def end(self, stream: int) -> None:
        self.socket.sendall(frame(DATA, END_STREAM, stream))

    def grow(self, stream: int, size: int) -> None:
        self.socket.sendall(self.growing(stream, size))

    def growing(self, stream: int, size: int) -> bytes:
        """The frame that makes a window larger, of a call or (0) of all."""
        if stream:
            self.windows[stream] += size
        else:
            self.window += size
        return window_update(stream, size)

    def read(self) -> int:
        """The next frame; its kind."""
        while len(self._unread) < 9 or len(self._unread) < 9 + int.from_bytes(self._unread[:3], "big"):
            got = self.socket.recv(1 << 18)
            if not got:
                raise ConnectionAbortedError(f"closed: {self.gone_away}")
            self._unread += got
        size, kind, flags = int.from_bytes(self._unread[:3], "big"), self._unread[3], self._unread[4]
        stream, payload = int.from_bytes(self._unread[5:9], "big"), self._unread[9 : 9 + size]
        self._unread = self._unread[9 + size :]
        if kind == DATA:
            self.windows[stream] -= size
            self.window -= size
            assert size == 0 or min(self.windows[stream], self.window) >= 0, "more than may be sent"
            self.bodies[stream] += payload
            self.largest[stream] = max(size, self.largest.get(stream, 0))
        elif kind == SETTINGS and flags & ACK:
            first = self._said.pop(0)
            for each in self.windows:
                self.windows[each] += first - self.first_window
            self.first_window = first
        elif kind == UPDATE:
            self.room[stream] = self.room.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == SETTINGS:
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == GOAWAY:
            self.gone_away.append((int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")))
        if (kind in (DATA, HEADERS) and flags & END_STREAM) or kind == RST:
            self.ended.add(stream)
        return kind

    def read_until(self, kind: int) -> None:
        while self.read() != kind:
            pass

    def may_read(self, seconds: float) -> bool:
        return len(self._unread) >= 9 or bool(select.select([self.socket], [], [], seconds)[0])

    def settled(self) -> None:
        """Waits until all that was said of first windows is acknowledged."""
        while not self.is_settled:
            self.read()

    def take(self, stream: int, size: int) -> None:
        """Reads until so many bytes in all have come on a stream."""
        while len(self.bodies[stream]) < size:
            self.read()

    def answered(self, stream: int) -> None:
        while stream not in self.ended:
            self.read()

    def counts(self, stream: int, *, single: bool = False) -> list[int]:
        """How many numbers each answer on a stream has; or the answer of a call of its own."""
        body, found = self.bodies[stream], []
        while body:
            size = int.from_bytes(body[1:5], "big")
            if single:
                answer = pb.ModelInferResponse.FromString(body[5 : 5 + size])
            else:
                streamed = pb.ModelStreamInferResponse.FromString(body[5 : 5 + size])
                assert not streamed.error_message
                answer = streamed.infer_response
            found.append(len(answer.raw_output_contents[0]) // 4)
            body = body[5 + size :]
        return found

    def until_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                self.read()

    def begin_large(self, stream: int) -> None:
        """Two large answers: from the first on, as a rule, the server counts the windows itself."""
        self.grow(0, 1 << 20)
        for each in (stream, stream + 2):
            self.call(each, "ModelInfer", request("large", 60_000).SerializeToString())
            self.grow(each, 1 << 20)
            self.answered(each)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()
