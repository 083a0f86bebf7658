"""One gRPC call: its messages as they come in, its answers, its deadline. Everything is called on the loop."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.protocol.binary import Buffer
from workbench.server.grpc_message import (
    DEADLINE_EXCEEDED,
    FRAMING,
    INTERNAL,
    OK,
    Assembler,
    BadMessage,
    first_content,
    framed,
    framed_apart,
    packed,
    percent_encoded,
    status_number,
)
from workbench.server.grpc_unpack import Packed

LOG = logging.getLogger("workbench.server")


class Hold(enum.IntFlag):
    """Why a call takes no further messages for now."""

    REQUESTS = 1  # too many of its own are not answered
    MEMORY = 2  # all calls together keep too much
    UNPACKING = 4  # a thread unpacks one, and others would wait behind it


class Carrier(Protocol):
    """What carries a call: a connection."""

    loop: asyncio.AbstractEventLoop
    peer: str

    def send_head(self, call: Call, encoding: str) -> None:
        """Begins the answer; ``encoding`` names its compression, empty for none."""

    def begin_large(self) -> None:
        """Pieces follow that are large together: the first may be small, and is to go the way of the others."""

    def send_message(self, call: Call, data: Buffer) -> int:
        """Sends a message; gives how many bytes of the call's messages now wait for the client."""

    def send_status(self, call: Call, status: int, text: bytes) -> None:
        """Ends the call."""

    def reserve(self, call: Call, size: int) -> None:
        """A message of which a part is here has this size, with its framing."""

    def keep(self, call: Call, size: int) -> None:
        """A message of this size, with its framing, is kept until it is let go or the call is over."""

    def let_go(self, call: Call, size: int) -> None:
        """A message that was kept is not needed any more."""

    def unpack(self, call: Call, data: memoryview, encoding: str) -> memoryview | None:
        """A compressed message unpacked; None where that takes a thread, which ``Call.unpacked`` or
        ``Call.cannot_unpack`` is told of.

        Raises:
            BadMessage: it cannot be read, or is too large.
        """

    def give_up_unpacking(self, call: Call) -> None:
        """A message that a thread is to unpack is not needed."""

    def resume(self, call: Call) -> None:
        """The call takes messages again."""


class Receiver(Protocol):
    """Who handles a call."""

    def message(self, data: memoryview) -> None:
        """A message has come, unpacked."""

    def half_closed(self) -> None:
        """The client sends no more messages."""

    def gone(self) -> None:
        """The client has gone, or the deadline has passed: nothing that is sent arrives any more."""

    def drained(self) -> None:
        """The client has taken what was sent, after ``Call.send`` had said that much waits."""

    def stopping(self) -> None:
        """The server stops: the call is to end when what has been asked is answered, at once if nothing was."""


