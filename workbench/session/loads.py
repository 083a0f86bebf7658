"""The loads that the arguments of the measuring verbs name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Real
from typing import Any

from workbench.errors import InvalidRequest
from workbench.profiling import Load, MeasureOptions
from workbench.profiling.sweeping import MOST_POINTS

_NOT_OPTIONS = {"kind", "concurrency", "rate", "distribution", "mix", "trace", "trace_sha256", "factor", "inputs"}
_LOAD_FIELDS = {item.name for item in fields(Load)} - _NOT_OPTIONS


def loads_of(
    concurrency: int | Sequence[int] | None,
    rate: float | Sequence[float] | None,
    options: Mapping[str, Any],
    load: Any = None,
) -> list[Load]:
    """The loads that the verbs' arguments name; concurrency 1 when none is named.

    Args:
        concurrency: closed loops.
        rate: open loops.
        options: of each of these.
        load: whole ones: a ``Load``, several, or what ``Load.replay`` takes.

    Raises:
        InvalidRequest: values that make no sense, an option that a load does not have.
    """
    if load is not None:
        beside = {"concurrency": concurrency, "rate": rate, **options}
        return _whole_loads(load, [name for name, value in beside.items() if value is not None])
    unknown = set(options) - _LOAD_FIELDS - {"distribution"}
    if unknown:
        raise InvalidRequest(
            f"unknown option {', '.join(sorted(unknown))}",
            hint=f"there are {', '.join(sorted(_LOAD_FIELDS | {'distribution'}))}",
        )
    common = {name: value for name, value in options.items() if name != "distribution"}
    closed = _numbers("concurrency", concurrency, int)
    opened = _numbers("rate", rate, float)
    if not closed and not opened:
        closed = [1]
    distribution = options.get("distribution", "poisson")
    loads = [Load.closed(int(value), **common) for value in closed]
    return loads + [Load.open(value, distribution, **common) for value in opened]


def judged_by(measure: MeasureOptions | None, options: Mapping[str, Any]) -> MeasureOptions:
    """How points are judged, given the options of a verb: who asks for so many requests wants no fewer, also where that
    is the number that loads have anyway."""
    judged = measure if measure is not None else MeasureOptions()
    if not isinstance(judged, MeasureOptions):
        raise InvalidRequest(
            f"measure must be MeasureOptions, got {measure!r:.80}",
            hint='workbench.profiling.MeasureOptions(stability="three_windows")',
        )
    return replace(judged, requests_asked=True) if "min_requests" in options else judged


def _whole_loads(load: Any, beside: Sequence[str]) -> list[Load]:
    if beside:
        raise InvalidRequest(
            f"load says what is sent; {', '.join(beside)} beside it would say it twice",
            hint="give it to the load: Load.closed(8, duration_s=5)",
        )
    given = list(load) if isinstance(load, list | tuple) else [load]
    return [each if isinstance(each, Load) else Load.replay(each) for each in given]


def _numbers(name: str, given: Any, kind: type[int] | type[float]) -> list[Any]:
    """One number or several (also numpy's) as a list.

    Raises:
        InvalidRequest: something else.
    """
    if given is None:
        return []
    hint = f"write {name}=8 or {name}=[1, 8]"
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    values = list(itertools.islice(given, MOST_POINTS + 1)) if several else [given]
    if not values:
        raise InvalidRequest(f"{name} names no load: it is empty", hint=f"{hint}, or leave it out")
    if len(values) > MOST_POINTS:
        raise InvalidRequest(f"{name} names more than {MOST_POINTS} loads", hint=hint)
    for value in values:
        if not _is_number(value, kind):
            raise InvalidRequest(
                f"{name} must be {'whole numbers' if kind is int else 'numbers'}, got {value!r:.80}", hint=hint
            )
    return [_as(kind, value) for value in values]


def _is_number(value: Any, kind: type[int] | type[float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value
    try:
        return kind is float or bool(int(number) == number)
    except (OverflowError, ValueError):  # infinite, no number
        return False


def _as(kind: type[int] | type[float], value: Any) -> Any:
    try:
        return kind(value)
    except OverflowError:
        return value  # a load says what it may be
