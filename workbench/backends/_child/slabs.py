"""Memory that two processes map: who writes owns the pool, who reads gives a slab back when its last view is gone.

A slab has no name anywhere (``memfd_create``, or a file that is unlinked before use), so nothing is left behind however
either process ends. It is sealed against shrinking where the system can, so that no peer can make the other one fault.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
import weakref
from typing import Any

import numpy as np

SMALLEST = 1 << 18
SPARE = 4
"""Free slabs that a pool keeps; more are dropped, the smallest first."""


def create_memory(size: int) -> int:
    """A descriptor of ``size`` bytes of anonymous shared memory."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("workbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd
    fd, path = tempfile.mkstemp(prefix="workbench-")
    os.unlink(path)  # noqa: PTH108
    os.ftruncate(fd, size)
    return fd


def map_memory(fd: int, size: int) -> Any:
    """An array of uint8 over the memory; unmapped when the last view is gone."""
    if sys.version_info >= (3, 13):
        return np.frombuffer(mmap.mmap(fd, size, trackfd=False), np.uint8)
    return np.frombuffer(mmap.mmap(fd, size), np.uint8)


class Slab:
    """One piece of shared memory. ``fd`` is -1 once the peer has it."""

    __slots__ = ("capacity", "fd", "id", "memory")

    def __init__(self, number: int, capacity: int) -> None:
        self.id = number
        self.capacity = capacity
        self.fd = create_memory(capacity)
        self.memory = map_memory(self.fd, capacity)

    def close_fd(self) -> None:
        """The peer has its own descriptor now."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SlabWriter:
    """The pool of the side that writes. Not thread-safe: the caller holds its send lock."""

    def __init__(self) -> None:
        self._free: list[Slab] = []
        self._lent: dict[int, Slab] = {}
        self._next = 1

    def take(self, size: int) -> Slab:
        """A slab of at least ``size`` bytes: the smallest free one that fits, or a new one."""
        best = None
        for slab in self._free:
            if slab.capacity >= size and (best is None or slab.capacity < best.capacity):
                best = slab
        if best is None or best.capacity > 16 * max(size, SMALLEST):
            capacity = max(SMALLEST, 1 << (size - 1).bit_length())
            best = Slab(self._next, capacity)
            self._next += 1
        else:
            self._free.remove(best)
        self._lent[best.id] = best
        return best

    def give_back(self, ids: Any) -> tuple[int, ...]:
        """The peer no longer looks at these. Gives the ids of those that the peer should forget."""
        for number in ids:
            slab = self._lent.pop(number, None)
            if slab is not None:
                self._free.append(slab)
        if len(self._free) <= SPARE:
            return ()
        self._free.sort(key=lambda slab: slab.capacity)
        dropped = self._free[:-SPARE]
        del self._free[:-SPARE]
        for slab in dropped:
            slab.close_fd()
        return tuple(slab.id for slab in dropped)

    def close(self) -> None:
        """Frees all of it; memory that someone still views stays until that view is gone."""
        for slab in [*self._free, *self._lent.values()]:
            slab.close_fd()
        self._free.clear()
        self._lent.clear()


class SlabReader:
    """The mappings of the side that reads. ``freed`` collects the ids whose last view is gone."""

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}
        self._leases: dict[int, Any] = {}
        self.freed: list[int] = []

    def learn(self, number: int, fd: int) -> None:
        """Maps a new slab and closes its descriptor."""
        try:
            self._maps[number] = map_memory(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def forget(self, ids: Any) -> None:
        """The peer has dropped these."""
        for number in ids:
            self._maps.pop(number, None)

    @property
    def leased(self) -> int:
        """How many slabs have living views."""
        return len(self._leases)

    def view(self, number: int, size: int) -> memoryview:
        """The payload in a slab; the slab is freed when the last array made over this view is gone."""
        lease = self._maps[number][:size]
        self._leases[number] = weakref.ref(lease, lambda _: self._release(number))
        return memoryview(lease)

    def copy(self, number: int, size: int) -> bytearray:
        """The payload of a slab as private memory; the slab is free at once."""
        data = bytearray(memoryview(self._maps[number][:size]))
        self.freed.append(number)
        return data

    def close(self) -> None:
        """Forgets all slabs; their memory stays until the last view is gone."""
        self._maps.clear()

    def take_freed(self) -> tuple[int, ...]:
        """The ids to give back, once. Safe beside releases on other threads."""
        count = len(self.freed)
        if not count:
            return ()
        ids = tuple(self.freed[:count])
        del self.freed[:count]
        return ids

    def _release(self, number: int) -> None:
        self._leases.pop(number, None)
        self.freed.append(number)


class Slabs:
    """Both directions of one connection, and what one side tells the other about them.

    Every frame carries a tuple of numbers: n, "I no longer look at your slab n"; -n, "forget my slab n".
    """

    def __init__(self) -> None:
        self.out = SlabWriter()
        self.into = SlabReader()
        self._dropped: list[int] = []

    def close(self) -> None:
        """Unmaps everything that no array looks at any more (each mapping also holds a descriptor)."""
        self.out.close()
        self.into.close()

    def outgoing(self) -> tuple[int, ...]:
        """The numbers for the next frame. The caller holds its send lock."""
        freed = self.into.take_freed()
        if self._dropped:
            freed += tuple(-number for number in self._dropped)
            self._dropped.clear()
        return freed

    def incoming(self, numbers: Any) -> None:
        """Takes the numbers of a frame. The caller holds its send lock."""
        back = [number for number in numbers if number > 0]
        if len(back) < len(numbers):
            self.into.forget(-number for number in numbers if number < 0)
        if back:
            self._dropped.extend(self.out.give_back(back))
