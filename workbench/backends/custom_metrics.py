"""Models' own metrics: families by name with their metrics by labels, shared by all that name them alike.

Rules and texts: Triton's core (metric_family.cc) and prometheus-cpp, recorded from release 24.10 (Triton 2.51).
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workbench.errors import InvalidRequest, Unsupported

_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Metric:
    """One row of a family, or a histogram's rows; ``users`` counts the models' objects that refer to it."""

    labels: Labels
    bounds: tuple[float, ...]
    value: float = 0.0
    counts: list[int] = field(default_factory=list)
    users: int = 0


@dataclass(slots=True)
class _Family:
    name: str
    kind: str
    text: str
    metrics: dict[Labels, _Metric] = field(default_factory=dict)
    users: int = 0


@dataclass(frozen=True, slots=True)
class FamilyValues:
    """What a family stands at: rows of (what is appended to its name, labels, value)."""

    name: str
    kind: str
    text: str
    rows: tuple[tuple[str, Labels, float], ...]


class CustomMetrics:
    """The custom metrics of one server. Thread-safe. Families and metrics have numbers, one for each model's object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        self._reserved: dict[str, str] = {}
        self._next = itertools.count(1).__next__
        self._of_family: dict[int, _Family] = {}
        self._of_metric: dict[int, tuple[_Family, _Metric]] = {}
        self._members: dict[int, list[int]] = {}

    def reserve(self, kinds: Mapping[str, str]) -> None:
        """Names of the server's own metrics, with their kinds: a family of such a name must be of that kind."""
        self._reserved.update(kinds)

    def family(self, name: str, text: str, kind: str) -> int:
        """A family of a name; ``kind`` is counter, gauge or histogram. The first one's text stays.

        Raises:
            InvalidRequest: the name is none, or stands for another kind.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequest("Invalid metric name")
        with self._lock:
            found = self._families.get(name)
            if (found.kind if found is not None else self._reserved.get(name, kind)) != kind:
                raise InvalidRequest("Family name already exists with different type")
            family = self._families.setdefault(name, found or _Family(name, kind, text))
            family.users += 1
            number = self._next()
            self._of_family[number] = family
            self._members[number] = []
            return number

    def metric(self, number: int, labels: str, bounds: Iterable[float]) -> int:
        """A metric of a family; ``labels`` is a JSON object or null. One with these labels is shared.

        Raises:
            InvalidRequest: a label or the buckets are wrong.
        """
        given = json.loads(labels) or {}
        if not all(isinstance(value, str) for value in given.values()):
            raise InvalidRequest("attempt to access JSON non-string as string")
        with self._lock:
            family = self._of_family[number]
            histogram = family.kind == "histogram"
            if not all(_LABEL.fullmatch(name) and not (histogram and name == "le") for name in given):
                raise InvalidRequest("Invalid label name")
            steps = tuple(bounds)
            if any(low >= high for low, high in itertools.pairwise(steps)):
                raise InvalidRequest("Bucket Boundaries must be strictly sorted")
            key = tuple(sorted(given.items()))
            metric = family.metrics.get(key)
            if metric is None:
                metric = family.metrics[key] = _Metric(key, steps, counts=[0] * (len(steps) + 1))
            metric.users += 1
            made = self._next()
            self._of_metric[made] = family, metric
            self._members[number].append(made)
            return made

    def increment(self, number: int, value: float) -> None:
        """Adds to a counter or gauge.

        Raises:
            Unsupported, InvalidRequest: it is a histogram, or a counter would go down.
        """
        with self._lock:
            family, metric = self._of_metric[number]
            if family.kind == "histogram":
                raise _refusal(family, "Increment")
            if family.kind == "counter" and value < 0:
                raise InvalidRequest(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
                )
            metric.value += value

    def set(self, number: int, value: float) -> None:
        """Sets a gauge.

        Raises:
            Unsupported: it is none.
        """
        with self._lock:
            family, metric = self._of_metric[number]
            if family.kind != "gauge":
                raise _refusal(family, "Set")
            metric.value = value

    def observe(self, number: int, value: float) -> None:
        """Adds an observation to a histogram.

        Raises:
            Unsupported: it is none.
        """
        with self._lock:
            family, metric = self._of_metric[number]
            if family.kind != "histogram":
                raise _refusal(family, "Observe")
            place = len(metric.bounds) if math.isnan(value) else bisect.bisect_left(metric.bounds, value)
            metric.counts[place] += 1
            metric.value += value

    def value(self, number: int) -> float:
        """What a counter or gauge stands at.

        Raises:
            Unsupported: it is a histogram.
        """
        with self._lock:
            family, metric = self._of_metric[number]
            if family.kind == "histogram":
                raise _refusal(family, "Value")
            return metric.value

    def delete_family(self, number: int) -> None:
        """A model's object of a family is gone, and its metrics with it; an unknown number is no error."""
        with self._lock:
            family = self._of_family.pop(number, None)
            if family is None:
                return
            for each in self._members.pop(number):
                _, metric = self._of_metric.pop(each)
                metric.users -= 1
                if not metric.users:
                    del family.metrics[metric.labels]
            family.users -= 1
            if not family.users:
                del self._families[family.name]

    def values(self) -> list[FamilyValues]:
        """The families that have metrics, in the order in which they were made."""
        with self._lock:
            return [
                FamilyValues(
                    family.name,
                    family.kind,
                    family.text,
                    tuple(row for metric in family.metrics.values() for row in _rows(family.kind, metric)),
                )
                for family in self._families.values()
                if family.metrics
            ]


def _rows(kind: str, metric: _Metric) -> list[tuple[str, Labels, float]]:
    if kind != "histogram":
        return [("", metric.labels, metric.value)]
    sums = list(itertools.accumulate(metric.counts))
    rows = [("_count", metric.labels, float(sums[-1])), ("_sum", metric.labels, metric.value)]
    for bound, count in zip((*metric.bounds, math.inf), sums, strict=True):
        rows.append(("_bucket", (*metric.labels, ("le", number_text(bound))), float(count)))
    return rows


def number_text(value: float) -> str:
    """A number as Prometheus' text format has it."""
    if math.isfinite(value):
        return f"{value:.16g}"
    return "Nan" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _refusal(family: _Family, what: str) -> Unsupported:
    return Unsupported(f"TRITONSERVER_METRIC_KIND_{family.kind.upper()} does not support {what}")
