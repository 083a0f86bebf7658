"""How answers are sent, within the client's windows: small ones by libnghttp2, large ones without copies.

libnghttp2 copies what it frames three times, which of a small answer costs less than to do the same in Python: until a
connection has a large answer all go that way (``Plain``). From that one on, or, where it comes while libnghttp2 has
answers to send, from the next one on, libnghttp2 frames and compresses headers and
trailers, and is told of no DATA, and of no window either, for its windows would only ever grow (``Outgoing``; RFC 9113,
5.2 and 6.9).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import ngh2

from workbench.protocol.binary import Buffer
from workbench.server.grpc_frames import WHOLE_WINDOW, data_head

_LEAST_FRAME = 16_384
_FRAME = 256 * 1024  # no larger frames, that calls take turns

LARGE = 64 * 1024
"""Bytes of an answer that is worth frames of our own."""

Trailers = tuple[tuple[bytes, bytes], ...]


class Overflow(Exception):
    """The client has opened a window beyond the largest there is: a connection error."""


class Ready(NamedTuple):
    """What can be sent now: frames, their bytes without their heads, and streams that end behind them."""

    parts: list[Buffer]
    size: int
    ended: list[tuple[int, Trailers]]


class _Outlet:
    """Of one stream: its window, what waits, and what ends it then."""

    __slots__ = ("pieces", "queued", "ready", "stream_id", "trailers", "window")

    def __init__(self, stream_id: int, window: int) -> None:
        self.stream_id = stream_id
        self.window = window
        self.pieces: deque[Buffer] = deque()
        self.queued = 0
        self.ready = False
        self.trailers: Trailers | None = None


class Plain:
    """The answers of a connection that has had no large one: libnghttp2 has them, and hears of all windows."""

    sendable = False
    """Never: what can be sent libnghttp2 sends."""

    def __init__(self, h2: Any) -> None:
        self._h2 = h2

    @property
    def queued(self) -> int:
        """Bytes of answers that wait."""
        size: int = self._h2.queued_body_size()
        return size

    def settings(self, changed: Mapping[int, int]) -> None:
        """See ``Outgoing``."""

    def grow(self, stream_id: int, size: int) -> None:
        """See ``Outgoing``."""

    def add(self, stream_id: int, data: Buffer) -> None:
        """Bytes to send on a stream."""
        with contextlib.suppress(ngh2.NGH2Error):  # reset, which the next events will say
            self._h2.send_data(stream_id, data)

    def end(self, stream_id: int, trailers: Trailers) -> bool:
        """See ``Outgoing``; False: libnghttp2 knows what they have to wait for."""
        return False

    def waiting(self, stream_id: int) -> int:
        """See ``Outgoing``."""
        size: int = self._h2.queued_body_size(stream_id)
        return size

    def is_shut(self, stream_id: int) -> bool:
        """Whether a window is, for which libnghttp2 waits with trailers, too."""
        try:
            left: int = min(self._h2.remote_window_size, self._h2.stream_remote_window_size(stream_id))
        except ngh2.NGH2Error:  # it is over, which the next events will say
            return False
        return left <= 0

    def drop(self, stream_id: int) -> None:
        """See ``Outgoing``."""

    def close(self) -> None:
        """See ``Outgoing``."""

    def take(self, most: int) -> Ready:
        """Nothing: see ``sendable``."""
        return Ready([], 0, [])


class Outgoing:
    """The answers of a connection's calls that wait to be sent. ``queued`` are their bytes.

    It begins with the windows that libnghttp2 has counted up to now for the connection and its ``streams``; there must
    be nothing that it has still to send.
    """

    def __init__(self, h2: Any, streams: Iterable[int]) -> None:
        self.queued = 0
        settings: Mapping[int, int] = h2.remote_settings
        self._window: int = h2.remote_window_size
        self._initial = settings[ngh2.Setting.INITIAL_WINDOW_SIZE]
        self._frame = min(settings[ngh2.Setting.MAX_FRAME_SIZE], _FRAME)
        self._outlets: dict[int, _Outlet] = {}
        self._ready: deque[_Outlet] = deque()  # have something to send and a window
        self._spent: dict[int, int] = {}  # of streams without an outlet: how much of their first window is gone
        for stream_id in streams:
            with contextlib.suppress(ngh2.NGH2Error):  # it is over, which the next events will say
                self._spent[stream_id] = self._initial - h2.stream_remote_window_size(stream_id)

    # -- windows ------------------------------------------------------------------------------------------------------

    def settings(self, changed: Mapping[int, int]) -> None:
        """The client has said how large windows are at first, and its frames.

        Raises:
            Overflow: a window is too large now.
        """
        self._frame = min(changed.get(ngh2.Setting.MAX_FRAME_SIZE, self._frame), _FRAME)
        initial = changed.get(ngh2.Setting.INITIAL_WINDOW_SIZE, self._initial)
        more, self._initial = initial - self._initial, initial
        if more:
            if self._spent and initial - min(self._spent.values()) > WHOLE_WINDOW:
                raise Overflow
            for outlet in tuple(self._outlets.values()):
                outlet.window += more
                if outlet.window > WHOLE_WINDOW:
                    raise Overflow
                self._wake(outlet)

    def grow(self, stream_id: int, size: int) -> None:
        """The client takes so many bytes more on a stream, or (0) on all together.

        Raises:
            Overflow: that is too many.
        """
        if not stream_id:
            self._window += size
            if self._window > WHOLE_WINDOW:
                raise Overflow
            return
        outlet = self._outlets.get(stream_id)
        if outlet is None:
            spent = self._spent[stream_id] = self._spent.get(stream_id, 0) - size
            if self._initial - spent > WHOLE_WINDOW:
                raise Overflow
            return
        outlet.window += size
        if outlet.window > WHOLE_WINDOW:
            raise Overflow
        self._wake(outlet)

    def _outlet(self, stream_id: int) -> _Outlet:
        outlet = self._outlets.get(stream_id)
        if outlet is None:
            outlet = _Outlet(stream_id, self._initial - self._spent.pop(stream_id, 0))
            self._outlets[stream_id] = outlet
        return outlet

    def _wake(self, outlet: _Outlet) -> None:
        if outlet.pieces and not outlet.ready and outlet.window > 0:
            outlet.ready = True
            self._ready.append(outlet)

    # -- answers ------------------------------------------------------------------------------------------------------

    def add(self, stream_id: int, data: Buffer) -> None:
        """Bytes to send on a stream."""
        size = len(data)
        outlet = self._outlet(stream_id)
        outlet.pieces.append(data)
        outlet.queued += size
        self.queued += size
        self._wake(outlet)

    def end(self, stream_id: int, trailers: Trailers) -> bool:
        """Ends a stream with trailers once all has been sent; False where nothing waits, and they can go at once."""
        outlet = self._outlets.get(stream_id)
        if outlet is None or not outlet.pieces:
            return False
        outlet.trailers = trailers
        return True

    def waiting(self, stream_id: int) -> int:
        """Bytes that wait on a stream."""
        outlet = self._outlets.get(stream_id)
        return 0 if outlet is None else outlet.queued

    def is_shut(self, stream_id: int) -> bool:
        """Never: of what libnghttp2 knows no window is (see ``Frames``)."""
        return False

    def drop(self, stream_id: int) -> None:
        """The stream is over: what waits is not sent."""
        self._spent.pop(stream_id, None)
        outlet = self._outlets.pop(stream_id, None)
        if outlet is not None:
            self.queued -= outlet.queued
            if outlet.ready:
                self._ready.remove(outlet)

    def close(self) -> None:
        """The connection is gone."""
        self._outlets.clear()
        self._ready.clear()
        self.queued = 0

    @property
    def sendable(self) -> bool:
        """Whether something can be sent now."""
        return bool(self._ready) and self._window > 0

    def take(self, most: int) -> Ready:
        """About ``most`` bytes of what can be sent now, the calls in turn."""
        parts: list[Buffer] = []
        ended: list[tuple[int, Trailers]] = []
        size, ready = 0, self._ready
        while ready and self._window > 0 and size < most:
            outlet = ready.popleft()
            size += self._frames_of(outlet, parts, most - size)
            if outlet.pieces and outlet.window > 0:
                ready.append(outlet)
                continue
            outlet.ready = False
            if outlet.trailers is not None and not outlet.pieces:
                ended.append((outlet.stream_id, outlet.trailers))
                outlet.trailers = None
        self.queued -= size
        return Ready(parts, size, ended)

    def _frames_of(self, outlet: _Outlet, parts: list[Buffer], most: int) -> int:
        """A turn of one stream: all its small pieces, or one part of a large one."""
        pieces, sent = outlet.pieces, 0
        while pieces and sent < most:
            room = min(outlet.window, self._window, self._frame)
            if room <= 0:
                break
            piece = pieces[0]
            size = len(piece)
            if size > room:
                view = memoryview(piece)
                piece, pieces[0], size = view[:room], view[room:], room
            else:
                pieces.popleft()
            parts += (data_head(outlet.stream_id, size), piece)
            outlet.window -= size
            self._window -= size
            sent += size
            if size == room:
                break
        outlet.queued -= sent
        return sent
