"""Where frames of HTTP/2 begin, and DATA frames of large messages, which go straight to their place.

libnghttp2's binding hands each DATA frame out as an object of its own. Of a message that has been granted its memory
the connection reads the rest without it: what belongs to the message is written where it is put together (from the
socket itself, where it can be), and libnghttp2 is not told of it. Its windows stay true: the client has been given just
as much more to send, by a WINDOW_UPDATE of our own, as is taken past it. Everything else, and whatever is odd, goes to
libnghttp2 as it came, but that it never has half a DATA frame: what is here of one is a frame to it. It sees the end of
a stream as an empty frame, and, once answers are sent without it, no windows.
"""

from __future__ import annotations

import struct
from typing import Protocol

from workbench.protocol.binary import Buffer

WHOLE_WINDOW = 2**31 - 1
"""The largest window that there is."""

FRAME = 64 * 1024
"""The largest frame that is taken, in bytes."""

HEAD = 9
"""Bytes before each frame's payload: its length, kind and flags, and its stream."""

_HEAD = struct.Struct(">BHBBI").pack
_NUMBERS = struct.Struct(">II").unpack_from
_ENTRY = struct.Struct(">HI").unpack_from
_PREFACE = 24
_UPDATE = 4  # bytes of a WINDOW_UPDATE
_SETTING = 6  # bytes of an entry of SETTINGS
_MOST_SETTINGS = 32 * _SETTING  # libnghttp2 refuses more
_DATA = 0
_SETTINGS = 4
_WINDOW_UPDATE = 8
_BLOCKS = (1, 5, 9)  # HEADERS, PUSH_PROMISE, CONTINUATION
_END_STREAM, _END_HEADERS, _PADDED = 1, 4, 8
_ACK = 1
_FIRST_WINDOW = 4  # SETTINGS_INITIAL_WINDOW_SIZE
_PASSED, _WHOLE, _IN_PARTS = range(3)  # what becomes of a frame: as it comes, when it is whole, its parts one by one
_IDLE_UPDATES = 10_000  # for nothing: more are a flood
_BY_SOCKET = 4096  # less is read together with what follows


def window_update(stream_id: int, size: int) -> bytes:
    """The frame that lets a client send ``size`` bytes more on a stream, or (0) on all together."""
    return b"\0\0\4\10\0" + stream_id.to_bytes(4, "big") + size.to_bytes(4, "big")


def data_head(stream_id: int, size: int, flags: int = 0) -> bytes:
    """What precedes ``size`` bytes of DATA."""
    return _HEAD(size >> 16, size & 0xFFFF, _DATA, flags, stream_id)


def _stream(head: bytes) -> int:
    return int.from_bytes(head[5:HEAD], "big") & 0x7FFFFFFF


class Taker(Protocol):
    """Whose message it is."""

    def place(self) -> memoryview | None:
        """Where the rest of the message goes, with room for ``HEAD`` bytes more; None when it is not wanted now."""


class Owner(Protocol):
    """The connection."""

    def pass_on(self, data: Buffer) -> bool:
        """Gives bytes to libnghttp2 and handles what it says of them; False when the connection is over."""

    def came(self, stream_id: int, size: int) -> None:
        """So many bytes of the message on a stream are in their place, or dropped where there is none."""

    def knows(self, stream_id: int, size: int) -> bool:
        """Whether ``grow`` needs no libnghttp2, as long as the call goes on."""

    def grow(self, stream_id: int, size: int) -> bool | None:
        """The client takes so many bytes more, on a stream or (0) in all.

        None when libnghttp2 has to be told instead, False when the connection is over.
        """

    def first_window(self, size: int) -> bool:
        """The first windows of streams are of ``size``, also of those that there are; False when it is too much."""

    def flooded(self) -> None:
        """The client has sent so many WINDOW_UPDATE frames for nothing that it must mean harm: cuts it off."""

    def credit(self, stream_id: int, size: int) -> None:
        """The client may send so many bytes more on a stream: as much padding was skipped."""


