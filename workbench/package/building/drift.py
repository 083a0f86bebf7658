"""How far the answers of what was built lie from its source's: the figures of ``workbench compare``."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.errors import InvalidRequest
from workbench.package.tensors import Feed
from workbench.tuning.drift import OutputDrift, drift


def measure(reference: Sequence[Feed], answers: Sequence[Feed]) -> list[OutputDrift]:
    """The drift of each output of the reference.

    Raises:
        InvalidRequest: an answer lacks an output, or has another shape.
    """
    for wanted, got in zip(reference, answers, strict=True):
        for name in wanted:
            if name not in got or got[name].shape != wanted[name].shape:
                shape = got[name].shape if name in got else "nothing"
                raise InvalidRequest(f"built, it answers '{name}' with {shape}, the source with {wanted[name].shape}")
    names = {name: name for name in reference[0]}
    return list(drift("what was built", "its source", answers, reference, names=names).outputs)
