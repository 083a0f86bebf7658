"""The protocol between a server and a model's process.

A frame is a fixed header, a head in ``marshal`` format 2 (plain tuples, strings and numbers only; every Python reads
and writes it, and nothing in it can run), and a payload of tensor bytes. A large payload lies in a slab, a piece of
memory that both processes map; its file descriptor travels with the first frame that uses it. Frames go both ways at
any time.

Every tensor starts at a multiple of ``ALIGN`` in the payload.
"""

from __future__ import annotations

import array
import marshal
import socket
import struct
from collections import deque
from typing import Any

import numpy as np

from workbench.backends._child.dtypes import NUMPY, deserialize, serialize

HEADER = struct.Struct("<IIBBHIQ")
"""Bytes of the head and of the inline payload, kind, descriptors, ``MAGIC``, slab (0: inline), payload bytes in it."""

MAGIC = 0x4257

ALIGN = 16
INLINE_LIMIT = 48 * 1024
"""A payload up to this size is cheaper through the socket than through a slab with its bookkeeping."""

# server to model
SETUP, EXECUTE, ANSWER, FINALIZE, TAKEN = 1, 2, 3, 4, 5
# model to server
READY, FAILED, RESPONSES, CALL, LOG, FREED = 11, 12, 13, 14, 15, 16

# on a socket of its own: whether the model is ready, and what its is_ready says
CHECK, CHECKED = 21, 22

# what a CALL asks for
INFER, CANCELLED, CANCEL, ASK = 1, 2, 3, 4

RESPONSE_WINDOW = 32
"""Responses of one request of a decoupled model, but for the final one, that may be under way: sent and not taken."""

HEAD_LIMIT = 1 << 30
"""A head is small, but for the files of a model that another one loads."""

COPY_LIMIT = 4096
"""A tensor up to this size is copied when it is packed, which is faster than keeping its array."""

_PADDING = bytes(ALIGN)
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class ProtocolError(Exception):
    """The peer sent something that is no frame."""


class Packer:
    """Collects the tensors of one message.

    ``add`` gives the number of the tensor's description (name, datatype, shape, bytes); ``kinds`` are the descriptions,
    each once, in the order of their numbers, and travel in the head. The tensors lie in the payload in order.
    """

    __slots__ = ("_numbers", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.size = 0
        self._numbers: dict[tuple[str, str, tuple[int, ...], int], int] = {}

    @property
    def kinds(self) -> tuple[tuple[str, str, tuple[int, ...], int], ...]:
        """The descriptions."""
        return tuple(self._numbers)

    def add(self, name: str, datatype: str, data: Any) -> int:
        """Takes a tensor; a small one is copied, a large one kept until the message is sent."""
        if datatype == "BYTES":
            part: Any = serialize(data)
            size = len(part)
        else:
            size = data.nbytes
            if size <= COPY_LIMIT:
                part = data.tobytes()
            else:
                part = data if data.flags.c_contiguous else np.ascontiguousarray(data)
                if datatype == "BF16":  # its arrays offer no buffer
                    part = part.view(np.uint16)
        if size:
            self.parts.append(part)
            rest = -size % ALIGN
            if rest:
                self.parts.append(_PADDING[:rest])
            self.size += size + rest
        numbers = self._numbers
        return numbers.setdefault((name, datatype, data.shape, size), len(numbers))

    def inline(self) -> bytes:
        """The payload as one piece."""
        return b"".join(self.parts)

    def copy_into(self, target: Any) -> None:
        """Copies the payload into a slab's memory (an array of uint8)."""
        at = 0
        for part in self.parts:
            if isinstance(part, np.ndarray):
                size = part.nbytes
                target[at : at + size].view(part.dtype)[:] = part.reshape(-1)
            else:
                size = len(part)
                target[at : at + size] = np.frombuffer(part, np.uint8)
            at += size


def unpack(datatype: str, shape: Any, buffer: Any, offset: int, size: int) -> Any:
    """The array of a tensor: a view of ``buffer``, except for BYTES.

    Raises:
        TypeError, ValueError: the buffer ends before the tensor does.
    """
    if datatype == "BYTES":
        return deserialize(buffer, offset, size).reshape(shape)
    dtype = NUMPY[datatype]
    if not size:
        return np.empty(shape, dtype)
    if type(buffer) is bytearray:
        return np.ndarray(shape, dtype, buffer, offset)
    # np.ndarray would look through a memoryview to the memory under it and drop the slab's lease.
    return np.frombuffer(buffer, dtype, size // dtype.itemsize, offset).reshape(shape)


def pack_columns(columns: Any) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], Packer]:
    """Packs the tensors of a uniform batch, name by name.

    Where all requests (or responses) of a batch have the same few small tensors, one description and one view serve
    all of them: a batch then costs little more than a request.

    Args:
        columns: (name, datatype, shape, the arrays of all requests) for each tensor; see ``fits_column``.
    """
    packer = Packer()
    for _, _, _, arrays in columns:
        data = b"".join([array.tobytes() for array in arrays])
        packer.parts.append(data)
        packer.size += len(data)
        rest = -len(data) % ALIGN
        if rest:
            packer.parts.append(_PADDING[:rest])
            packer.size += rest
    return tuple([column[:3] for column in columns]), packer


