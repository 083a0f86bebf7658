"""Who may call what, for both front ends: restricted APIs (Triton's) and the token of repository control (ours)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workbench.errors import InvalidRequest

CATEGORIES = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging",
)  # fmt: skip
"""What can be restricted, as in Triton's restricted_features.h."""

GRPC_PREFIX = "triton-grpc-protocol-"
"""What stands before the header's name in gRPC metadata."""

TOKEN_NEEDED = "loading and unloading need the repository's token: Authorization: Bearer TOKEN"
"""The text for who has not got it: HTTP 401, gRPC UNAUTHENTICATED."""


class Restriction(NamedTuple):
    """A header, as the command line has it, and the value that opens an API."""

    header: str
    value: bytes

    def is_met(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether these headers (names in lower case) have it."""
        return hmac.compare_digest(headers.get(self.header.lower().encode(), b"\n"), self.value)


def parse_restrictions(entries: Sequence[str], option: str, kind: str, prefix: str = "") -> dict[str, Restriction]:
    """``--http-restricted-api`` or ``--grpc-restricted-protocol`` values (``APIS:HEADER=VALUE``) by category.

    Args:
        entries: the values, one for each time that the option was given.
        option: its name without dashes, for the texts.
        kind: what is restricted there: ``api`` or ``protocol``.
        prefix: of the header's name: ``GRPC_PREFIX`` for gRPC.

    Raises:
        InvalidRequest: one cannot be read, names no category, or one that another has (Triton's texts).
    """
    found: dict[str, Restriction] = {}
    for entry in entries:
        names, _, assignment = entry.partition(":")
        header, _, value = assignment.partition("=")
        if not names or not header or not value:
            raise InvalidRequest(
                f"--{option} option format is '<config name>:<setting>=<value>'. Got {entry}",
                hint=f"such as --{option}=model-repository,logging:admin-key=SECRET",
            )
        for name in names.split(","):
            if name not in CATEGORIES:
                raise InvalidRequest(f"unknown restricted {kind} '{name}' ", hint="there are " + ", ".join(CATEGORIES))
            if name in found:
                raise InvalidRequest(f"restricted {kind} '{name}' can not be specified in multiple config groups")
            found[name] = Restriction(prefix + header, value.encode())
    return found


def has_token(token: str, authorization: bytes) -> bool:
    """Whether an ``Authorization`` header carries the token; always so where none is asked for (empty)."""
    return not token or hmac.compare_digest(authorization, f"Bearer {token}".encode())
