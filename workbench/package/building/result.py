"""What a build leaves: ``Built``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.package.building.options import Target
from workbench.tuning.drift import OutputDrift


@dataclass(frozen=True, slots=True)
class Built:
    """A model directory that was built.

    ``drift`` is the difference to the source on example inputs, output by output as ``compare`` has it; where it could
    not be measured it is empty, and ``unverified`` says why. ``verified`` says what was run. ``renamed`` are tensors
    whose names the target's convention changes: old -> new. ``notes`` are what a person should know. ``trtexec`` is the
    equivalent command line, "" where there is none.
    """

    name: str
    directory: Path
    target: Target
    built_with: str
    source: str
    size_bytes: int
    seconds: float
    drift: Sequence[OutputDrift] = ()
    verified: str = ""
    unverified: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    trtexec: str = ""
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        lines = [
            f"built {self.directory}",
            f"  {self.target} of {self.source}, {self.size_bytes / 1e6:.1f} MB, with {self.built_with} "
            f"in {self.seconds:.1f} s",
        ]
        if self.renamed:
            lines.append("  renamed    " + ", ".join(f"{old} -> {new}" for old, new in self.renamed.items()))
        if self.verified:
            lines.append(f"  verified   {self.verified}")
        lines += [f"  drift      {each.text}" for each in self.drift]
        if self.unverified:
            lines.append(f"  not run    {self.unverified}")
        lines += [f"  note       {note}" for note in self.notes]
        if self.trtexec:
            lines.append(f"  trtexec    {self.trtexec}")
        return "\n".join([*lines, f"  serve it: server.load({self.name!r})"])

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "name": self.name,
            "directory": str(self.directory),
            "target": self.target,
            "built_with": self.built_with,
            "source": self.source,
            "size_bytes": self.size_bytes,
            "seconds": self.seconds,
            "drift": [each.to_json() for each in self.drift],
            "verified": self.verified,
            "unverified": self.unverified,
            "renamed": dict(self.renamed),
            "trtexec": self.trtexec,
            "notes": list(self.notes),
        }