class Call:
    """One call. A handler sends answers with ``send`` and ends it with ``finish`` or ``fail``.

    ``wanted`` is the compression for answers, which the client takes (empty for none).
    """

    __slots__ = (
        "_assembler",
        "_behind",
        "_carrier",
        "_encoding",
        "_timer",
        "backlogged",
        "ended",
        "half_closed",
        "headers",
        "held",
        "limit",
        "owed",
        "path",
        "receiver",
        "reserved",
        "started",
        "stream_id",
        "waiting",
        "wanted",
        "widened",
    )

    def __init__(self, carrier: Carrier, stream_id: int, path: bytes, headers: Mapping[bytes, bytes]) -> None:
        self._carrier = carrier
        self._assembler: Assembler | None = None
        self._behind: list[tuple[bool, memoryview]] | None = None  # messages, while a thread unpacks one before them
        self._encoding = headers.get(b"grpc-encoding", b"identity").decode("latin-1")
        self._timer: asyncio.TimerHandle | None = None
        self.stream_id = stream_id
        self.path = path
        self.headers = headers
        self.receiver: Receiver | None = None
        self.wanted = ""
        self.started = False
        self.ended = False
        self.half_closed = False
        self.backlogged = False  # the client has more to take than its share
        self.limit = 0
        # Of the carrier: bytes that the client has not been told to send more for, whether the call takes any now, what
        # of the memory for large messages it has, and what it waits for.
        self.owed = 0
        self.held = Hold(0)
        self.reserved = 0
        self.waiting = 0
        self.widened = False  # its window is that of a large message

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the connection lives on."""
        return self._carrier.loop

    @property
    def client(self) -> str:
        """The address of the other side."""
        return self._carrier.peer

    @property
    def inside(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._assembler is not None and self._assembler.inside

    @property
    def half(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return self._assembler.have if self._assembler is not None else 0

    # -- what comes in ------------------------------------------------------------------------------------------------

    def set_deadline(self, seconds: float) -> None:
        """Ends the call with DEADLINE_EXCEEDED after ``seconds``, as the 2.51 binary does."""
        self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._timer = None
        self.break_off(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def feed(self, data: bytes, last: bool) -> None:
        """Bytes of the client's messages; ``last``: no more follow."""
        receiver = self.receiver
        if last:
            self.half_closed = True
        if receiver is None:
            return
        try:
            if self._assembler is None and last and data and data[0] == 0 and _is_whole(data):
                receiver.message(memoryview(data)[FRAMING:])
            elif data:
                if self._assembler is None:
                    self._assembler = Assembler(self._announced, first_content)
                self._take(self._assembler.add(data))
            if last:
                self._end()
        except BadMessage as bad:
            self.break_off(bad.status, bad.text)
        except Exception as error:  # whatever a handler raises is the answer: the connection and the server stay up
            self.fail(error)

    @property
    def missing(self) -> int:
        """Bytes that are to come of a large message that has begun."""
        return 0 if self._assembler is None or self.receiver is None else self._assembler.missing

    def place(self) -> memoryview | None:
        """Where they go, with ``SLACK`` bytes more; None when they are not wanted."""
        return None if self._assembler is None or self.receiver is None else self._assembler.place()

    def came(self, size: int) -> None:
        """So many were written there."""
        assert self._assembler is not None
        try:
            self._take(self._assembler.came(size))
        except BadMessage as bad:
            self.break_off(bad.status, bad.text)
        except Exception as error:  # as in ``feed``
            self.fail(error)

    def _take(self, messages: list[tuple[bool, memoryview]]) -> None:
        for is_packed, data in messages:
            if self.receiver is None:
                return
            if self._behind is not None:
                self._behind.append((is_packed, data))
                continue
            plain = self._carrier.unpack(self, data, self._encoding) if is_packed else data
            if plain is None:
                self._behind = []
                self.hold(Hold.UNPACKING)
            else:
                self.receiver.message(plain)

    def _end(self) -> None:
        """The client sends no more: the handler hears of it when it has had all messages."""
        if self.receiver is None or self._behind is not None:
            return
        if self.inside:
            self.break_off(INTERNAL, "the last message ends too early")
        else:
            self.receiver.half_closed()

    def unpacked(self, packed: Packed) -> None:
        """A thread has unpacked a message: it is taken, and then those that have come behind it."""
        behind, self._behind = self._behind, None
        if self.receiver is None or behind is None:
            return
        try:
            self.receiver.message(packed.plain)
            self._take(behind)
            if self.half_closed:
                self._end()
        except BadMessage as bad:
            self.break_off(bad.status, bad.text)
        except Exception as error:  # as in ``feed``
            self.fail(error)
        if self._behind is None:
            self.resume(Hold.UNPACKING)

    def stop(self) -> None:
        """The server stops: see ``Receiver.stopping``."""
        if self.receiver is not None:
            self.receiver.stopping()

    def cannot_unpack(self, error: BaseException) -> None:
        """A thread was to unpack a message, and could not."""
        if isinstance(error, BadMessage):
            self.break_off(error.status, error.text)
        else:
            self.fail(error)

    def _drop(self) -> None:
        """What has come, and is not taken, is not needed."""
        self._assembler = None
        if self._behind is not None:
            self._behind = None
            self._carrier.give_up_unpacking(self)

    def _announced(self, size: int) -> None:
        self._carrier.reserve(self, size)

    def keep(self, size: int) -> None:
        """A message of ``size`` bytes is kept: a call of many messages says so, and takes fewer where memory is short.

        What a call of one message keeps is known without.
        """
        self._carrier.keep(self, size + FRAMING)

    def let_go(self, size: int) -> None:
        """A message that was kept has been answered."""
        self._carrier.let_go(self, size + FRAMING)

    def pass_over(self, size: int) -> None:
        """A message of ``size`` bytes is not kept: what was reserved for it others may have."""
        self.keep(size)
        self.let_go(size)

    def hold(self, reason: Hold) -> None:
        """Takes no further messages for now, which the client learns by flow control."""
        self.held |= reason

    def resume(self, reason: Hold) -> None:
        """Takes messages again, unless there is another reason not to."""
        if self.held & reason:
            self.held &= ~reason
            if not self.held:
                self._carrier.resume(self)

    # -- what goes out ------------------------------------------------------------------------------------------------

    def frame(self, parts: Sequence[Buffer]) -> bytes:
        """A message as it goes on the wire, from pieces. On any thread."""
        return packed(parts, self.wanted) if self.wanted else framed(parts)

    def send(self, data: Buffer) -> None:
        """Sends what ``frame`` has made; does nothing when the call has ended.

        Sets ``backlogged`` when more than the limit waits for the client; ``Receiver.drained`` is then called.
        """
        if self.ended:
            return
        if not self.started:
            self.started = True
            self._carrier.send_head(self, self.wanted)
        if self._carrier.send_message(self, data) > self.limit:
            self.backlogged = True

    def reply(self, data: bytes) -> None:
        """Sends the only message, which ``frame`` has made, and ends the call."""
        self.send(data)
        self.finish()

    def reply_apart(self, parts: Sequence[Buffer]) -> int:
        """As ``reply`` with the uncompressed message, large parts as they are. Gives the bytes of it all."""
        size = 0
        if not self.ended:
            self._carrier.begin_large()
        for piece in framed_apart(parts):
            self.send(piece)
            size += len(piece)
        self.finish()
        return size

    def finish(self, status: int = OK, text: str = "") -> None:
        """Ends the call with a status; does nothing when it has ended."""
        if self.ended:
            return
        self.ended = True
        self.receiver = None
        self._drop()  # who sends the rest may take his time
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._carrier.send_status(self, status, percent_encoded(text) if text else b"")

    def break_off(self, status: int, text: str) -> None:
        """Ends the call with a status; whoever handles it is told last, for what it then answers comes too late."""
        receiver = self.receiver
        self.finish(status, text)
        if receiver is not None:
            receiver.gone()

    def fail(self, error: BaseException) -> None:
        """Ends the call with the status and text of an error; one that nobody raised on purpose is logged: INTERNAL."""
        if isinstance(error, WorkbenchError):
            self.break_off(status_number(error.code), error.message)
            return
        LOG.error("%s failed", self.path.decode("latin-1"), exc_info=error)
        self.break_off(INTERNAL, f"internal error: {type(error).__name__}: {error}")

    def closed(self) -> None:
        """The stream is over, whoever ended it."""
        self.ended = True
        self._drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.gone()


def _is_whole(data: bytes) -> bool:
    return len(data) - FRAMING == int.from_bytes(data[1:5], "big")


Opener = Callable[[Call], Receiver]
"""Begins to handle a call."""