class Expected:
    """What of a message is still to be taken past libnghttp2, and whose it is."""

    __slots__ = ("left", "stream_id", "taker")

    def __init__(self, stream_id: int, taker: Taker, left: int) -> None:
        self.stream_id = stream_id
        self.taker = taker
        self.left = left


class Frames:
    """Cuts what a client sends into what libnghttp2 gets and what belongs to messages that are expected."""

    __slots__ = (
        "_direct", "_end", "_head", "_in_block", "_kind", "_left", "_owner", "_stream", "_tail", "expected",
        "idle_updates", "takes_updates",
    )  # fmt: skip

    def __init__(self, owner: Owner) -> None:
        self._owner: Owner | None = owner
        self.expected: dict[int, Expected] = {}
        self.takes_updates = False
        """Whether the owner, not libnghttp2, is told how much the client takes."""
        self.idle_updates = 0
        """WINDOW_UPDATE frames since the last answer."""
        self._kind = 0  # of the frame that has begun
        self._left = _PREFACE  # to come of the payload of the frame that has begun
        self._head = b""  # the beginning of a frame that nobody has been given yet
        self._in_block = False  # only CONTINUATION may follow
        self._stream = 0  # of the frame that has begun, if it is DATA of which libnghttp2 gets the parts
        self._direct: Expected | None = None  # the message that the frame that has begun belongs to
        self._tail = 0  # bytes of that frame behind those of the message
        self._end = 0  # its END_STREAM flag

    def close(self) -> None:
        """The connection is gone."""
        self._owner = self._direct = None
        self.expected.clear()

    @property
    def in_update(self) -> bool:
        """Whether libnghttp2 has the beginning of a frame that changes windows."""
        return self._left > 0 and self._kind in (_WINDOW_UPDATE, _SETTINGS)

    def _flooded(self) -> bool:
        if self._owner is not None:
            self._owner.flooded()
        return False

    def expect(self, stream_id: int, taker: Taker, missing: int) -> int:
        """A message whose last ``missing`` bytes are not here; gives how many of them will go past libnghttp2.

        So many the client is to be allowed beyond its window. 0: libnghttp2 will have them all.
        """
        under_way = self._left if self._stream == stream_id else 0  # which libnghttp2 will have, too
        left = missing - under_way
        if left <= 0:
            return 0
        self.expected[stream_id] = Expected(stream_id, taker, left)
        return left

    def place(self) -> memoryview | None:
        """Where the next bytes from the socket can go, if they belong to a message: then ``read`` is told of them."""
        direct, left = self._direct, self._left
        if direct is None or left < _BY_SOCKET:
            return None
        place = direct.taker.place()
        return None if place is None else place[: left + HEAD]  # the next frame's head will be written over

    def read(self, place: memoryview, size: int) -> bool:
        """``size`` bytes were written where ``place`` said; False when the connection is over."""
        mine = min(size, self._left)
        behind = bytes(place[mine:size])
        return self._took(mine) and (not behind or self._cut(memoryview(behind)))

    def add(self, data: Buffer) -> bool:
        """Bytes from the socket; False when the connection is over."""
        if self._head:
            data, self._head = b"".join((self._head, data)), b""
        if self.expected or self._direct is not None or (self._left and self._stream):
            return self._cut(memoryview(data))
        return self._follow(data)

    def _pass_on(self, data: Buffer) -> bool:
        return self._owner is not None and self._owner.pass_on(data)

    def _follow(self, data: Buffer) -> bool:
        """As ``add``, while no message is expected: all goes to libnghttp2 but WINDOW_UPDATE and what is cut off."""
        size, position, before, begin = len(data), self._left, -1, -1
        updates: list[int] = []
        while position + HEAD <= size:
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            if data[position + 3] == _WINDOW_UPDATE:
                self.idle_updates += 1
                if not self.takes_updates:
                    pass
                elif (
                    length != _UPDATE
                    or self._in_block
                    or position + HEAD + _UPDATE > size
                    or (begin >= 0 and data[begin + 3] in _BLOCKS and not data[begin + 4] & _END_HEADERS)
                    or not self._knows(data, position)
                ):
                    self.idle_updates -= len(updates) + 1  # they are counted there
                    return self._cut(memoryview(data))
                else:
                    updates.append(position)
            elif data[position + 3] == _SETTINGS and self.takes_updates:  # which changes windows
                self.idle_updates -= len(updates)
                return self._cut(memoryview(data))
            before, begin = begin, position
            position += HEAD + length
        if self.idle_updates > _IDLE_UPDATES:
            return self._flooded()
        is_cut = position > size and begin >= 0 and data[begin + 3] == _DATA
        if is_cut:  # the rest of it comes later
            position, begin = begin, before
        if begin >= 0:
            self._note(bytes(data[begin : begin + HEAD]))
        if is_cut:
            self._left = 0
        elif position >= size:
            self._left, position = position - size, size
        else:
            self._left, self._head = 0, bytes(data[position:])
        if updates:
            is_open = self._apart(memoryview(data)[:position], updates)
        else:
            is_open = not position or self._pass_on(data if position == size else data[:position])
        return is_open and (not is_cut or self._cut(memoryview(data)[position:]))

    def _apart(self, data: memoryview, updates: list[int]) -> bool:
        """Takes WINDOW_UPDATE frames out."""
        rest: list[Buffer] = []
        run = 0
        for position in updates:
            if run < position:
                rest.append(data[run:position])
            run = position + HEAD + _UPDATE
        if run < len(data):
            rest.append(data[run:])
        if rest and not self._pass_on(rest[0] if len(rest) == 1 else b"".join(rest)):
            return False
        owner = self._owner
        if owner is None:
            return False
        for position in updates:
            stream_id, size = _NUMBERS(data, position + 5)
            # None: what was passed on has ended the call; libnghttp2 may be in the middle of a frame now
            if owner.grow(stream_id & WHOLE_WINDOW, size & WHOLE_WINDOW) is False:
                return False
        return True

    def _knows(self, data: Buffer, position: int) -> bool:
        stream_id, size = _NUMBERS(data, position + 5)
        return self._owner is not None and self._owner.knows(stream_id & WHOLE_WINDOW, size & WHOLE_WINDOW)

    def _note(self, head: bytes) -> None:
        self._kind = head[3]
        self._stream = 0
        self._in_block = head[3] in _BLOCKS and not head[4] & _END_HEADERS

    def _cut(self, data: memoryview) -> bool:
        """As ``add``, frame by frame."""
        size = len(data)
        position = run = 0  # what is from ``run`` on goes to libnghttp2
        told = False  # the frame that is here goes there, too
        while position < size:
            if self._left:
                piece = min(self._left, size - position)
                position += piece
                if self._direct is None:
                    if self._stream and not self._part(piece):
                        return False
                    self._left -= piece
                    continue
                place = self._direct.taker.place()
                if place is not None:
                    place[:piece] = data[position - piece : position]
                run = position
                if not self._took(piece):
                    return False
                continue
            head = bytes(data[position : position + HEAD])
            if len(head) < HEAD:
                break
            length = int.from_bytes(head[:3], "big")
            end = position + HEAD + length
            way = _PASSED if told else self._way(head, length, end > size)
            if way == _PASSED:
                self._note(head)
                if self._kind == _WINDOW_UPDATE and not told and not self._count_update():
                    return False
                told = False
                self._left = length
                position += HEAD
                continue
            if run < position:  # it may end the call, and is heard first
                if not self._pass_on(data[run:position]):
                    return False
                run = position
                continue
            if way == _IN_PARTS:
                position += HEAD
                run = position
                self._begin(head, length)
                continue
            if end > size:
                break
            done = self._take(head, data[position + HEAD : end])
            if done is False:
                return False
            if done:
                position = run = end
            else:
                told = True
        self._head = bytes(data[position:])
        return run == position or self._pass_on(data[run:position])

    def _way(self, head: bytes, length: int, is_cut: bool) -> int:
        """What becomes of a frame, of which the end is not here where it ``is_cut``."""
        kind = head[3]
        if self._in_block:
            return _PASSED
        if kind == _DATA:
            stream_id = _stream(head)
            if not 0 < length <= FRAME or not stream_id or not (is_cut or stream_id in self.expected):
                return _PASSED
            return _WHOLE if head[4] & _PADDED else _IN_PARTS
        if not self.takes_updates:
            return _PASSED
        if kind == _WINDOW_UPDATE:
            return _WHOLE if length == _UPDATE else _PASSED
        is_list = kind == _SETTINGS and 0 < length <= _MOST_SETTINGS and not length % _SETTING
        return _WHOLE if is_list and not head[4] & _ACK and not _stream(head) else _PASSED

    def _take(self, head: bytes, payload: memoryview) -> bool | None:
        """A frame that is whole; None when libnghttp2 is to have it, False when the connection is over."""
        if head[3] == _WINDOW_UPDATE:
            return self._count_update() and self._grow(_stream(head), payload)
        if head[3] == _SETTINGS:
            return self._settle(head, payload)
        return self._padded(_stream(head), head[4] & _END_STREAM, payload)

    def _count_update(self) -> bool:
        self.idle_updates += 1
        return self.idle_updates <= _IDLE_UPDATES or self._flooded()

    def _grow(self, stream_id: int, payload: memoryview) -> bool | None:
        size = int.from_bytes(payload, "big") & WHOLE_WINDOW
        return self._owner.grow(stream_id, size) if self._owner is not None else False

    def _settle(self, head: bytes, payload: memoryview) -> bool | None:
        """Takes the first windows out of SETTINGS: libnghttp2 is not told what is sent, and would find them too large.

        A window beyond measure it is told, and complains.
        """
        rest = b""
        for position in range(0, len(payload), _SETTING):
            number, value = _ENTRY(payload, position)
            if number != _FIRST_WINDOW:
                rest += payload[position : position + _SETTING]
            elif value > WHOLE_WINDOW:
                return None
            elif self._owner is None or not self._owner.first_window(value):
                return False
        return self._pass_on(len(rest).to_bytes(3, "big") + head[3:] + rest)

    def _padded(self, stream_id: int, end: int, payload: memoryview) -> bool:
        """Takes a padded frame as one without padding."""
        padding, size = payload[0] + 1, len(payload)
        if padding > size:  # which libnghttp2 complains of
            return self._pass_on(data_head(stream_id, size, end | _PADDED) + bytes(payload))
        if self._owner is not None:
            self._owner.credit(stream_id, padding)
        size -= padding
        return self._cut(memoryview(data_head(stream_id, size, end) + bytes(payload[1 : 1 + size])))

    def _begin(self, head: bytes, length: int) -> None:
        """A DATA frame of a message that is expected, or one that libnghttp2 gets in parts."""
        self._note(head)
        self._end = head[4] & _END_STREAM
        direct = self._direct = self.expected.get(_stream(head))
        if direct is None:
            self._stream, self._left = _stream(head), length
        else:
            self._left = min(length, direct.left)
            self._tail = length - self._left

    def _part(self, size: int) -> bool:
        """The next bytes of the frame that has begun are one of their own to libnghttp2.

        Of one that it has half, when the call ends, it would never say what the client may send in its place.
        """
        return self._pass_on(data_head(self._stream, size, self._end if size == self._left else 0))

    def _took(self, size: int) -> bool:
        """So many bytes of a message have been taken; False when the connection is over."""
        direct = self._direct
        assert direct is not None
        self._left -= size
        direct.left -= size
        if not direct.left and self.expected.get(direct.stream_id) is direct:
            del self.expected[direct.stream_id]
        if self._owner is not None:
            self._owner.came(direct.stream_id, size)
        if self._left:
            return True
        self._direct = None
        if self._tail:  # libnghttp2 is given what is behind
            self._stream, self._left, self._tail = direct.stream_id, self._tail, 0
            return True
        # and an empty frame for the end of a stream
        return not self._end or self._pass_on(data_head(direct.stream_id, 0, self._end))
