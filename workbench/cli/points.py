"""How measured points are shown: their tables, why they are not to be believed, and what their p99 is worth."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.cli.tables import Doubtful, print_table, say
from workbench.cli.wording import in_flags

if TYPE_CHECKING:
    from workbench.profiling import Claim, Load, Point

_HEADERS = (
    "load", "infer/s", "p50 ms", "p95 ms", "p99 ms", "queue ms", "compute ms", "mean batch", "n", "failed", "verdict",
)  # fmt: skip
_LEAST = ("p95 ms", "compute ms", "queue ms", "mean batch", "p50 ms")
"""Columns that a narrow terminal can do without, the least important one first."""
_TIMES = ("p50_ms", "p90_ms", "p99_ms", "n")
_OF_STREAMS = [f"{title} {part.replace('_', ' ')}" for title in ("first", "between") for part in _TIMES]


def print_points(points: Sequence[Point], paths: Sequence[str] = (), *, title: str = "", models: bool = False) -> None:
    """Prints the table of points, and those of their streams and classes.

    Args:
        points: of a sweep, a profile, or another run.
        paths: the settings that tell them apart.
        title: above it.
        models: with the model of each.
    """
    from workbench.profiling.settings import short_name

    names = [*(["model"] if models else []), *map(short_name, paths)]
    rows = [(*_settings(point, paths, models), *_cells(point)) for point in points]
    least = ("failed", *_LEAST) if not any(point.failed for point in points) else (*_LEAST, "n")
    print_table((*names, *_HEADERS), rows, title=title, least=least, long=[*names, "load"], elsewhere=_ELSEWHERE)
    _print_streams(points, paths)
    _print_classes(points, paths)


_ELSEWHERE = "workbench runs show --json has them"


def _settings(point: Point, paths: Sequence[str], models: bool = False) -> tuple[str, ...]:
    from workbench.profiling.settings import shown

    values = (json.dumps(shown(point.settings.get(path))) for path in paths)
    return (*([point.model] if models else []), *values)


def _cells(point: Point) -> tuple[Any, ...]:
    compute = point.compute_input_ms + point.compute_infer_ms + point.compute_output_ms
    p99 = Doubtful(point.p99_ms) if _rests_on_few(point) else point.p99_ms
    figures = (point.throughput, point.p50_ms, point.p95_ms, p99, point.queue_ms, compute, point.mean_batch)
    return (point.load.label, *figures, point.n, point.failed, point.verdict)


def _print_streams(points: Sequence[Point], paths: Sequence[str]) -> None:
    """The table of the responses, where points streamed: how many, when the first, how far apart."""
    from workbench.profiling.settings import short_name

    rows = []
    for point in points:
        if point.load.streaming:
            times = [
                getattr(point, f"{name}_{part}") for name in ("first_response", "between_responses") for part in _TIMES
            ]
            of_all = (point.responses_per_s, point.responses_per_request)
            rows.append((*_settings(point, paths), point.load.label, *of_all, *times))
    if rows:
        names = list(map(short_name, paths))
        heads = (*names, "load", "responses/s", "a request", *_OF_STREAMS)
        least = ("between n", "first n", "between p90 ms", "first p90 ms", "a request", "between p99 ms")
        print_table(heads, rows, title="responses", least=least, long=[*names, "load"], elsewhere=_ELSEWHERE)


def _print_classes(points: Sequence[Point], paths: Sequence[str]) -> None:
    """The table of the classes of requests, where a load had several."""
    from workbench.profiling.settings import short_name

    rows = []
    for point in points:
        for name, of in point.classes.items():
            figures = (of.throughput, of.p50_ms, of.p95_ms, of.p99_ms, of.n, of.failed)
            rows.append((*_settings(point, paths), name, of.load, of.model or point.model, *figures))
    if rows:
        names = list(map(short_name, paths))
        heads = (*names, "class", "load", "model", "infer/s", "p50 ms", "p95 ms", "p99 ms", "n", "failed")
        least = ("model", "p95 ms", "failed", "p50 ms")
        print_table(heads, rows, title="classes", least=least, long=[*names, "load"], elsewhere=_ELSEWHERE)


def say_reasons(points: Sequence[Point]) -> None:
    """Prints why points are not valid, not stable or failed: each kind of reason once, with the points it is about."""
    from workbench.profiling.left_out import gathered
    from workbench.profiling.requests import NO_PRIORITIES, RANDOM_INPUTS
    from workbench.tuning.choice import describe

    said = []
    for point in points:
        reason = "; ".join(dict.fromkeys((*point.reasons, *([point.error] if point.error else []))))
        if reason:
            said.append((reason, describe(point)))
    for reason, places in gathered(said):
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        say(f"  ! {places[0]}{more}: {in_flags(reason)}")
    for point in points:
        for text in list(point.errors)[:3]:
            if any(text in reason for reason in point.reasons):
                continue
            say(f"  ! {describe(point)}: failed: {text}")
    told = (RANDOM_INPUTS, NO_PRIORITIES)
    for note in dict.fromkeys(note for point in points for note in point.notes if note.startswith(told)):
        say(f"  {in_flags(note)}")
    _say_longer(points)


def _say_longer(points: Sequence[Point]) -> None:
    """Says how to have the window that reasons ask for."""
    said = [(point, "; ".join((*point.reasons, point.error or ""))) for point in points]
    asked = [(int(s), point) for point, text in said for s in re.findall(r"measure for about (\d+) s", text)]
    if asked:
        longest, point = max(asked, key=lambda each: each[0])
        say(f"  a longer window: {longer_window(point.load, longest, point.duration_s)}")
    elif short := [point for point, text in said if "measure for longer" in text]:
        counted = all(point.load.requests for point in short)
        print(f"  a longer window: {'--measurement-request-count N' if counted else '-p MILLISECONDS'}")


def _rests_on_few(point: Point) -> bool:
    """Whether a point's p99, which may be believed otherwise, rests on fewer requests than any claim about it takes."""
    claim = point.claim(p99_ms=math.inf)
    return point.n > 0 and point.valid and not point.error and claim.had < claim.needed


