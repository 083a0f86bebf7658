"""How far the answers of two forms of a model lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.package.tensors import Feed


@dataclass(frozen=True, slots=True)
class Drift:
    """The difference in one output over all examples.

    ``max_abs`` is the largest difference; ``relative`` is the root mean square of the difference over that of the
    reference; ``top1`` the share of rows whose largest element is at the same place, None where an output is no row of
    several. NaN beside NaN is no difference; NaN beside a number is an infinite one.
    """

    output: str
    max_abs: float
    relative: float
    top1: float | None = None

    def __str__(self) -> str:
        agree = "" if self.top1 is None else f", largest element the same in {self.top1:.1%} of rows"
        return f"{self.output}: at most {self.max_abs:.2g}, relative {self.relative:.2g}{agree}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def measure(reference: Sequence[Feed], answers: Sequence[Feed]) -> list[Drift]:
    """The drift of each output of the reference.

    Raises:
        InvalidRequest: an answer lacks an output, or has another shape.
    """
    found = []
    for name in reference[0]:
        pairs = []
        for wanted, got in zip(reference, answers, strict=True):
            if name not in got or got[name].shape != wanted[name].shape:
                shape = got[name].shape if name in got else "nothing"
                raise InvalidRequest(f"built, it answers '{name}' with {shape}, the source with {wanted[name].shape}")
            pairs.append((wanted[name], got[name]))
        found.append(_drift(name, pairs))
    return found


def _drift(name: str, pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Drift:
    if any(one.dtype.kind in "OSU" for one, _ in pairs):
        same = [bool((one == other).all()) for one, other in pairs]
        return Drift(name, 0.0 if all(same) else float("inf"), 1 - sum(same) / len(same))
    largest = squares = scale = 0.0
    hits = rows = 0
    for one, other in pairs:
        left, right = one.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.abs(left - right)
        apart[(np.isnan(left) & np.isnan(right)) | (left == right)] = 0.0
        apart[np.isnan(apart)] = np.inf
        largest = max(largest, float(apart.max(initial=0.0)))
        squares += float((apart**2).sum())
        scale += float((left[np.isfinite(left)] ** 2).sum())
        if left.ndim > 1 and left.shape[-1] > 1:
            same_place = left.argmax(-1) == right.argmax(-1)
            hits, rows = hits + int(same_place.sum()), rows + same_place.size
    relative = float(np.sqrt(squares / scale)) if scale else float(np.sqrt(squares))
    return Drift(name, largest, relative, hits / rows if rows else None)
