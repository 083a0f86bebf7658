"""What the numbers of an output are, and what is worth comparing of them: the order of scores, the place of vectors.

A ranking (scores of candidates, of classes) is used by its order: the largest element, the ``k`` largest, Kendall's tau
over the elements. The elements of an embedding have no order that anybody uses: there it is the cosine similarity of a
vector and the reference's, and whether the neighbours among the examples stay in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Kind = Literal["scores", "embedding", "vectors"]
"""``vectors`` may be either (logits of many classes, features that are not of unit length)."""
KINDS: tuple[Kind, ...] = get_args(Kind)
WHOLE_NUMBERS = "whole numbers"
"""By what an output is told to be scores that may as well be labels or ids: how many are equal counts, too."""

Numbers = NDArray[np.float64]

LARGEST_RANKED = 2048
"""Longer vectors are not ranked for Kendall's tau, which compares each pair of elements."""
FEW_ELEMENTS = 64
"""Signed vectors up to this width are taken for scores: embeddings are wider."""
UNIT_WITHIN = 0.02
"""So far from 1 the length of a vector may be that is of unit length; bf16 keeps it within 0.01."""
MOST_NEIGHBOURS = 64
"""So many vectors are held against each other: 2016 pairs, which are ranked."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """``top_1``, ``top_k`` of ``k``, ``kendall_tau``: see ``OutputDrift``; nan where nothing can be ranked."""

    top_1: float = math.nan
    top_k: float = math.nan
    kendall_tau: float = math.nan
    k: int = 0


@dataclass(frozen=True, slots=True)
class Placing:
    """``cosine`` and ``cosine_min`` of each vector with the reference's; ``neighbours``: Kendall's tau of the pairwise
    similarities among ``vectors`` of them, nan for fewer than three."""

    cosine: float = math.nan
    cosine_min: float = math.nan
    neighbours: float = math.nan
    vectors: int = 0


def kind_of(arrays: Sequence[Numbers], *, whole: bool) -> tuple[Kind, str]:
    """What an output is, by its values in the examples, and why in words; ``whole`` says they are whole numbers.

    Scores: one a row, or as many as there are candidates, or without a sign, or few. An embedding: vectors of unit
    length. Else it may be either.
    """
    widths = {array.shape[-1] if array.ndim else 1 for array in arrays if array.size}
    if whole:
        return "scores", WHOLE_NUMBERS
    if widths == {1}:
        return "scores", "one a row"
    if len(widths) > 1:
        return "scores", "as many as there are candidates"
    rows = _rows(arrays)
    if not len(rows) or (rows >= 0).all():
        return "scores", "none is negative"
    lengths = np.linalg.norm(rows, axis=1)
    if rows.shape[1] > 2 and (np.abs(lengths - 1) < UNIT_WITHIN).all():
        return "embedding", "vectors of unit length"
    if rows.shape[1] <= FEW_ELEMENTS:
        return "scores", "few elements"
    return "vectors", "logits or features"


def _rows(arrays: Sequence[Numbers]) -> Numbers:
    """All vectors of all examples, of one width; those with what is no number are left out."""
    rows = [array.reshape(-1, array.shape[-1] if array.ndim else 1) for array in arrays if array.size]
    every = np.concatenate(rows) if rows else np.zeros((0, 1))
    return every[np.isfinite(every).all(axis=1)]


def ranking(a: Sequence[Numbers], b: Sequence[Numbers], top_k: int, *, order: bool = True) -> Ranking:
    """Of examples ``a`` against ``b``; scores one a row are ranked over the rows of a request. ``order``: with tau."""
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
            if order and width <= LARGEST_RANKED:
                taus.append(kendall_tau(row, other))
    known = [tau for tau in taus if not math.isnan(tau)]
    return Ranking(_mean(first), _mean(shared), _mean(known), k)


def placing(a: Sequence[Numbers], b: Sequence[Numbers]) -> Placing:
    """Of examples ``a`` against ``b``, whose last axis is that of the vectors."""
    pairs = [(_directions(x), _directions(y)) for x, y in zip(a, b, strict=True) if y.size]
    if not pairs:
        return Placing()
    cosines = np.concatenate([np.where((x == y).all(axis=1), 1.0, (x * y).sum(axis=1)) for x, y in pairs])
    mean, least = float(cosines.mean()), float(cosines.min())
    if len({y.shape[1] for _, y in pairs}) > 1:  # of several widths: they have no place among each other
        return Placing(mean, least)
    own, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
    few = np.unique(np.linspace(0, len(theirs) - 1, min(len(theirs), MOST_NEIGHBOURS)).astype(int))
    return Placing(mean, least, _neighbours(own[few], theirs[few]), len(few))


def _directions(array: Numbers) -> Numbers:
    """Its vectors, each of unit length; without a direction (all zero, or what is no number) zeros."""
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def _neighbours(own: Numbers, theirs: Numbers) -> float:
    if len(own) < 3:
        return math.nan
    up, down = np.triu_indices(len(own), 1)
    # Vectors that are the same are equally near, whatever the last bits of a product say.
    near = [np.round((side @ side.T)[up, down], 6) for side in (own, theirs)]
    return kendall_tau(*near)


def _largest(row: Numbers, k: int) -> list[int]:
    return [int(at) for at in np.argsort(-row, kind="stable")[:k]]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def kendall_tau(a: Numbers, b: Numbers) -> float:
    """Kendall's tau-b of two vectors of one length: 1 where their elements are in the same order, -1 in the opposite.

    Ties count as Kendall (1945) has it; nan where all elements of one are equal.
    """
    up, down = np.triu_indices(len(a), 1)
    first, second = np.sign(a[up] - a[down]), np.sign(b[up] - b[down])
    untied = math.sqrt(float(np.count_nonzero(first)) * float(np.count_nonzero(second)))
    return float((first * second).sum()) / untied if untied else math.nan
