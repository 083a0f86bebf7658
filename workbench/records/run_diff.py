"""Two runs side by side: the points of the same configuration and load, with intervals, and where each was measured.

A difference has an interval of its own, made of those of the two figures (method of variance estimates recovery: each
end is the difference of the figures less, or more, the root of the squared distances to their ends that work against
it); where it holds 0 the two are too close to call. The runs were made at different times: how the machine drifts in
between is in no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from workbench.records.run import Run, point_key

if TYPE_CHECKING:
    import pandas as pd

_Cell = dict[str, Any]
Verdict = Literal["higher", "lower", "too close to call", "no interval", "not stable", "not valid"]

FIGURES = (
    "throughput", "mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "first_response_p50_ms", "first_response_p99_ms",
    "between_responses_p50_ms", "between_responses_p99_ms",
)  # fmt: skip
"""What is compared, where both points have it with an interval."""

_HOW_LONG = {
    "duration_s", "warmup_s", "requests", "min_requests", "max_duration_s", "max_warmup_s", "drain_s", "max_in_flight",
}  # fmt: skip
_OF_THE_MOMENT = {"captured", "load_1m", "cpu_mhz", "memory_free_gib"}


@dataclass(frozen=True, slots=True)
class FigureDiff:
    """One figure of two points of the same configuration and load, first ``a``, then ``b``.

    ``change`` is (b - a) / a with the ends of its 95 % interval; nan where there is none.
    """

    settings: Mapping[str, Any]
    load: str
    figure: str
    a: float
    b: float
    change: float
    change_low: float
    change_high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RunDiff:
    """What differs between two runs.

    ``only_a`` and ``only_b`` are points that the other run does not have; ``environment`` maps what differs of the
    places to the two values; ``configs`` maps a point to the paths in which the configurations read back differ though
    the settings are the same; ``notes`` is what to know before believing anything.
    """

    a: str
    b: str
    figures: tuple[FigureDiff, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    environment: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON; nan becomes None."""
        rows = [{name: _plain(getattr(row, name)) for name in FigureDiff.__slots__} for row in self.figures]
        return {
            "a": self.a, "b": self.b, "figures": rows, "only_a": list(self.only_a), "only_b": list(self.only_b),
            "environment": {key: list(pair) for key, pair in self.environment.items()},
            "configs": {place: {key: list(pair) for key, pair in each.items()} for place, each in self.configs.items()},
            "notes": list(self.notes),
        }  # fmt: skip

    def to_frame(self) -> pd.DataFrame:
        """One row a figure; ``change`` columns as shares (0.05 is 5 % more)."""
        import pandas as pd

        rows = [{name: getattr(row, name) for name in FigureDiff.__slots__} for row in self.figures]
        frame = pd.DataFrame(rows, columns=list(FigureDiff.__slots__))
        paths = list(dict.fromkeys(path for row in self.figures for path in row.settings))
        for index, path in enumerate(paths):
            frame.insert(index, path, [row.settings.get(path) for row in self.figures])
        return frame.drop(columns="settings")

    def __repr__(self) -> str:
        lines = [f"{self.a} -> {self.b}: {len({(str(row.settings), row.load) for row in self.figures})} points in both"]
        lines += [f"  ! {note}" for note in self.notes]
        lines += [f"  {key}: {before} -> {after}" for key, (before, after) in self.environment.items()]
        for row in self.figures:
            place = place_of(row.settings, row.load)
            lines.append(f"  {place}: {row.figure} {row.a:.4g} -> {row.b:.4g} {change_text(row)}: {row.verdict}")
        lines += [f"  only in {self.a}: {place}" for place in self.only_a]
        lines += [f"  only in {self.b}: {place}" for place in self.only_b]
        for place, changes in self.configs.items():
            lines += [f"  {place}: {path} {before} -> {after}" for path, (before, after) in changes.items()]
        return "\n".join(lines)


def diff_runs(a: Run, b: Run) -> RunDiff:
    """Compares two runs point by point.

    Points are joined by model, settings and load, those that are left by the configuration read back and load: one that
    was applied before and one that a sweep has set are the same. How long they were measured, and with which seed, may
    differ (a note says so). Of several points in one place the last one that was not a failure counts.
    """
    first, second = _cells(a), _cells(b)
    second = _as_named(first, second)
    both = [key for key in first if key in second]
    figures: list[FigureDiff] = []
    configs: dict[str, Mapping[str, tuple[Any, Any]]] = {}
    for key in both:
        before, after = first[key], second[key]
        figures += _figures(before, after)
        changes = {
            path: pair
            for path, pair in _different(before.get("config") or {}, after.get("config") or {}).items()
            if not path.startswith(("name", "version_policy"))
        }
        if changes:
            configs[_place(before)] = changes
    environment = {
        path: pair for path, pair in _different(a.environment(), b.environment()).items() if path not in _OF_THE_MOMENT
    }
    return RunDiff(
        a.id,
        b.id,
        tuple(figures),
        tuple(_place(point) for key, point in first.items() if key not in second),
        tuple(_place(point) for key, point in second.items() if key not in first),
        environment,
        configs,
        tuple(_notes(a, b, [(first[key], second[key]) for key in both], environment)),
    )


def place_of(settings: Mapping[str, Any], load: str) -> str:
    """A point in a few words."""
    parts = [f"{path.rpartition('.')[2]} {_as_written(value)}" for path, value in settings.items()]
    return f"{', '.join(parts) or 'as configured'} at {load}"


def _as_written(value: Any) -> Any:
    """``parameters[KEY]`` was given a plain value."""
    return value["string_value"] if isinstance(value, Mapping) and list(value) == ["string_value"] else value