def say_few(points: Sequence[Point]) -> None:
    """Says once of how many points the p99 rests on too few requests to mean much, and how long to measure for it."""
    measured = [point for point in points if point.n and point.valid and not point.error]
    few = [(point, point.claim(p99_ms=math.inf)) for point in measured if _rests_on_few(point)]
    if not few:
        return
    needed, fewest = few[0][1].needed, min(claim.had for _, claim in few)
    whose = "p99 rests" if len(measured) == 1 else f"p99 of {len(few)} of {len(measured)} points rests"
    seconds, longest = max(((_seconds(point, claim), point) for point, claim in few), key=lambda each: each[0])
    asked = "" if len(few) == 1 else " or more"
    alike = " (those of one batch count as one)" if any(claim.had < point.n for point, claim in few) else ""
    say(
        f"  ? {whose} on too few requests: it takes {needed} to claim one with 99 % confidence, there are {fewest}"
        f"{asked}{alike}; measure for about {seconds} s: {longer_window(longest.load, seconds, longest.duration_s)}"
    )


def claim_of(point: Point, p99_ms: float) -> dict[str, Any]:
    """Whether a point's requests show that its p99 holds a goal, as JSON values: ``verdict``, ``text``, ``needed`` and
    ``had`` requests, and where they were too few ``measure_for_s``."""
    claim = point.claim(p99_ms=p99_ms)
    found = {"verdict": claim.verdict, "text": claim.text, "needed": claim.needed, "had": claim.had}
    if claim.verdict != "open":
        return found
    return {**found, "measure_for_s": _seconds(point, claim)}


def goal_text(point: Point, p99_ms: float, option: str = "-p {ms}") -> str:
    """That a goal is shown to hold; or how long to measure to show it, and the ``option`` for that, with ``s`` or
    ``ms`` in it. Why it is not shown yet ``tuning.choose`` says."""
    found = claim_of(point, p99_ms)
    if "measure_for_s" not in found:
        return f"  {found['text']}"
    seconds = found["measure_for_s"]
    how = longer_window(point.load, seconds, point.duration_s, option)
    return f"  ! to show that p99 is at most {p99_ms:g} ms measure for about {seconds} s: {how}"


def longer_window(load: Load, seconds: int, lasted: float, option: str = "-p {ms}") -> str:
    """The option for a window of so many seconds, given how long one of that load lasted; of a window that ends after
    some requests their number."""
    if load.requests:
        more = seconds / lasted if lasted > 0 else 2.0
        return f"--measurement-request-count {math.ceil(load.requests * more)}"
    return option.format(s=seconds, ms=1000 * seconds)


def _seconds(point: Point, claim: Claim) -> int:
    """So long must be measured for the requests that a claim needs, at the rate of the point; twice as long as it was
    where there were as many and they left it open."""
    more = claim.needed / max(claim.had, 1)
    lasted = point.load.duration_s if math.isnan(point.duration_s) else point.duration_s
    return math.ceil(lasted * (1.1 * more if more > 1 else 2.0))
