"""How a capture of what clients send stands (``server.capture``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Keep = Literal["first", "last"]
"""Which requests stay when a capture's limit is reached."""


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """How a capture stands.

    ``requests`` and ``size`` (bytes) are what is kept; ``missed`` came within the capture and is not, as the limit was
    reached ``full_ns`` after the start (0: it was not): what came later where ``keep`` is ``first``, else the oldest.
    ``refused`` did not fit the model. ``started`` and ``ended`` (0: it goes on) are stamps of the engine's clock, ns.
    ``ended_by`` is ``stop``, ``time`` (it had lasted as long as it was to), or nothing yet.
    """

    id: str
    model: str
    keep: Keep
    limit: int
    started: int
    ended: int
    ended_by: str
    requests: int
    size: int
    missed: int
    refused: int
    full_ns: int

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CaptureStatus:
        """Reads what ``to_json`` gave."""
        return cls(**{each.name: value[each.name] for each in fields(cls)})
