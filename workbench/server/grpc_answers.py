"""What a connection of the gRPC front end sends: answers in order, as fast as clients take them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import ngh2

from workbench.protocol.binary import Buffer
from workbench.server.grpc_call import Call
from workbench.server.grpc_flow import FlowControl
from workbench.server.grpc_frames import window_update
from workbench.server.grpc_message import ENCODINGS, RESOURCE_EXHAUSTED
from workbench.server.grpc_send import LARGE, Plain
from workbench.server.unread import NOT_READ

_PIECE = 256 * 1024
_AT_ONCE = 16 * 1024 * 1024  # the binding copies less where it is asked for all; of more it is asked for pieces
_JOINED = 64 * 1024  # answers that are smaller together are written as one piece
HIGH_WATER = 1024 * 1024
"""Bytes that may wait in the socket's own buffer."""
_HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", ENCODINGS))
_HEADS = {"": _HEAD, **{name: (*_HEAD, (b"grpc-encoding", name.encode())) for name in ("gzip", "deflate")}}
_BARE_HEAD = _HEAD[:2]
_WELL = ((b"grpc-status", b"0"),)


class Answers(FlowControl):
    """The part of a connection that sends."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport | None
    _on_event: dict[type, Callable[[Any], None]]
    _leaving: float

    def __init__(self, h2: Any) -> None:
        super().__init__(h2)
        self._planned = False
        self._paused = False
        self._backlogged: set[Call] = set()
        self._sent = 0  # bytes of answers since the last look at those that wait
        self._unread = 0  # bytes of answers that waited for the client then
        # ended here, while the client may still be sending; whether the trailers wait for a window
        self._finishing: list[tuple[int, bool]] = []
        self._pings = 0  # sent since the last data
        self._last_ping = 0.0  # of the client, since it was last sent anything
        self._strikes = 0

    def send_head(self, call: Call, encoding: str) -> None:
        """See ``Carrier``."""
        if call.stream_id in self.calls:
            with contextlib.suppress(ngh2.NGH2Error):  # reset, which the next events will say
                self._h2.send_response(call.stream_id, _HEADS[encoding])

    def send_message(self, call: Call, data: Buffer) -> int:
        """See ``Carrier``."""
        if call.stream_id not in self.calls:
            return 0
        if self._unread and self.server.unread.refuses(self):
            call.break_off(RESOURCE_EXHAUSTED, NOT_READ)
            return 0
        size = len(data)
        if size > LARGE:
            self.begin_large()
        self._out.add(call.stream_id, data)
        self._plan()
        self._sent += size
        self._spoke()
        waiting = self._out.waiting(call.stream_id) if call.limit else 0
        if waiting > call.limit:
            self._backlogged.add(call)
        return waiting

    def send_status(self, call: Call, status: int, text: bytes) -> None:
        """See ``Carrier``."""
        if call.stream_id not in self.calls:
            return
        trailers = _WELL if not status else ((b"grpc-status", b"%d" % status), *_message(text))
        try:
            if self._out.end(call.stream_id, trailers):
                pass  # behind what waits
            elif call.started:
                self._h2.send_trailers(call.stream_id, trailers)
            else:
                self._h2.send_response(call.stream_id, (*_BARE_HEAD, *trailers), end_stream=True)
        except ngh2.NGH2Error:
            return
        self._spoke()
        if not call.half_closed:
            out = self._out
            waits = call.started and not out.waiting(call.stream_id) and out.is_shut(call.stream_id)
            self._finishing.append((call.stream_id, waits))
        self._plan()

    def _spoke(self) -> None:
        """The client is sent something that is no answer to a ping: it may ping again, and be pinged (gRPC's rule)."""
        self._pings = self._strikes = 0
        self._last_ping = 0.0

    def _plan(self) -> None:
        """Has what is to be sent sent at the end of this turn of the loop: answers of a batch go in one piece."""
        if not self._planned:
            self._planned = True
            self.loop.call_soon(self._flush)

    def _is_paused(self) -> bool:
        return self._paused  # which writing changes

    def _flush(self) -> None:
        self._planned = False
        transport = self.transport
        if transport is None or self._is_paused():
            self._look_at_unread()
            return
        if self._admitted:
            self._expect()
        hears, self._hears = self._hears, True
        try:
            is_open = self._write_all(transport)
        finally:
            self._hears = hears
        if not is_open:
            return
        if self._has_large and not self._is_paused() and not transport.is_closing():
            self._send_large()
        if self._sent or self._unread:
            self._look_at_unread()
        if self._backlogged:
            self._look_at_backlogs()
        if self._leaving and not self.calls and not transport.is_closing():
            self._bid_farewell(transport)

    def _write_all(self, transport: asyncio.Transport) -> bool:
        """Writes what there is, and handles what libnghttp2 says of it; False when the connection is over."""
        h2 = self._h2
        try:
            self._write(transport, h2)
            if self._finishing:
                self._stop_senders()
        except (ngh2.NGH2Error, MemoryError):
            transport.abort()
            return False
        self._handle(h2.events())
        return True

    def _bid_farewell(self, transport: asyncio.Transport) -> None:
        """Closes, and says which call was the last: others the client may try elsewhere (RFC 9113, 6.8)."""
        with contextlib.suppress(ngh2.NGH2Error):
            self._h2.send_goaway(ngh2.ErrorCode.NO_ERROR)
            transport.write(self._h2.data_to_send())
        transport.close()

    def _write(self, transport: asyncio.Transport, h2: Any) -> None:
        """Writes what libnghttp2 has, which includes the heads of answers, then the answers, then their trailers."""
        out = self._out
        if out.queued > _AT_ONCE and isinstance(out, Plain):
            while (piece := h2.data_to_send(_PIECE)) and len(piece) == _PIECE:
                transport.write(piece)
                if self._is_paused():
                    self._in_frame = True  # perhaps
                    return
            transport.write(piece)
        before: bytes = h2.data_to_send()
        self._in_frame = False
        if before or out.sendable:
            self._frames.idle_updates = 0
        if self._padding:
            for stream_id, size in self._padding.items():
                self._own += window_update(stream_id, size)
            self._padding.clear()
        if self._own:
            before += self._own
            self._own.clear()
            self._spoke()
        if events := h2.events():  # streams may be over, or the connection, of which the client is told first
            transport.write(before)
            self._handle(events)
            before = h2.data_to_send()  # heads of answers that are sent below
        while out.sendable and not self._is_paused():
            parts, size, ended = out.take(HIGH_WATER)
            after = b""
            if ended:
                for stream_id, trailers in ended:
                    with contextlib.suppress(ngh2.NGH2Error):  # reset, which the next events will say
                        h2.send_trailers(stream_id, trailers)
                after = h2.data_to_send()
            if size < _JOINED:
                transport.write(b"".join((before, *parts, after)))
            else:
                transport.writelines([piece for piece in (before, *parts, after) if piece])
            before = b""
        if before:
            transport.write(before)

    def _handle(self, events: Iterable[Any]) -> None:
        for event in events:
            handler = self._on_event.get(type(event))
            if handler is not None:
                handler(event)

    def _stop_senders(self) -> None:
        """Tells clients whose calls have ended early that nothing more is wanted of them (RFC 9113, 8.1)."""
        h2, waiting = self._h2, self._finishing
        self._finishing = []
        for stream_id, waits in waiting:
            if stream_id not in self.calls:
                continue
            if self._out.waiting(stream_id) or (waits and self._out.is_shut(stream_id)):
                self._finishing.append((stream_id, waits))
            else:
                h2.reset_stream(stream_id, ngh2.ErrorCode.NO_ERROR)
                self._plan()

    def _look_at_unread(self) -> None:
        if self.transport is None:
            return
        waiting = self._out.queued + self.transport.get_write_buffer_size()
        if waiting or self._unread:
            taken = waiting < self._unread + self._sent
            self.server.unread.note(self, waiting, self.loop.time(), taken=taken)
        self._sent, self._unread = 0, waiting

    def _look_at_backlogs(self) -> None:
        for call in tuple(self._backlogged):
            if self._out.waiting(call.stream_id) <= call.limit // 2:
                self._backlogged.discard(call)
                call.backlogged = False
                if call.receiver is not None:
                    call.receiver.drained()


def _message(text: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"grpc-message", text),) if text else ()
