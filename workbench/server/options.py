"""What a server is told."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.protocol.http_codec import MAX_INPUT_SIZE
from workbench.server.access import Restriction
from workbench.server.grpc_options import GrpcOptions
from workbench.server.http import HttpLimits

TRITON_VERSION = "2.73.0"
"""The release whose behaviour the server is held to; ``GET /v2`` says it."""

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the listeners; port 0 is a free one.

    ``id`` is the server's name in ``GET /v2`` (Triton's ``--id``), ``name`` the one that people find it by.
    ``allowed_hosts`` are further names for the Host and Origin check, ``*`` for any. ``allow_file_override`` lets a
    load request bring a model's files (``file:`` parameters). ``token`` is what the control plane asks for.
    ``repository_token``: what loading and unloading ask for, empty for nothing. ``http_restricted``: headers that
    categories of the API ask for. ``http_header_forward_pattern``: which headers become parameters of a request.
    ``allow_client_shm``: clients may share memory. ``runtime_file``: write one, so that the server can be found.
    ``grpc``: the gRPC listener's, where ``allow_grpc``. Sizes in bytes, times in seconds.
    """

    http_address: str = "127.0.0.1"
    http_port: int = 0
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 0
    allow_http: bool = True
    allow_grpc: bool = True
    allow_metrics: bool = True
    id: str = "triton"
    name: str = ""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    allowed_hosts: tuple[str, ...] = ()
    allow_file_override: bool = False
    allow_client_shm: bool = False
    repository_token: str = ""
    http_restricted: Mapping[str, Restriction] = field(default_factory=dict)
    http_header_forward_pattern: str = ""
    max_input_size: int = MAX_INPUT_SIZE
    exit_timeout_s: float = 30.0
    detached: bool = False
    runtime_file: bool = False
    reuse_port: bool = False
    metrics_interval_s: float = 2.0
    limits: HttpLimits = field(default_factory=HttpLimits)
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
