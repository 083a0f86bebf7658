"""A connection of the gRPC front end: HTTP/2 by libnghttp2 (ngh2) on the engine's loop, calls on its streams.

What a client may occupy is bounded (``GrpcLimits``): a call sends no more than its window until the server says that it
takes more; for messages larger than that it has to have its share of one server-wide memory; answers that the client
does not take stay in its calls' backlog, and no call is taken beyond the number of streams. Frames that cost nothing
to send (resets, settings, pings, continuations) are counted by libnghttp2, pings also by gRPC's rules.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import ngh2

from workbench.clock import monotonic_ns
from workbench.protocol.binary import Buffer
from workbench.server.grpc_answers import HIGH_WATER, Answers
from workbench.server.grpc_call import Call
from workbench.server.grpc_frames import FRAME, WHOLE_WINDOW
from workbench.server.grpc_message import (
    CANCELLED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    timeout_s,
)
from workbench.server.unpacking import AT_ONCE
from workbench.server.unread import NOT_READ

if TYPE_CHECKING:
    from workbench.server.grpc_server import GrpcServer

_KNOWN_HEADS = 8
_TURN_NS = 10_000_000  # a connection's, before others have theirs; a hundred small requests take less
_LEAST_READ = 16 * 1024
_TWO_HOURS_S = 7200.0
_HEADER_LIST = 16 * 1024
_GOAWAY = b"\0\0\x08\7\0\0\0\0\0\x7f\xff\xff\xff"
_CONFIGURATION = ngh2.Configuration(
    auto_window_update=False,
    max_inbound_header_list_size=_HEADER_LIST,  # of each call: they are kept while it runs
    max_inbound_header_count=256,
    # calls that clients cancel are resets, too: a thousand at once, then a thousand a second
    stream_reset_rate_limit=(1_000, 1_000),
)


class GrpcConnection(Answers, asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: GrpcServer) -> None:
        super().__init__(ngh2.Connection(ngh2.Role.SERVER, _CONFIGURATION))
        self.server = server
        self.loop = server.loop
        self.peer = ""
        self.transport: asyncio.Transport | None = None
        self.calls: dict[int, Call] = {}
        self._place: memoryview | None = None  # where bytes were read to, if not to what all connections share
        self._deaf = False  # not read for now
        self._most = len(server.scratch)  # bytes that are read at a time
        self._began = self._heard = self.loop.time()
        self._greeted = False
        self._pinged = 0.0  # when a ping was sent that is not answered yet
        self._leaving = 0.0  # when it was told to go
        self._inside: dict[int, float] = {}  # calls in the middle of a message: since when nothing has come
        self._known_heads: dict[tuple[tuple[bytes, bytes], ...], dict[bytes, bytes]] = {}  # of accepted calls
        self._on_event: dict[type, Callable[[Any], None]] = {
            ngh2.RequestReceived: self._request,
            ngh2.DataReceived: self._data,
            ngh2.TrailersReceived: self._trailers,
            ngh2.StreamClosed: self._closed,
            ngh2.PingReceived: self._ping,
            ngh2.PingAcknowledged: self._pong,
            ngh2.SettingsReceived: self._settings,
            ngh2.ConnectionClosed: self._over,
        }

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not derived from it
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else ""
        limits = self.server.options.limits
        self._h2.initiate_connection(
            {
                ngh2.Setting.MAX_CONCURRENT_STREAMS: limits.streams,
                ngh2.Setting.INITIAL_WINDOW_SIZE: limits.window,
                ngh2.Setting.MAX_FRAME_SIZE: FRAME,
                ngh2.Setting.MAX_HEADER_LIST_SIZE: _HEADER_LIST,
                ngh2.Setting.ENABLE_PUSH: 0,
            }
        )
        # Calls wait by their own windows: one that must wait must not stop the others.
        self._h2.set_local_window_size(WHOLE_WINDOW)
        self.server.connections.add(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what it waits for is cancelled."""
        self.server.connections.discard(self)
        self.transport = None
        self._on_event = {}  # else the answers in it would be kept until the collector looks
        self._place = None
        self._frames.close()
        self._out.close()
        self._admitted.clear()
        self._inside.clear()
        self.server.halves.forget(self)
        self.server.unread.note(self, 0, 0.0, taken=True)
        self._backlogged.clear()
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.closed()
            self._release(call)

    def eof_received(self) -> bool:
        """The client sends nothing more: it has gone."""
        return False

    def pause_writing(self) -> None:
        """The client does not take its answers: they stay where they are."""
        self._paused = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._paused = False
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the client go."""
        self._place = self._frames.place()
        if self._place is not None:
            return self._place
        scratch, most = self.server.scratch, self._most
        return scratch if most >= len(scratch) else scratch[:most]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes from the client."""
        if self.transport is None or self.transport.is_closing():
            return
        self._heard = self.loop.time()
        place, self._place = self._place, None
        frames, began = self._frames, monotonic_ns()
        self._hears, self._at_once = True, AT_ONCE
        try:
            is_open = frames.add(self.server.scratch[:nbytes]) if place is None else frames.read(place, nbytes)
        finally:
            self._hears = False
        if not is_open:
            return
        ours = self._own or self._padding or self._admitted or self._out.sendable
        if self._h2.want_write or ours or self._finishing or self._leaving:
            self._flush()
        if monotonic_ns() - began > _TURN_NS:
            self._let_others()
        elif self._most < len(self.server.scratch):
            self._most *= 2

    def _let_others(self) -> None:
        """What came took long, as a thousand frames of a byte do: others have their turn before more of it is read.

        The event loop reads up to 32 times before it looks at anyone else.
        """
        self._most = max(_LEAST_READ, self._most // 2)
        if self.transport is not None and not self._deaf and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        if self.transport is not None and not self._deaf and not self.transport.is_closing():
            self.transport.resume_reading()

    def pass_on(self, data: Buffer) -> bool:
        """See ``Owner``."""
        transport, h2 = self.transport, self._h2
        if transport is None:
            return False
        try:
            h2.receive_data(data)
        except (ngh2.NGH2Error, MemoryError) as error:  # no HTTP/2, or a flood
            flood = isinstance(error, ngh2.DenialOfServiceError | MemoryError)
            self._cut_off(ngh2.ErrorCode.ENHANCE_YOUR_CALM if flood else ngh2.ErrorCode.PROTOCOL_ERROR)
            return False
        self._handle(h2.events())
        return True

    def _cut_off(self, code: int) -> None:
        """Says why in a GOAWAY frame, which a library that has failed no longer does, and closes."""
        transport = self.transport
        assert transport is not None
        self._frames.close()
        if not self._paused:
            transport.write(_GOAWAY + code.to_bytes(4, "big"))
        if transport.get_write_buffer_size():  # a client that does not read it is not waited for
            transport.abort()
        else:
            transport.close()

    def hold_reading(self) -> None:
        """Reads no more: all connections together have too much that is half sent."""
        if self.transport is not None:
            self._deaf = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Reads on."""
        self._deaf = False
        if self.transport is not None:
            self._heard = self.loop.time()
            self.transport.resume_reading()

    # -- events -------------------------------------------------------------------------------------------------------

    def _request(self, event: Any) -> None:
        stream_id = event.stream_id
        head = tuple(event.headers)
        known = self._known_heads.get(head)  # a client's calls have one head, as a rule
        headers = dict(head) if known is None else known
        if known is None and (refusal := self.server.refusal(headers)) is not None:
            with contextlib.suppress(ngh2.NGH2Error):  # reset already
                self._h2.send_response(stream_id, ((b":status", refusal),), end_stream=True)
            return
        call = self.calls[stream_id] = Call(self, stream_id, headers[b":path"], headers)
        call.limit = self.server.options.limits.backlog
        if known is None and not self._understands(call, head):
            return
        if self._unread:
            self._look_at_unread()  # of what waited in the socket nobody tells that it has been taken
        if self._unread and self.server.unread.refuses(self):
            call.finish(RESOURCE_EXHAUSTED, NOT_READ)
            return
        self.server.open(call)
        if event.end_stream:
            call.feed(b"", last=True)

    def _understands(self, call: Call, head: tuple[tuple[bytes, bytes], ...]) -> bool:
        """Whether a call's deadline and compression can be read; then its head, if it has no deadline, is known."""
        timeout = call.headers.get(b"grpc-timeout")
        if timeout is not None:
            seconds = timeout_s(timeout)
            if seconds is None:
                call.finish(INTERNAL, "invalid grpc-timeout")
                return False
            call.set_deadline(seconds)
        encoding = call.headers.get(b"grpc-encoding", b"identity")
        if encoding not in (b"identity", b"gzip", b"deflate"):
            call.finish(UNIMPLEMENTED, f"Compression algorithm '{encoding.decode('latin-1')}' is not supported")
            return False
        if timeout is None and len(self._known_heads) < _KNOWN_HEADS:
            self._known_heads[head] = dict(call.headers)
        return True

    def _data(self, event: Any) -> None:
        stream_id, data = event.stream_id, event.data
        call = self.calls.get(stream_id)
        size = len(data)
        if call is None or call.ended:
            self._acknowledge(stream_id, size)
            return
        if event.end_stream:
            self._whole(stream_id)
            self._acknowledge(stream_id, size + call.owed)
            call.owed = 0
            call.feed(data, True)
            return
        call.owed += size
        call.feed(data, False)
        if half := call.half:
            self._inside[stream_id] = self._heard
            self.server.halves.count(self, stream_id, min(half, self.server.options.limits.window))
        else:
            self._whole(stream_id)
            if call.widened:
                self._widen(call, self.server.options.limits.window)
        if not call.held and not call.waiting:
            self._settle(call)

    def _trailers(self, event: Any) -> None:
        call = self.calls.get(event.stream_id)
        if call is not None:
            call.feed(b"", last=True)

    def _closed(self, event: Any) -> None:
        call = self.calls.pop(event.stream_id, None)
        if call is None:
            return
        self._frames.expected.pop(event.stream_id, None)
        self._padding.pop(event.stream_id, None)
        self._out.drop(event.stream_id)
        self._whole(event.stream_id)
        self._backlogged.discard(call)
        self._settle(call)
        call.closed()
        self._release(call)

    def _ping(self, event: Any) -> None:
        """gRPC's rule for clients that ping too often (``GrpcLimits`` and libnghttp2 bound the rest)."""
        keep = self.server.options.keep_alive
        now = self._heard
        if not keep.max_ping_strikes:
            return
        often = keep.min_recv_ping_interval_without_data_ms / 1000
        if not self.calls and not keep.permit_without_calls:
            often = _TWO_HOURS_S
        if self._last_ping and now < self._last_ping + often:
            self._strikes += 1
            if self._strikes > keep.max_ping_strikes:
                self._h2.send_goaway(ngh2.ErrorCode.ENHANCE_YOUR_CALM, debug_data=b"too_many_pings")
                self._end()
                return
        self._last_ping = now

    def _pong(self, event: Any) -> None:
        self._pinged = 0.0

    def _settings(self, event: Any) -> None:
        self._greeted = True
        self._changed(event.settings)

    def _over(self, event: Any) -> None:
        if self.transport is not None:
            self.transport.close()

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Called about once a second: silent clients are asked whether they live, those that dawdle are cut off."""
        now = self.loop.time()
        transport, limits, keep = self.transport, self.server.options.limits, self.server.options.keep_alive
        if transport is None:
            return
        if not self._greeted and now - self._began > limits.hello_s:
            transport.abort()
            return
        if self._unread:
            self._look_at_unread()
            if self.server.unread.stuck(self, now, limits.pause_s):
                transport.abort()
                return
        for stream_id, since in tuple(self._inside.items()):
            call = self.calls[stream_id]
            if call.held or call.waiting:
                self._inside[stream_id] = now
            elif now - since > limits.pause_s:
                call.break_off(CANCELLED, f"a message paused for {limits.pause_s:g} s")
        if self._deaf:
            self._pinged = 0.0  # whatever it says is not heard
        elif self._pinged:
            if self._heard < self._pinged and now - self._pinged > keep.timeout_ms / 1000:
                transport.abort()
        elif (
            now - self._heard > keep.time_ms / 1000
            and (self.calls or keep.permit_without_calls)
            and (not keep.max_pings_without_data or self._pings < keep.max_pings_without_data)
        ):
            self._pinged = now
            self._pings += 1
            self._h2.ping()
            self._plan()
        age = keep.max_connection_age_ms / 1000
        if age and now - self._began > age and not self._leaving:
            self.shut()
        grace = keep.max_connection_age_grace_ms / 1000
        if self._leaving and not self.server.closing and grace and now - self._leaving > grace:
            transport.abort()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self.calls)

    def shut(self) -> None:
        """Tells the client to go elsewhere with new calls; closes when none is left.

        Where the server stops those end in which nothing is asked, also those that have begun since.
        """
        if self.transport is None:
            return
        if not self._leaving:
            self._leaving = self.loop.time()
            with contextlib.suppress(ngh2.NGH2Error):
                self._h2.send_shutdown_notice()
            self._plan()
        if self.server.closing:
            for call in tuple(self.calls.values()):
                call.stop()

    def _end(self) -> None:
        """Closes once what is to be said has been said. What has come behind that is not looked at."""
        self._flush()
        self._frames.close()
        self._on_event = {}  # libnghttp2 has ended the connection, and takes nothing more
        if self.transport is not None:
            self.transport.close()
