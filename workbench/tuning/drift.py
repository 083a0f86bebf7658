"""How far the outputs of one model are from another's: the same model in another framework or precision.

Everything is over the same inputs. Numbers: absolute and relative differences, and what the output is used by (see
``vectors``): the order of scores, or the place of embeddings among each other; anything: whatever a person counts.
Texts and booleans: the share that is equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.tuning.vectors import KINDS, WHOLE_NUMBERS, Kind, Placing, Ranking, kind_of, placing, ranking

Arrays = Mapping[str, NDArray[Any]]

Metric = Callable[[Arrays, Arrays], float]
"""A person's own figure of one example: (the reference's outputs, the other model's, by the reference's names) to a
number; the larger, the worse."""


@dataclass(frozen=True, slots=True)
class OutputDrift:
    """One output over all examples, against the reference's of that ``output``; ``name`` is the model's own name.

    ``max_abs`` and ``mean_abs`` are of the elements' differences; ``max_rel`` is the largest of the examples' |a - b| /
    |reference|, lengths of the whole tensors (so that elements near zero do not count for more than they are worth).
    ``kind`` says what the numbers are ("" for what are none), ``why`` by what it was decided.

    Of scores: ``top_1`` is the share of vectors whose largest element is the same one, ``top_k`` the mean share of the
    ``k`` largest that are the same ones, ``kendall_tau`` the mean of Kendall's tau-b of the vectors (Kendall 1945): 1
    is the same order, 0 none in common. Of an embedding: ``cosine`` and ``cosine_min``, the mean and the least
    cosine similarity of a vector and the reference's; ``neighbours`` is Kendall's tau-b of the similarities of all
    pairs among ``vectors`` of the examples: whether who is nearer to whom stays the same. Vectors that may be either
    have all of these but ``kendall_tau``. ``equal`` is the share of equal elements. What does not apply is nan.
    ``worst`` is the place of the example that differs most. ``nans`` and ``nans_of_reference`` are how many elements
    are NaN on each side: two of them at one place are taken as equal.
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
    kind: Kind | None = None
    why: str = ""
    cosine: float = math.nan
    cosine_min: float = math.nan
    neighbours: float = math.nan
    vectors: int = 0
    nans: int = 0
    nans_of_reference: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON, which has neither nan nor infinity: None."""
        return {
            key: None if isinstance(item, float) and not math.isfinite(item) else item
            for key, item in asdict(self).items()
        }

    @property
    def used_by(self) -> str:
        """What people look at of an output of its kind, in a line."""
        parts = []
        if math.isnan(self.max_abs) or self.why == WHOLE_NUMBERS:
            parts.append(f"{self.equal:.1%} equal")
        if not math.isnan(self.cosine):
            parts.append(f"cosine to the reference's at least {self.cosine_min:.5f} (mean {self.cosine:.5f})")
        if not math.isnan(self.neighbours):
            parts.append(f"order of neighbours Kendall τ {self.neighbours:.4f} ({self.vectors} vectors)")
        if not math.isnan(self.top_1):
            parts.append(f"top-1 the same in {self.top_1:.1%}, top-{self.k} overlap {self.top_k:.1%}")
        if not math.isnan(self.kendall_tau):
            parts.append(f"order of elements Kendall τ {self.kendall_tau:.4f}")
        return ", ".join(parts)

    @property
    def text(self) -> str:
        """In a line."""
        kind = f" ({self.kind}: {self.why})" if self.kind is not None else ""
        apart = "" if math.isnan(self.max_abs) else f"max |Δ| {self.max_abs:.2g}, relative {self.max_rel:.2g}"
        nans = ""
        if self.nans or self.nans_of_reference:
            nans = f"NaN: {self.nans} of {self.elements} values, {self.nans_of_reference} of the reference's"
        return f"{self.output}{kind}: {', '.join(part for part in (apart, nans, self.used_by) if part)}"


@dataclass(frozen=True, slots=True)
class Drift:
    """A model against the reference: each output, the person's own metric, and the place of the worst example: by that
    metric, else by the largest relative difference.

    ``metric`` is the mean over the examples for which it gave a number, nan without one; ``metric_error`` says of the
    first of the others which it is and what came instead.
    """

    model: str
    reference: str
    outputs: tuple[OutputDrift, ...]
    examples: int
    metric: float = math.nan
    worst: int = 0
    metric_error: str = ""

    @property
    def max_abs(self) -> float:
        """The largest of all outputs; nan where none is a number."""
        return max((each.max_abs for each in self.outputs if not math.isnan(each.max_abs)), default=math.nan)

    @property
    def lines(self) -> list[str]:
        """What was found, a line an output, and the person's own metric."""
        found = [each.text for each in self.outputs]
        if not math.isnan(self.metric):
            found.append(f"own metric {self.metric:.4g}")
        return found

    def __repr__(self) -> str:
        head = f"{self.model} against {self.reference}, {self.examples} example{'s' * (self.examples != 1)}"
        problems = [f"! {self.metric_error}"] if self.metric_error else []
        return "\n".join([head, *(f"  {line}" for line in [*self.lines, *problems])])


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
    kinds: Mapping[str, Kind] | None = None,
) -> Drift:
    """How far a model's answers are from the reference's, example by example.

    Args:
        model: its name.
        reference: the other's.
        ours: the model's outputs for each example, by its own names.
        theirs: the reference's.
        names: the reference's name of an output → the model's; None takes ``matched_names``.
        top_k: how many of the largest elements are looked at.
        metric: a figure of the person's own. One that raises or gives no number is told in ``metric_error``.
        kinds: the reference's name of an output → what it is; of the others it is decided by the reference's values.

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
        sides = [each[name] for each in ours], [each[output] for each in theirs]
        found.append(_of_output(output, name, *sides, top_k, (kinds or {}).get(output)))
    worst = max(found, key=_badness).worst
    if metric is None:
        return Drift(model, reference, tuple(found), len(ours), worst=worst)
    own, problems = _own_metric(metric, pairs, ours, theirs)
    known = [value for value in own if not math.isnan(value)]
    text = ""
    if problems:
        where = next(iter(problems))
        rest = f"; {len(problems)} of {len(own)} examples have no figure" if len(own) > 1 else ""
        text = f"your metric, on example {where} of '{model}': {problems[where]}{rest}"
    return Drift(
        model, reference, tuple(found), len(ours), float(np.mean(known)) if known else math.nan,
        int(np.nanargmax(own)) if known else worst, text,
    )  # fmt: skip


def check_kinds(kinds: Mapping[str, Any]) -> None:
    """Refuses what no output can be.

    Raises:
        InvalidRequest: naming the output.
    """
    for output, kind in kinds.items():
        if kind not in KINDS:
            raise InvalidRequest(
                f"output '{output}' cannot be {kind!r:.80}",
                hint=f"one of {', '.join(KINDS)}: output_kinds={{'{output}': 'embedding'}}",
            )


def _own_metric(
    metric: Metric, pairs: Mapping[str, str], ours: Sequence[Arrays], theirs: Sequence[Arrays]
) -> tuple[list[float], dict[int, str]]:
    """The figure of each example, nan where there is none; and by place what came instead."""
    values: list[float] = []
    problems: dict[int, str] = {}
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        value, problem = math.nan, ""
        try:
            given = metric(_for_reading(b), _for_reading({output: a[name] for output, name in pairs.items()}))
            value, problem = _as_number(given)
        except Exception as error:  # a person's own code
            problem = f"it raised {type(error).__name__}: {error}"
            if isinstance(error, TypeError | AttributeError | LookupError | ValueError):  # of arrays, it may have meant
                problem += (
                    " (if it is made for arrays: it gets two dictionaries of them, the reference's and the other "
                    f"model's, by the reference's names: {', '.join(pairs)})"
                )
        values.append(value)
        if problem:
            problems[place] = problem
    return values, problems


def _for_reading(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The same arrays, which cannot be written to: the answers are looked at afterwards, too."""
    found = {name: array.view() for name, array in arrays.items()}
    for array in found.values():
        array.flags.writeable = False
    return found


