"""Tensors in memory that a client shares with the server: what a request says of it, and who reads and writes it.

Parameters and texts: Triton's ``CheckSharedMemoryData`` (http_server.cc).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from workbench.errors import Unsupported
from workbench.protocol import json_fields as fields
from workbench.protocol.binary import Buffer

SHARED_MEMORY_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


class MemoryTarget(Protocol):
    """Where an output goes. It stays valid until it is let go, also when its region is unregistered."""

    def write(self, output: str, data: Buffer) -> None:
        """Puts an output's bytes there.

        Raises:
            InternalError: they are more than the request made room for (Triton's text).
        """


class ClientMemory(Protocol):
    """The registered regions of a server. Offsets and sizes are in bytes, within the region."""

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """The bytes of an input.

        Raises:
            NotFound: there is no such region.
            InvalidRequest: they are not within it.
            Unsupported: shared memory is switched off.
        """

    def target(self, region: str, offset: int, byte_size: int) -> MemoryTarget:
        """The place of an output; raises as ``read`` does."""


class NoMemory:
    """A server that shares no memory."""

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Refuses."""
        raise Unsupported(SHARED_MEMORY_DISABLED)

    def target(self, region: str, offset: int, byte_size: int) -> MemoryTarget:
        """Refuses."""
        raise Unsupported(SHARED_MEMORY_DISABLED)


class Place(NamedTuple):
    """Where a tensor lies, as a request says it."""

    region: str
    offset: int
    byte_size: int


def place_of(parameters: Mapping[str, Any]) -> Place:
    """The place that an input's or output's JSON ``parameters`` name.

    Raises:
        InternalError: one is of another type.
    """
    region = fields.string(parameters["shared_memory_region"], "shared_memory_region")
    offset = fields.unsigned(parameters.get("shared_memory_offset", 0), "shared_memory_offset")
    return Place(
        region, offset, fields.unsigned(parameters.get("shared_memory_byte_size", 0), "shared_memory_byte_size")
    )