def change_text(row: FigureDiff) -> str:
    """A change in per cent with its interval."""
    if math.isnan(row.change):
        return ""
    if math.isnan(row.change_low) or math.isnan(row.change_high):
        return f"({100 * row.change:+.1f} %)"
    return f"({100 * row.change:+.1f} % [{100 * row.change_low:+.1f}, {100 * row.change_high:+.1f}])"


def _cells(run: Run) -> dict[str, dict[str, Any]]:
    cells: dict[str, dict[str, Any]] = {}
    for point in run.points():
        load = _what_is_sent(point["load"])
        key = point_key(model=point.get("model", ""), settings=point.get("settings") or {}, load=load)
        if key not in cells or not point.get("error"):
            cells[key] = point
    return cells


def _what_is_sent(load: Mapping[str, Any]) -> dict[str, Any]:
    """A load without how long it is measured, and without the seeds; of each of its classes, too."""
    sent = {key: value for key, value in load.items() if key not in _HOW_LONG and key != "seed"}
    if sent.get("mix"):
        sent["mix"] = [[name, _what_is_sent(part)] for name, part in sent["mix"]]
    return sent


def _as_named(first: Mapping[str, _Cell], second: Mapping[str, _Cell]) -> dict[str, _Cell]:
    """The second run's points by the first one's keys, where only one of each has that configuration and load."""
    left = [_by_config({key: cell for key, cell in one.items() if key not in other}) for one, other in
            ((first, second), (second, first))]  # fmt: skip
    renamed = {left[1][place]: key for place, key in left[0].items() if place in left[1]}
    return {renamed.get(key, key): cell for key, cell in second.items()}


def _by_config(cells: Mapping[str, _Cell]) -> dict[str, str]:
    """Keys by what was measured, of those for which it is known and that are the only ones of it."""
    found: dict[str, list[str]] = {}
    for key, cell in cells.items():
        if cell.get("config"):
            config = {"own": cell["config"], "steps": cell.get("step_configs") or {}}
            place = point_key(model=cell.get("model", ""), config=config, load=_what_is_sent(cell["load"]))
            found.setdefault(place, []).append(key)
    return {place: keys[0] for place, keys in found.items() if len(keys) == 1}


def _figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FigureDiff]:
    valid = all(point.get("valid") and not point.get("error") for point in (before, after))
    stable = all(point.get("stable") for point in (before, after))
    for figure in FIGURES:
        one, two = _reading(before, figure), _reading(after, figure)
        if one is None or two is None:
            continue
        (a, a_low, a_high), (b, b_low, b_high) = one, two
        low = b - a - math.hypot(b - b_low, a_high - a)
        high = b - a + math.hypot(b_high - b, a - a_low)
        verdict: Verdict
        if not valid:
            verdict = "not valid"
        elif not stable:
            verdict = "not stable"  # figures that had not settled: their intervals do not hold what comes next
        elif math.isnan(low) or math.isnan(high):
            verdict = "no interval"
        elif low <= 0.0 <= high:
            verdict = "too close to call"
        else:
            verdict = "higher" if low > 0 else "lower"
        scale = a if a else math.nan
        settings = before.get("settings") or {}
        yield FigureDiff(settings, _label(before), figure, a, b, (b - a) / scale, low / scale, high / scale, verdict)


def _reading(point: Mapping[str, Any], figure: str) -> tuple[float, float, float] | None:
    """A figure with its interval; None where the point does not have it."""
    value, stem = point.get(figure), figure.removesuffix("_ms")
    if value is None or f"{stem}_low" not in point:
        return None
    ends = (point.get(f"{stem}_low"), point.get(f"{stem}_high"))
    low, high = (math.nan if end is None else float(end) for end in ends)
    return float(value), low, high


def _label(point: Mapping[str, Any]) -> str:
    if "label" in point:  # points that were stored before they had one are of plain loops
        return str(point["label"])
    load = point["load"]
    rows = "" if load.get("batch_size", 1) == 1 else f" × {load['batch_size']} rows"
    if load.get("kind") == "open":
        return f"{load.get('rate', 0):g}/s {load.get('distribution', '')}{rows}"
    return f"concurrency {load.get('concurrency', '?')}{rows}"


def _place(point: Mapping[str, Any]) -> str:
    return place_of(point.get("settings") or {}, _label(point))


def _different(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Paths in which two JSON objects differ, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*a, *b)):
        one, two = a.get(key), b.get(key)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found |= _different(one, two, f"{prefix}{key}.")
        elif one != two:
            found[f"{prefix}{key}"] = (one, two)
    return found


def _notes(
    a: Run, b: Run, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], environment: Mapping[str, Any]
) -> Iterator[str]:
    if not pairs:
        yield "no configuration and load is in both runs"
        return
    if "cpu_model" in environment:
        one, two = environment["cpu_model"]
        yield f"measured on different processors ({one}; {two}): these are not differences of the configuration"
    for name, what in (("duration_s", "the windows"), ("seed", "the seeds"), ("warmup_s", "the warm-ups")):
        values = {(one["load"].get(name), two["load"].get(name)) for one, two in pairs}
        for before, after in sorted(value for value in values if value[0] != value[1]):
            yield f"{what} differ: {name} {before} in {a.id}, {after} in {b.id}"
    if any(one.get("inputs") != two.get("inputs") for one, two in pairs):
        yield "different inputs were sent"
    one_load, two_load = (run.environment().get("load_1m") for run in (a, b))
    if one_load is not None and two_load is not None and abs(one_load - two_load) > 1:
        yield f"the machine was not equally busy: load {one_load} in {a.id}, {two_load} in {b.id}"
    if a.id != b.id:
        yield "measured at different times: how the machine drifted in between is in no interval"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    return dict(value) if isinstance(value, Mapping) else value
