"""The server's end of a model process's socket pair: on the event loop, never blocking."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from workbench.backends._child import wire
from workbench.backends._child.slabs import Slab, Slabs
from workbench.backends.base import Traffic

PINNED_LIMIT = 8
"""Slabs that answers may keep; beyond that their bytes are copied: a client that keeps answers keeps no slabs."""


class ServerChannel:
    """Frames to and from one process. All methods on the loop's thread, except ``close`` once the loop has stopped.

    Args:
        loop: the engine's loop.
        sock: a non-blocking socket.
        on_frame: called for each frame.
        on_end: called once when the stream ends or breaks, with the reason ("" for a plain end).
        traffic: where the bytes both ways are counted.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_frame: Callable[[wire.Frame], None],
        on_end: Callable[[str], None],
        traffic: Traffic,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_end = on_end
        self._traffic = traffic
        self._reader = wire.FrameReader()
        self._slabs = Slabs()
        self._pending: deque[tuple[bytes | memoryview, Slab | None]] = deque()
        self._open = True
        loop.add_reader(self._fd, self._readable)

    def send(self, kind: int, head: Any, packer: wire.Packer | None = None) -> None:
        """Sends a frame; what the socket does not take now waits in memory."""
        if not self._open:
            return
        head = (self._slabs.outgoing(), head)
        slab: Slab | None = None
        if packer is None or packer.size <= wire.INLINE_LIMIT:
            pieces = wire.encode(kind, head, packer.inline() if packer is not None else b"")
        else:
            slab = self._slabs.out.take(packer.size)
            packer.copy_into(slab.memory)
            self._traffic.to_processes += packer.size
            new = slab.fd >= 0
            pieces = wire.encode(kind, head, fds=int(new), slab=(slab.id, packer.size))
            slab = slab if new else None
        total = sum(map(len, pieces))
        self._traffic.to_processes += total
        if self._pending:
            self._pending.append((b"".join(pieces), slab))
            return
        sent = self._try_send(pieces, slab)
        if sent is None:
            self._pending.append((b"".join(pieces), slab))
        elif sent < total:
            self._pending.append((memoryview(b"".join(pieces))[sent:total], None))
        if self._pending:
            self._loop.add_writer(self._fd, self._writable)

    def payload(self, frame: wire.Frame) -> Any:
        """The bytes of a frame's tensors."""
        if not frame.slab_id:
            return frame.payload
        self._traffic.from_processes += frame.slab_size
        for fd in frame.fds:
            self._slabs.into.learn(frame.slab_id, fd)
        if self._slabs.into.leased >= PINNED_LIMIT:
            return self._slabs.into.copy(frame.slab_id, frame.slab_size)
        return self._slabs.into.view(frame.slab_id, frame.slab_size)

    def drain(self) -> None:
        """Reads what a process that has ended left in the socket."""
        while self._open and self._readable():
            pass

    def close(self) -> None:
        """Closes the socket and frees the slabs."""
        if not self._open:
            return
        self._open = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._sock.close()
        self._pending.clear()
        for fd in self._reader.close():
            os.close(fd)
        self._slabs.close()

    def _readable(self) -> bool:
        """One read; whether there may be more."""
        try:
            count = self._reader.read(self._sock)
        except BlockingIOError:
            return False
        except (OSError, MemoryError, wire.ProtocolError) as error:
            self._end(str(error))
            return False
        self._traffic.from_processes += count
        alive = count > 0
        frames = self._reader.frames
        while frames and self._open:
            frame = frames.popleft()
            try:
                freed, frame.head = frame.head
                if freed:
                    self._slabs.incoming(freed)
                self._on_frame(frame)
            except Exception as error:  # whatever it is: a frame that is not taken leaves somebody waiting for ever
                self._end(f"broken message: {type(error).__name__}: {error}")
                return False
        if not alive:
            self._end("")
        return alive

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._on_end(why)

    def _writable(self) -> None:
        pending = self._pending
        while pending:
            data, slab = pending[0]
            sent = self._try_send([data], slab)
            if sent is None:
                return
            if sent < len(data):
                pending[0] = (memoryview(data)[sent:], None)
                return
            pending.popleft()
        if self._open:
            self._loop.remove_writer(self._fd)

    def _try_send(self, pieces: list[Any], slab: Slab | None) -> int | None:
        """How many bytes went; None where the socket takes nothing now. A broken one is noticed by the reader."""
        try:
            if slab is None:
                return self._sock.sendmsg(pieces)
            sent = socket.send_fds(self._sock, pieces, [slab.fd])
            slab.close_fd()
            return sent
        except BlockingIOError:
            return None
        except OSError:
            return sum(map(len, pieces))
