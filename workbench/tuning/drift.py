"""How far the outputs of one model are from another's: the same model in another framework or precision.

Everything is over the same inputs. Numbers: absolute and relative differences; vectors (a last axis of at least two):
whether the largest elements are the same ones, and whether they are in the same order; anything: whatever a person
counts. Texts and booleans: the share that is equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest

Arrays = Mapping[str, NDArray[Any]]

Metric = Callable[[Arrays, Arrays], float]
"""A person's own figure of one example: (the reference's outputs, the other model's, by the reference's names) to a
number; the larger, the worse."""

LARGEST_RANKED = 2048
"""Longer vectors are not ranked for Kendall's tau, which compares each pair of elements."""


@dataclass(frozen=True, slots=True)
class OutputDrift:
    """One output over all examples, against the reference's of that ``output``; ``name`` is the model's own name.

    ``max_abs`` and ``mean_abs`` are of the elements' differences; ``max_rel`` is the largest of the examples' |a - b| /
    |reference|, lengths of the whole tensors (so that elements near zero do not count for more than they are worth).
    ``top_1`` is the share of vectors whose largest element is the same one, ``top_k`` the mean share of the ``k``
    largest that are the same ones, ``kendall_tau`` the mean of Kendall's tau-b of the vectors (Kendall 1945): 1 is the
    same order, 0 none in common. ``equal`` is the share of equal elements. What does not apply is nan.
    ``worst`` is the place of the example that differs most.
    """

    output: str
    name: str
    elements: int
    max_abs: float = math.nan
    mean_abs: float = math.nan
    max_rel: float = math.nan
    k: int = 0
    top_1: float = math.nan
    top_k: float = math.nan
    kendall_tau: float = math.nan
    equal: float = math.nan
    worst: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON; nan becomes None."""
        return {
            key: None if isinstance(item, float) and math.isnan(item) else item for key, item in asdict(self).items()
        }

    @property
    def text(self) -> str:
        """In a line."""
        parts = []
        if not math.isnan(self.max_abs):
            parts.append(f"max |Δ| {self.max_abs:.2g}, relative {self.max_rel:.2g}")
        if not math.isnan(self.top_1):
            parts.append(f"top-1 the same in {self.top_1:.1%}, top-{self.k} overlap {self.top_k:.1%}")
        if not math.isnan(self.kendall_tau):
            parts.append(f"Kendall τ {self.kendall_tau:.4f}")
        if math.isnan(self.max_abs):
            parts.append(f"{self.equal:.1%} equal")
        return f"{self.output}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Drift:
    """A model against the reference: each output, the person's own metric (mean over the examples, nan without one),
    and the place of the worst example: by that metric, else by the largest relative difference."""

    model: str
    reference: str
    outputs: tuple[OutputDrift, ...]
    examples: int
    metric: float = math.nan
    worst: int = 0

    @property
    def max_abs(self) -> float:
        """The largest of all outputs; nan where none is a number."""
        return max((each.max_abs for each in self.outputs if not math.isnan(each.max_abs)), default=math.nan)

    def __repr__(self) -> str:
        lines = [f"{self.model} against {self.reference}, {self.examples} examples"]
        lines += [f"  {each.text}" for each in self.outputs]
        if not math.isnan(self.metric):
            lines.append(f"  own metric {self.metric:.4g}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class WorstExample:
    """The example (its place among the inputs) on which a model differs most from the reference, with both answers."""

    model: str
    reference: str
    place: int
    inputs: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    got: Mapping[str, NDArray[Any]]
    drift: Drift

    def __repr__(self) -> str:
        lines = [f"example {self.place}: {self.model} against {self.reference}"]
        lines += [f"  input {name} {list(array.shape)}: {_short(array)}" for name, array in self.inputs.items()]
        for each in self.drift.outputs:
            lines.append(f"  {each.output} {list(self.expected[each.output].shape)}")
            lines.append(f"    {self.reference}: {_short(self.expected[each.output])}")
            lines.append(f"    {self.model}: {_short(self.got[each.name])}")
        return "\n".join(lines)


def _short(array: NDArray[Any]) -> str:
    flat = array.reshape(-1)
    text = ", ".join(f"{item:.6g}" if isinstance(item, float | np.floating) else str(item) for item in flat[:8])
    return f"{text}, …" if flat.size > 8 else text


def drift(
    model: str,
    reference: str,
    ours: Sequence[Arrays],
    theirs: Sequence[Arrays],
    *,
    names: Mapping[str, str] | None = None,
    top_k: int = 5,
    metric: Metric | None = None,
) -> Drift:
    """How far a model's answers are from the reference's, example by example.

    Args:
        model: its name.
        reference: the other's.
        ours: the model's outputs for each example, by its own names.
        theirs: the reference's.
        names: the reference's name of an output → the model's; None takes ``matched_names``.
        top_k: how many of the largest elements are looked at.
        metric: a figure of the person's own.

    Raises:
        InvalidRequest: no output is common, or one differs in shape.
    """
    if not theirs or len(ours) != len(theirs):
        raise InvalidRequest(f"{len(ours)} answers of '{model}' stand against {len(theirs)} of '{reference}'")
    pairs = names if names is not None else matched_names(list(theirs[0]), list(ours[0]))
    if not pairs:
        raise InvalidRequest(
            f"'{model}' and '{reference}' have no output in common",
            where=f"{', '.join(ours[0])} against {', '.join(theirs[0])}",
            hint="say which belong together: outputs={MODEL: {REFERENCE'S NAME: ITS NAME}}",
        )
    found = []
    for output, name in pairs.items():
        _check(model, reference, output, name, ours, theirs)
        found.append(_of_output(output, name, [each[name] for each in ours], [each[output] for each in theirs], top_k))
    own = [
        float(metric(b, {output: a[name] for output, name in pairs.items()})) if metric is not None else math.nan
        for a, b in zip(ours, theirs, strict=True)
    ]
    worst = max(found, key=lambda each: _badness(each)).worst
    if metric is not None:
        worst = int(np.nanargmax(own)) if not all(map(math.isnan, own)) else worst
    return Drift(model, reference, tuple(found), len(ours), float(np.mean(own)), worst)


def matched_names(reference: Sequence[str], own: Sequence[str]) -> dict[str, str]:
    """Which names belong together: the same ones; else, where there are as many, by their place.

    Frameworks rename: TorchScript's ``OUTPUT__0`` is the first output of the ONNX file.
    """
    same = {name: name for name in reference if name in own}
    if same or len(reference) != len(own):
        return same
    return dict(zip(reference, own, strict=True))


def _check(
    model: str, reference: str, output: str, name: str, ours: Sequence[Arrays], theirs: Sequence[Arrays]
) -> None:
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if output not in b or name not in a:
            raise InvalidRequest(f"there is no output '{output}' of '{reference}' or '{name}' of '{model}'")
        if a[name].shape != b[output].shape:
            raise InvalidRequest(
                f"output '{name}' of '{model}' has shape {list(a[name].shape)}, '{output}' of '{reference}' has "
                f"{list(b[output].shape)}",
                where=f"example {index}",
                hint="compare models that give the same; say which outputs belong together with outputs={...}",
            )


def _badness(each: OutputDrift) -> float:
    return 1 - each.equal if math.isnan(each.max_rel) else each.max_rel


def _of_output(
    output: str, name: str, ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]], top_k: int
) -> OutputDrift:
    elements = sum(array.size for array in theirs)
    same = [_equal(a, b) for a, b in zip(ours, theirs, strict=True)]
    equal = sum(float(each.sum()) for each in same) / elements if elements else math.nan
    if not elements or not _is_number(theirs[0]) or not _is_number(ours[0]):
        worst = int(np.argmin([each.mean() if each.size else 1.0 for each in same]))
        return OutputDrift(output, name, elements, equal=equal, worst=worst)
    a = [array.astype(np.float64) for array in ours]
    b = [array.astype(np.float64) for array in theirs]
    gaps = [np.abs(_difference(x, y)) for x, y in zip(a, b, strict=True)]
    relative = [_relative(gap, y) for gap, y in zip(gaps, b, strict=True)]
    first, largest, tau, k = _ranking(a, b, top_k)
    return OutputDrift(
        output,
        name,
        elements,
        max_abs=float(max(gap.max() for gap in gaps if gap.size)),
        mean_abs=float(sum(gap.sum() for gap in gaps) / elements),
        max_rel=max(relative),
        k=k,
        top_1=first,
        top_k=largest,
        kendall_tau=tau,
        equal=equal,
        worst=int(np.argmax(relative)),
    )


def _is_number(array: NDArray[Any]) -> bool:
    return array.dtype != np.object_ and array.dtype != np.bool_ and array.dtype.kind not in "SU"


def _equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    same = np.asarray(a == b, dtype=np.bool_)
    if _is_number(a) and _is_number(b) and a.dtype.kind != "i" and a.dtype.kind != "u":
        same = same | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
    return same


def _difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """a - b; nothing between equal infinities and between two that are no numbers, infinite where only one is."""
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)
    return np.where(np.isnan(gap), np.inf, gap)


def _relative(gap: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    length, size = float(np.linalg.norm(gap)), float(np.linalg.norm(np.where(np.isfinite(b), b, 0.0)))
    return length / size if size else (0.0 if not length else math.inf)


def _ranking(
    a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]], top_k: int
) -> tuple[float, float, float, int]:
    """Top 1, top k, Kendall's tau and the k that was taken. Scores one a row are ranked over the rows of a request."""
    first: list[float] = []
    shared: list[float] = []
    taus: list[float] = []
    k = 0
    for x, y in zip(a, b, strict=True):
        width = y.shape[-1] if y.ndim else 1
        if width == 1:
            width = y.size
        if width < 2 or not y.size:
            continue
        own, theirs = x.reshape(-1, width), y.reshape(-1, width)
        k = max(k, min(top_k, width))
        for row, other in zip(own, theirs, strict=True):
            mine, wanted = _largest(row, min(top_k, width)), _largest(other, min(top_k, width))
            first.append(float(row[mine[0]] == row[wanted[0]]))  # equal elements are as good as each other
            shared.append(len(set(mine) & set(wanted)) / len(wanted))
            if width <= LARGEST_RANKED:
                taus.append(kendall_tau(row, other))
    known = [tau for tau in taus if not math.isnan(tau)]
    return _mean(first), _mean(shared), _mean(known), k


def _largest(row: NDArray[np.float64], k: int) -> list[int]:
    return [int(at) for at in np.argsort(-row, kind="stable")[:k]]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def kendall_tau(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Kendall's tau-b of two vectors of one length: 1 where their elements are in the same order, -1 in the opposite.

    Ties count as Kendall (1945) has it; nan where all elements of one are equal.
    """
    up, down = np.triu_indices(len(a), 1)
    first, second = np.sign(a[up] - a[down]), np.sign(b[up] - b[down])
    untied = math.sqrt(float(np.count_nonzero(first)) * float(np.count_nonzero(second)))
    return float((first * second).sum()) / untied if untied else math.nan
