"""Memory that clients share with the server: regions by name, for both front ends (Triton's shared_memory_manager.cc).

A system region is a POSIX shared memory object. It is read and written by file, not through a mapping: a client that
shrinks its object (creating it anew with the same key does) would end a process that touches the mapping. So inputs are
copied once, when the request is read, and what the client writes later does not reach a request that runs. A CUDA
region is memory of a GPU that another process has allocated (``cuda_memory``).
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import threading
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

from workbench.errors import (
    AlreadyExists,
    InternalError,
    InvalidRequest,
    NotFound,
    NotReady,
    Unsupported,
    WorkbenchError,
)
from workbench.protocol.binary import Buffer
from workbench.protocol.shared_memory import SHARED_MEMORY_DISABLED
from workbench.server.body import aligned
from workbench.server.cuda_memory import CudaDriver, FindDriver, find_driver

Kind = Literal["system", "cuda"]

RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""Keys that begin so are the Python backend's own in Triton."""

_DIRECTORY = Path("/dev/shm")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SIZE_MAX = 2**64 - 1


class _Region(ABC):
    """A registered region; what it holds is let go when nobody uses it any more."""

    kind: Kind

    def __init__(self, name: str, byte_size: int) -> None:
        self.name = name
        self.byte_size = byte_size

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As Triton tells of it."""

    @abstractmethod
    def read(self, offset: int, byte_size: int) -> memoryview:
        """A copy of bytes of it."""

    @abstractmethod
    def write(self, offset: int, data: memoryview) -> None:
        """Puts bytes into it."""

    @abstractmethod
    def end(self) -> int:
        """Where the memory ends now, counted from the region's beginning."""

    def check(self, offset: int, byte_size: int) -> None:
        if offset >= self.byte_size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{self.name}'")
        if byte_size > _SIZE_MAX - offset:
            raise InvalidRequest(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
                f"({_SIZE_MAX}) for region '{self.name}'"
            )
        # the object may be smaller than it was when it was registered
        if offset + byte_size > min(self.byte_size, self.end()):
            raise self.outside()

    def outside(self) -> InvalidRequest:
        return InvalidRequest(f"Invalid offset + byte size for shared memory region: '{self.name}'")


class _System(_Region):
    """A POSIX shared memory object, by its file."""

    kind = "system"

    def __init__(self, name: str, key: str, offset: int, byte_size: int, fd: int) -> None:
        super().__init__(name, byte_size)
        self.key = key
        self.offset = offset
        self.fd = fd
        weakref.finalize(self, os.close, fd)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}

    def end(self) -> int:
        return os.fstat(self.fd).st_size - self.offset

    def read(self, offset: int, byte_size: int) -> memoryview:
        self.check(offset, byte_size)
        view = aligned(byte_size)
        done = 0
        while done < byte_size:
            count = os.preadv(self.fd, [view[done:]], self.offset + offset + done)
            if count == 0:
                raise self.outside()
            done += count
        return view

    def write(self, offset: int, data: memoryview) -> None:
        self.check(offset, data.nbytes)
        done = 0
        while done < data.nbytes:
            done += os.pwrite(self.fd, data[done:], self.offset + offset + done)


class _Cuda(_Region):
    """Memory of a GPU, mapped into this process."""

    kind = "cuda"

    def __init__(self, name: str, driver: CudaDriver, device: int, byte_size: int, address: int) -> None:
        super().__init__(name, byte_size)
        self.driver = driver
        self.device = device
        self.address = address
        weakref.finalize(self, _let_go, driver, device, address)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "device_id": self.device, "byte_size": self.byte_size}

    def end(self) -> int:
        return self.byte_size  # nobody can take it away while it is mapped

    def read(self, offset: int, byte_size: int) -> memoryview:
        self.check(offset, byte_size)
        view = aligned(byte_size)
        if byte_size:
            self.driver.read(self.device, self.address + offset, view)
        return view

    def write(self, offset: int, data: memoryview) -> None:
        self.check(offset, data.nbytes)
        if data.nbytes:
            self.driver.write(self.device, self.address + offset, data)


def _let_go(driver: CudaDriver, device: int, address: int) -> None:
    with contextlib.suppress(WorkbenchError):  # the driver is unloaded, when the process ends
        driver.close(device, address)


class _Target:
    """The place of an output within a region."""

    def __init__(self, region: _Region, offset: int, byte_size: int) -> None:
        self._region = region
        self._offset = offset
        self._byte_size = byte_size

    def write(self, output: str, data: Buffer) -> None:
        view = memoryview(data)
        if view.nbytes > self._byte_size:
            raise InternalError(
                f"shared memory size specified with the request for output '{output}' ({self._byte_size} bytes) should "
                f"be at least {view.nbytes} bytes to hold the results"
            )
        self._region.write(self._offset, view)