def _as_number(given: Any) -> tuple[float, str]:
    """A number (also numpy's and torch's, of one element), or what is wrong with it."""
    kind = type(given).__name__
    shape = getattr(given, "shape", ())
    if isinstance(given, str | bytes) or math.prod(shape) != 1:
        what = f"shape {list(shape)}" if shape else repr(given)[:60]
        return math.nan, f"it gave a {kind} ({what}) where one number is wanted"
    try:
        value = float(given.item() if shape else given)
    except (TypeError, ValueError):
        return math.nan, f"it gave a {kind} ({repr(given)[:60]}) where one number is wanted"
    return value, "it gave nan" if math.isnan(value) else ""


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
    output: str,
    name: str,
    ours: Sequence[NDArray[Any]],
    theirs: Sequence[NDArray[Any]],
    top_k: int,
    kind: Kind | None,
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
    if ours[0].dtype.kind in "iu" and theirs[0].dtype.kind in "iu":  # large ones are no different as floats
        gaps = [np.where(at, 0.0, np.maximum(gap, 1.0)) for at, gap in zip(same, gaps, strict=True)]
    relative = [_relative(gap, y) for gap, y in zip(gaps, b, strict=True)]
    found, why = kind_of(b, whole=theirs[0].dtype.kind in "iu")
    found, why = (found, why) if kind is None else (kind, "as you said")
    ranked = Ranking() if found == "embedding" else ranking(a, b, top_k, order=found == "scores")
    placed = Placing() if found == "scores" else placing(a, b)
    return OutputDrift(
        output,
        name,
        elements,
        max_abs=float(max(gap.max() for gap in gaps if gap.size)),
        mean_abs=float(sum(gap.sum() for gap in gaps) / elements),
        max_rel=max(relative),
        k=ranked.k,
        top_1=ranked.top_1,
        top_k=ranked.top_k,
        kendall_tau=ranked.kendall_tau,
        equal=equal,
        worst=int(np.argmax(relative)),
        kind=found,
        why=why,
        cosine=placed.cosine,
        cosine_min=placed.cosine_min,
        neighbours=placed.neighbours,
        vectors=placed.vectors,
        nans=sum(int(np.isnan(array).sum()) for array in a),
        nans_of_reference=sum(int(np.isnan(array).sum()) for array in b),
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
