"""What the gRPC front end is told; names and defaults are Triton's (``--grpc-...``)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.server.access import Restriction
from workbench.server.budget import MEMORY
from workbench.server.listener import MAX_CONNECTIONS

COMPRESSION_LEVELS = ("none", "low", "medium", "high")
"""Values of ``--grpc-infer-response-compression-level``."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """When a silent connection is asked whether it lives, and how often a client may ask. Times in milliseconds.

    Meanings are those of gRPC's channel arguments: every ``time_ms`` without a word from the client a ping is sent, and
    the connection is closed when nothing comes for ``timeout_ms``; without calls only if ``permit_without_calls``; at
    most ``max_pings_without_data`` of them (0: any number) between two answers. A client that pings more often than
    every ``min_recv_ping_interval_without_data_ms`` while it is sent nothing gets a strike; one more than
    ``max_ping_strikes`` (0: any number) close its connection. ``max_connection_age_ms`` 0 is no limit.
    """

    time_ms: int = 7_200_000
    timeout_ms: int = 20_000
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one client, and all of them, may occupy. Sizes in bytes, times in seconds.

    ``connections``: at a time (see ``Listener``). ``streams``: calls at a time on a connection. ``window``: what a call
    may send before the server has said that it takes more. ``memory``: what messages larger than that may take together
    until they are answered; a call for which there is no room waits, by flow control. Smaller ones that are half sent
    may take as much again; then connections that have more than their even share of it are not read. ``requests``:
    unanswered requests of one ModelStreamInfer call. ``backlog``: of a call's answers that its client does not take,
    before a decoupled model is held back. ``hello_s``: for the TLS handshake, and for the connection's preface;
    ``pause_s``: for a message to go on.
    """

    connections: int = MAX_CONNECTIONS
    streams: int = 1024
    window: int = 65_535
    memory: int = MEMORY
    requests: int = 1024
    backlog: int = 1024 * 1024
    hello_s: float = 20.0
    pause_s: float = 60.0


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Options of the gRPC listener; port 0 is a free one.

    ``tls``: a server's context, None for none. ``restricted``: headers that categories of calls ask for.
    ``header_forward_pattern``: which headers become parameters of a request. ``compression_level``: of the answers to
    inferences, one of ``COMPRESSION_LEVELS``.
    """

    address: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    tls: ssl.SSLContext | None = None
    restricted: Mapping[str, Restriction] = field(default_factory=dict)
    header_forward_pattern: str = ""
    compression_level: str = "none"
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    limits: GrpcLimits = field(default_factory=GrpcLimits)