def fits_column(datatype: str, array: Any) -> bool:
    """Whether tensors like this one may be packed by ``pack_columns``."""
    return datatype != "BYTES" and array.ndim > 0 and 0 < array.nbytes <= COPY_LIMIT


def unpack_columns(kinds: Any, count: int, buffer: Any) -> list[tuple[str, str, tuple[int, ...], list[Any]]]:
    """The columns that ``pack_columns`` packed; the arrays are views."""
    columns: list[tuple[str, str, tuple[int, ...], list[Any]]] = []
    offset = 0
    own = type(buffer) is bytearray
    for name, datatype, shape, dtype, row in _plans.get(kinds) or _plan(kinds):
        size = count * row
        if own and count == 1:
            arrays = [np.ndarray(shape, dtype, buffer, offset)]
        else:
            arrays = list(unpack(datatype, (count, *shape), buffer, offset, size))
        columns.append((name, datatype, shape, arrays))
        offset += size + (-size % ALIGN)
    return columns


_plans: dict[Any, list[tuple[str, str, tuple[int, ...], Any, int]]] = {}


def _plan(kinds: Any) -> list[tuple[str, str, tuple[int, ...], Any, int]]:
    """Columns with their dtypes and the bytes of one row: the same few come again and again."""
    plan = []
    for name, datatype, shape in kinds:
        dtype = NUMPY[datatype]
        row = dtype.itemsize
        for dim in shape:
            row *= dim
        plan.append((name, datatype, shape, dtype, row))
    if len(_plans) >= 64:
        _plans.clear()
    _plans[kinds] = plan
    return plan


def encode(kind: int, head: Any, payload: bytes = b"", fds: int = 0, slab: tuple[int, int] = (0, 0)) -> list[bytes]:
    """A frame in pieces for ``sendmsg``."""
    packed = marshal.dumps(head, 2)
    pieces = [HEADER.pack(len(packed), len(payload), kind, fds, MAGIC, slab[0], slab[1]) + packed]
    if payload:
        pieces.append(payload)
    return pieces


class Frame:
    """A frame as it was read."""

    __slots__ = ("fds", "head", "kind", "payload", "slab_id", "slab_size")

    def __init__(self, kind: int, head: Any, payload: bytearray, fds: list[int], slab_id: int, slab_size: int) -> None:
        self.kind = kind
        self.head = head
        self.payload = payload
        self.fds = fds
        self.slab_id = slab_id
        self.slab_size = slab_size


_USUAL = 4 * 1024 * 1024
"""A reader's buffer above this is let go when it is empty, bytes."""


class FrameReader:
    """Cuts what arrives on a socket into frames. ``frames`` holds those that are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray(256 * 1024)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._fds: deque[int] = deque()
        self.frames: deque[Frame] = deque()

    def read(self, sock: socket.socket) -> int:
        """One ``recvmsg``; how many bytes came, 0 at the end of the stream.

        Raises:
            BlockingIOError: nothing there, on a non-blocking socket.
            ProtocolError: what came is no frame.
        """
        if self._start == self._end and len(self._buffer) <= _USUAL:
            self._start = self._end = 0
            view = self._view
        else:
            self._make_room()
            view = self._view[self._end :]
        count, ancillary, _, _ = sock.recvmsg_into([view], 512, _CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        if not count:
            return 0
        self._end += count
        self._cut()
        return count

    def close(self) -> list[int]:
        """The descriptors that no frame has taken."""
        fds = list(self._fds)
        self._fds.clear()
        return fds

    def _header(self) -> tuple[int, ...]:
        """The next header; looked at before anything is made of it: a model may write into any descriptor."""
        header: tuple[int, ...] = HEADER.unpack_from(self._buffer, self._start)
        head, inline, _, _, magic, _, _ = header
        if magic != MAGIC or head > HEAD_LIMIT or inline > INLINE_LIMIT + ALIGN:
            raise ProtocolError("something else than the workbench wrote into the model's connection to the server")
        return header

    def _make_room(self) -> None:
        pending = self._end - self._start
        if not pending:
            self._start = self._end = 0
        needed = HEADER.size
        if pending >= HEADER.size:
            head, inline = self._header()[:2]
            needed = HEADER.size + head + inline
        if self._start + max(needed, pending + 4096) > len(self._buffer):
            fresh = bytearray(max(len(self._buffer), 2 * needed)) if needed > len(self._buffer) else self._buffer
            fresh[:pending] = self._buffer[self._start : self._end]
            self._buffer, self._view = fresh, memoryview(fresh)
            self._start, self._end = 0, pending
        if pending == 0 and len(self._buffer) > _USUAL:
            self._buffer = bytearray(256 * 1024)
            self._view = memoryview(self._buffer)

    def _cut(self) -> None:
        while self._end - self._start >= HEADER.size:
            head_size, inline, kind, fds, _, slab_id, slab_size = self._header()
            body = self._start + HEADER.size
            end = body + head_size + inline
            if end > self._end:
                return
            buffer = self._buffer
            try:
                head = marshal.loads(buffer[body : body + head_size])
                taken = [self._fds.popleft() for _ in range(fds)] if fds else []
            except (ValueError, EOFError, TypeError, IndexError) as error:
                raise ProtocolError(f"a broken frame: {error}") from error
            self.frames.append(Frame(kind, head, buffer[body + head_size : end], taken, slab_id, slab_size))
            self._start = end
