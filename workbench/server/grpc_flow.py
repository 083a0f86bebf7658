"""What a connection of the gRPC front end lets its clients send: windows, and the memory that messages share."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ngh2

from workbench.protocol.binary import Buffer
from workbench.server.grpc_call import Call
from workbench.server.grpc_frames import FRAME, WHOLE_WINDOW, Frames, window_update
from workbench.server.grpc_message import FRAMING
from workbench.server.grpc_send import Outgoing, Overflow, Plain
from workbench.server.grpc_unpack import Packed
from workbench.server.unpacking import AT_ONCE

if TYPE_CHECKING:
    from workbench.server.grpc_server import GrpcServer

_TELL_FROM = 1024 * 1024  # bytes past libnghttp2 until the client is told that it may send as many more on all streams


class FlowControl(ABC):
    """The part of a connection that a call asks for room (``Carrier``)."""

    server: GrpcServer
    calls: dict[int, Call]
    _inside: dict[int, float]
    _heard: float

    def __init__(self, h2: Any) -> None:
        self._h2 = h2
        self._frames = Frames(self)
        self._out: Plain | Outgoing = Plain(h2)
        self._has_large = False  # answers, or is about to
        self._hears = False  # what the client, or libnghttp2, has said is being handled
        # Bytes that may be unpacked on the loop of what has come in one piece: it may be many messages.
        self._at_once = 0
        self._in_frame = False  # libnghttp2 was asked for a part of what it has to send, and may be amid a frame
        self._admitted: list[Call] = []  # have been granted the memory for a large message
        self._own = bytearray()  # frames of our own that are to be sent
        self._padding: dict[int, int] = {}  # bytes of it by stream, of which the client is to be told
        self._past = 0  # bytes that were taken past libnghttp2

    @abstractmethod
    def hold_reading(self) -> None:
        """See ``Reader``."""

    @abstractmethod
    def read_on(self) -> None:
        """See ``Reader``."""

    @abstractmethod
    def pass_on(self, data: Buffer) -> bool:
        """See ``Owner``."""

    @abstractmethod
    def _plan(self) -> None:
        """Has what is to be sent sent soon."""

    def _acknowledge(self, stream_id: int, size: int) -> None:
        if size:
            try:
                self._h2.acknowledge_received_data(size, stream_id)
            except (ngh2.NGH2Error, ValueError):  # the stream is over
                return

    def _settle(self, call: Call) -> None:
        """Tells the client that the call takes as much more as it has taken."""
        self._acknowledge(call.stream_id, call.owed)
        call.owed = 0

    def resume(self, call: Call) -> None:
        """See ``Carrier``."""
        if not call.waiting:
            self._settle(call)
            self._plan()

    def reserve(self, call: Call, size: int) -> None:
        """See ``Carrier``: a message that fits the window needs no room, a larger one waits until there is some."""
        if size > self.server.options.limits.window:
            self.server.memory.ask(call, size, self._granted)

    def keep(self, call: Call, size: int) -> None:
        """See ``Carrier``; what was reserved is kept already."""
        if size <= self.server.options.limits.window:
            self.server.memory.take(call, size)

    def let_go(self, call: Call, size: int) -> None:
        """See ``Carrier``."""
        self.server.memory.release(call, size)

    def unpack(self, call: Call, data: memoryview, encoding: str) -> memoryview | None:
        """See ``Carrier``."""
        packed = Packed(data, encoding, self._had(call, data.nbytes + FRAMING))
        if data.nbytes <= AT_ONCE and self._at_once > 0:
            is_whole = packed.step(self._at_once, self.room(packed))
            self._at_once -= packed.size
            self.grown(call, packed)
            if is_whole:
                return packed.plain
        self.server.unpacker.add(self, call, packed)
        return None

    def give_up_unpacking(self, call: Call) -> None:
        """See ``Carrier``."""
        self.server.unpacker.forget(self, call)

    def room(self, packed: Packed) -> int:
        """See ``Memory``: what there is left, or all of it for one that is alone."""
        memory, window = self.server.memory, self.server.options.limits.window
        return max(window, memory.size - memory.used + packed.counted)

    def grown(self, call: Call, packed: Packed) -> None:
        """See ``Memory``: what is larger than the window counts as if it had come so, and what is not does not."""
        size = packed.size if packed.size > self.server.options.limits.window else 0
        if size > packed.counted:
            self.server.memory.take(call, size - packed.counted)
        elif size < packed.counted and packed.is_whole:  # packing it has made it larger
            self.server.memory.release(call, packed.counted - size)
        else:
            return
        packed.counted = size

    def _had(self, call: Call, size: int) -> int:
        """What a message of ``size`` bytes was given before it came, which what it unpacks to takes over."""
        return min(size, call.reserved) if size > self.server.options.limits.window else 0

    def _granted(self, call: Call, size: int) -> None:
        if call.stream_id not in self.calls:
            return
        # The whole message at once, not a window at a time. libnghttp2 checks what is sent against a content-length.
        if b"content-length" in call.headers:
            self._widen(call, size + FRAME)
        else:
            self._admitted.append(call)
        if not call.held:
            self._settle(call)
        self._plan()

    def _widen(self, call: Call, size: int) -> None:
        call.widened = size > self.server.options.limits.window
        with contextlib.suppress(ngh2.NGH2Error):
            self._h2.set_local_window_size(min(size, WHOLE_WINDOW), stream_id=call.stream_id)

    def _expect(self) -> None:
        """Has what is to come of large messages sent. Not while events of libnghttp2 wait to be handled."""
        admitted, self._admitted = dict.fromkeys(self._admitted), []
        self._has_large = True  # a large answer will follow, as a rule
        for call in admitted:
            missing = min(call.missing, WHOLE_WINDOW - self.server.options.limits.window)
            if call.stream_id in self.calls and (past := self._frames.expect(call.stream_id, call, missing)):
                self._own += window_update(call.stream_id, past)

    def came(self, stream_id: int, size: int) -> None:
        """See ``Owner``."""
        self.credit(0, size)
        call = self.calls.get(stream_id)
        if call is None or call.receiver is None:
            return
        self._inside[stream_id] = self._heard
        call.came(size)
        if not call.inside:
            self._whole(stream_id)

    @abstractmethod
    def _cut_off(self, code: int) -> None:
        """Ends the connection, and says why."""

    def grow(self, stream_id: int, size: int) -> bool | None:
        """See ``Owner``: libnghttp2 hears of what is no use, or concerns none of the calls."""
        if not size or (stream_id and stream_id not in self.calls):
            return None
        try:
            self._out.grow(stream_id, size)
        except Overflow:
            self._cut_off(ngh2.ErrorCode.FLOW_CONTROL_ERROR)
            return False
        return True

    def knows(self, stream_id: int, size: int) -> bool:
        """See ``Owner``."""
        return size > 0 and (not stream_id or stream_id in self.calls)

    def first_window(self, size: int) -> bool:
        """See ``Owner``."""
        return self._changed({ngh2.Setting.INITIAL_WINDOW_SIZE: size})

    def _changed(self, settings: Mapping[int, int]) -> bool:
        """The client has said how large windows are at first, or frames; False when that is too much."""
        try:
            self._out.settings(settings)
        except Overflow:
            self._cut_off(ngh2.ErrorCode.FLOW_CONTROL_ERROR)
            return False
        return True

    def flooded(self) -> None:
        """See ``Owner``."""
        self._cut_off(ngh2.ErrorCode.ENHANCE_YOUR_CALM)

    def begin_large(self) -> None:
        """See ``Carrier``: this and all that follows goes without libnghttp2, or what follows, where that is later."""
        if isinstance(self._out, Plain):
            self._has_large = True
            if not self._hears:
                self._send_large()

    def _send_large(self) -> None:
        """Has answers sent without libnghttp2 from now on, if it has none to send and no window under way.

        Heads of answers, and trailers, it may have: they leave before what is framed here. Not while events of it wait
        to be handled: it would know windows of calls that are not known here yet. Nor while one is shut: how far, it
        does not say, and it sends no trailers then. Later on it hears of none. Nor amid a DATA frame: what of it has
        been sent libnghttp2 takes from the windows at its end.
        """
        if not isinstance(self._out, Plain):
            self._has_large = False
            return
        if self._out.queued or self._in_frame or self._frames.in_update:
            return
        h2 = self._h2
        try:
            windows = [h2.remote_window_size, h2.remote_settings[ngh2.Setting.INITIAL_WINDOW_SIZE]]
            windows += map(h2.stream_remote_window_size, self.calls)
            if min(windows) > 0:
                self._out = Outgoing(h2, self.calls)
                self._frames.takes_updates = True
        except ngh2.NGH2Error:  # a call, or all, are over, which the next events will say
            return

    def credit(self, stream_id: int, size: int) -> None:
        """See ``Owner``; 0: on all streams."""
        if stream_id:
            self._padding[stream_id] = self._padding.get(stream_id, 0) + size
        self._past += size
        if self._past >= _TELL_FROM:
            self._own += window_update(0, self._past)
            self._past = 0

    def _whole(self, stream_id: int) -> None:
        if self._inside.pop(stream_id, None) is not None:
            self.server.halves.count(self, stream_id, 0)

    def _release(self, call: Call) -> None:
        if call.reserved or call.waiting:
            call.waiting = 0
            self.server.memory.release(call, call.reserved)