class SharedMemory:
    """The regions that clients have registered. Safe to use from any thread.

    ``largest`` is the size in bytes of the largest region that there is: what reading one may take at most. Errors have
    Triton's texts.

    Args:
        allowed: Triton's ``--allow-client-shm``; without it nothing can be registered.
        find_driver: looks for the driver of the GPUs.
    """

    def __init__(self, allowed: bool = False, find_driver: FindDriver = find_driver) -> None:
        self.allowed = allowed
        self._find_driver = find_driver
        self._driver: CudaDriver | None = None
        self.largest = 0
        self._regions: dict[str, _Region] = {}
        self._lock = threading.Lock()

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Takes a POSIX shared memory object, or ``byte_size`` bytes of it from ``offset`` on, as a region.

        Raises:
            Unsupported: shared memory is switched off, or this system has no ``/dev/shm``.
            InvalidRequest: no name; the key is reserved or no key; the bytes are not within the object.
            InternalError: there is no such object, or it may not be opened.
            AlreadyExists: the name is taken.
            NotReady: the process can hold no more regions.
        """
        self._check_allowed()
        if not name:
            raise InvalidRequest("'region name' is necessary to register system shared memory region")
        plain = key.lstrip("/")
        if not plain:
            raise InvalidRequest(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
        if plain.startswith(RESERVED_PREFIX):
            raise InvalidRequest(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
                f"prefix '{RESERVED_PREFIX}'"
            )
        with self._lock:
            self._check_free(name)
            fd = _open(key, plain)
            try:
                _check_object(name, key, fd, offset, byte_size)
            except BaseException:
                os.close(fd)
                raise
            self._add(_System(name, key, offset, byte_size, fd))

    def _add(self, region: _Region) -> None:
        self._regions[region.name] = region
        self.largest = max(self.largest, region.byte_size)

    def _check_free(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        if len(self._regions) >= limit:
            raise NotReady(
                f"failed to register shared memory region '{name}': {limit} regions are registered",
                hint="unregister some, or raise the limit of open files (ulimit -n)",
            )

    def has_gpus(self) -> bool:
        """Whether CUDA regions can be registered here at all."""
        with self._lock:
            self._driver = self._driver or self._find_driver()
            return self._driver is not None

    def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Takes ``byte_size`` bytes of a GPU's memory that another process has allocated as a region.

        ``raw_handle`` are the 64 bytes of its ``cudaIpcMemHandle_t``.

        Raises:
            Unsupported: shared memory is switched off.
            InvalidRequest: no name; there is no GPU (in the words of a Triton without), or no such memory; the bytes
                are not within it.
            AlreadyExists: the name is taken.
            NotReady: the process can hold no more regions.
        """
        self._check_allowed()
        if not name:
            raise InvalidRequest("'region name' is necessary to register cuda shared memory region")
        prefix = f"failed to register CUDA shared memory region: '{name}'"
        with self._lock:
            self._driver = driver = self._driver or self._find_driver()
            if driver is None:
                raise InvalidRequest(f"{prefix}, GPUs not supported")
            self._check_free(name)
            try:
                address = driver.open(device_id, raw_handle)
            except InternalError as error:
                raise InvalidRequest(f"{prefix}: failed to open CUDA IPC handle: {error.message}") from None
            region = _Cuda(name, driver, device_id, byte_size, address)
            if not 0 < byte_size <= driver.size(device_id, address):
                raise InvalidRequest(f"{prefix}: invalid args")
            self._add(region)

    def unregister(self, kind: Kind, name: str = "") -> None:
        """Forgets a region, or all of a kind where no name is given; an unknown one is as good as forgotten.

        What a request uses stays until that ends.

        Raises:
            Unsupported: shared memory is switched off.
        """
        self._check_allowed()
        with self._lock:
            for region in [self._regions.get(name)] if name else list(self._regions.values()):
                if region is not None and region.kind == kind:
                    del self._regions[region.name]
            self.largest = max((region.byte_size for region in self._regions.values()), default=0)

    def status(self, kind: Kind, name: str = "") -> list[dict[str, Any]]:
        """``name``, ``key``, ``offset`` and ``byte_size`` of a region, or of all, by name; CUDA's have a ``device_id``.

        Raises:
            NotFound: there is no such region of this kind.
        """
        with self._lock:
            if not name:
                found = sorted(self._regions.values(), key=lambda region: region.name.encode())
                return [region.to_json() for region in found if region.kind == kind]
            region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find {kind} shared memory region: '{name}'")
        if region.kind != kind:
            words = {"system": "system shared memory", "cuda": "CUDA shared memory"}
            raise NotFound(f"The region named '{name}' is registered as {words[region.kind]}, not {words[kind]}")
        return [region.to_json()]

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """A copy of bytes of a region (see ``workbench.protocol.shared_memory.ClientMemory``)."""
        return self._find(region).read(offset, byte_size)

    def target(self, region: str, offset: int, byte_size: int) -> _Target:
        """A place in a region for an output; the region stays as long as this does."""
        found = self._find(region)
        found.check(offset, byte_size)
        return _Target(found, offset, byte_size)

    def _find(self, name: str) -> _Region:
        self._check_allowed()
        with self._lock:
            found = self._regions.get(name)
        if found is None:
            raise NotFound(f"Unable to find shared memory region: '{name}'")
        return found

    def _check_allowed(self) -> None:
        if not self.allowed:
            raise Unsupported(SHARED_MEMORY_DISABLED)


def _open(key: str, plain: str) -> int:
    """The object's file, as ``shm_open`` does it: a plain name in one directory, no link, nothing created."""
    if not _DIRECTORY.is_dir():
        raise Unsupported("client shared memory needs /dev/shm, which this system does not have")
    fd = -1
    if "/" not in plain and "\0" not in plain:
        with contextlib.suppress(OSError, UnicodeEncodeError):
            fd = os.open(_DIRECTORY / plain, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if fd >= 0 and not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        fd = -1
    if fd < 0:
        raise InternalError(f"Unable to open shared memory region: '{key}'")
    return fd


def _check_object(name: str, key: str, fd: int, offset: int, byte_size: int) -> None:
    prefix = f"failed to register shared memory region '{name}': "
    if offset + byte_size > os.fstat(fd).st_size:
        raise InvalidRequest(prefix + "invalid args")
    if not byte_size or offset % _PAGE:  # what mmap refuses: Triton maps it
        raise InvalidRequest(prefix + "unable to process address space" + os.strerror(22))
