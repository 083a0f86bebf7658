"""perf_analyzer's own results, read into points that stand beside ours: its CSV (``-f``) and its JSON
(``--profile-export-file``).

Rules of perf_analyzer that are kept (its documentation and what it writes): latencies count from the real send; a point
is of the last three windows together; a request belongs to the window in which it ended; microseconds in the CSV,
nanoseconds of the wall clock in the JSON.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from workbench.errors import InvalidRequest, NotFound
from workbench.profiling.client_side import client_side
from workbench.profiling.figures import client_fields, stream_fields
from workbench.profiling.load import Distribution, Load
from workbench.profiling.point import Point
from workbench.profiling.samples import Samples
from workbench.profiling.stream_side import stream_side
from workbench.profiling.sweep_result import SweepResult

WINDOWS = 3
"""perf_analyzer reports this many windows, the last ones, together."""

_SERVER = {
    "Server Queue": "queue_ms",
    "Server Compute Input": "compute_input_ms",
    "Server Compute Infer": "compute_infer_ms",
    "Server Compute Output": "compute_output_ms",
}
_CACHE = {"Server Cache Hit": "cache_hit_ms", "Server Cache Miss": "cache_miss_ms"}
"""Columns that it writes of a model with a response cache only."""
_REST = "Network+Server Send/Recv"
_CLIENT = ("Client Send", _REST, "Client Recv")
_MEAN = "Avg latency"
_KNOWN_PERCENTILES = ("p50", "p90", "p95", "p99")
_READ = {"Concurrency", "Request Rate", "Inferences/Second", _MEAN, *_SERVER, *_CACHE, *_CLIENT}
_READ |= {f"{name} latency" for name in _KNOWN_PERCENTILES}
_SAID_ELSEWHERE = {"request/response", "response wait"}
"""Columns of ``--verbose-csv`` that are sums of others."""


def read_perf_analyzer(
    path: str | Path,
    *,
    export: str | Path | None = None,
    model: str = "",
    batch_size: int = 1,
    distribution: Distribution = "constant",
) -> SweepResult:
    """What perf_analyzer measured, as the points of a sweep: ``.to_frame()``, ``.best(p99_ms=20)``, ``.save(store)``.

    From the JSON come n, intervals and latencies of our own reckoning over the same requests; from the CSV the server's
    queue and compute. With both of one run (``export``) a point has all of it. What perf_analyzer does not write (the
    number of requests in a CSV, model and batch size in either) is nan, or what is given here; each point's ``notes``
    say so.

    Args:
        path: a CSV (``perf_analyzer -f FILE``) or a JSON (``--profile-export-file FILE``).
        export: the JSON of the same run, where ``path`` is the CSV.
        model: what was measured; the name of the file where it is not given.
        batch_size: ``-b`` of perf_analyzer; throughput is in inferences.
        distribution: ``--request-distribution`` of an open loop.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is neither, or cannot be read; the two are not of one run.
    """
    path = Path(path)
    name = model or path.stem
    options: dict[str, Any] = {"batch_size": batch_size, "distribution": distribution}
    text = _text_of(path)
    if text.lstrip()[:1] == "{":
        if export is not None:
            raise InvalidRequest("both files are JSON", where=str(path), hint="path is the CSV, export the JSON")
        points = _of_export(path, text, name, options)
    else:
        points = _of_csv(path, text, name, options)
        if export is not None:
            raw = _of_export(Path(export), _text_of(Path(export)), name, options)
            points = _joined(points, raw, path)
    return SweepResult(model=name, grid={}, points=tuple(points), total=len(points))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound("there is no such file", where=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the file cannot be read: {error}", where=str(path)) from error


def _load(mode: str, value: float, options: Mapping[str, Any], **more: Any) -> Load:
    given: dict[str, Any] = {"batch_size": options["batch_size"], **more}
    if mode == "concurrency":
        return Load.closed(int(value), **given)
    return Load.open(float(value), options["distribution"], **given)


def _point(path: Path, model: str, load: Load, notes: Sequence[str], **fields: Any) -> Point:
    said = [f"measured by perf_analyzer ({path.name})", *notes]
    if load.kind == "open":
        said.append("latencies count from the send: perf_analyzer does not write when a request was due")
    return Point(
        model=model,
        load=load,
        environment={"measured_by": "perf_analyzer", "file": path.name},
        notes=tuple(said),
        **fields,
    )


# ---------------------------------------------------------------- CSV


def _of_csv(path: Path, text: str, model: str, options: Mapping[str, Any]) -> list[Point]:
    rows = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)]
    heads = [cell.strip() for cell in rows[0]] if rows else []
    mode = {"Concurrency": "concurrency", "Request Rate": "request_rate"}.get(heads[0] if heads else "")
    if mode is None or "Inferences/Second" not in heads:
        raise InvalidRequest(
            "this is no CSV of perf_analyzer",
            where=str(path),
            hint="its first line begins with 'Concurrency,Inferences/Second,' or 'Request Rate,Inferences/Second,'",
        )
    points = []
    for number, row in enumerate(rows[1:], 2):
        if row[0].strip() == heads[0]:  # appended to by another run
            continue
        try:
            pairs = [(head, cell) for head, cell in zip(heads, row, strict=False) if cell.strip() and head]
            cells = {head: _number(head, cell) for head, cell in pairs}
            points.append(_csv_point(path, model, _load(mode, cells.pop(heads[0]), options), cells))
        except (ValueError, KeyError) as error:
            raise InvalidRequest(f"line {number} cannot be read: {error}", where=str(path)) from error
    return points


def _number(head: str, cell: str) -> float:
    """A cell; nan for what is no number in a column that is left out (of GPUs: ``UUID:VALUE;UUID:VALUE;``)."""
    try:
        return float(cell)
    except ValueError:
        if head in _READ:
            raise
        return math.nan


def _mean_us(cells: Mapping[str, float]) -> float:
    """As it says itself (``--verbose-csv``), else the sum of its parts; not where one of them was cut off at 0."""
    if _MEAN in cells:
        return cells[_MEAN]
    if cells.get(_REST) == 0:
        return math.nan
    parts = [cells.get(name, math.nan) for name in (*_CLIENT, *_SERVER)]
    return sum(parts) + sum(cells.get(name, 0.0) for name in _CACHE)


def _csv_point(path: Path, model: str, load: Load, cells: dict[str, float]) -> Point:
    fields: dict[str, Any] = {"throughput": cells.pop("Inferences/Second")}
    fields["mean_ms"] = _mean_us(cells) / 1000
    fields |= {ours: cells.pop(name) / 1000 for name, ours in (_SERVER | _CACHE).items() if name in cells}
    for name in _KNOWN_PERCENTILES:
        value = cells.pop(f"{name} latency", math.nan) / 1000
        fields |= {f"{name}_ms": value, f"sent_{name}_ms": value}
    left = [name for name in cells if name not in _CLIENT and name not in _SAID_ELSEWHERE and name != _MEAN]
    notes = ["its CSV does not say how many requests there were, so there are no intervals"]
    notes += [f"left out: {', '.join(left)}"] if left else []
    return _point(path, model, load, notes, valid=True, stable=True, **fields)


# ---------------------------------------------------------------- JSON


def _of_export(path: Path, text: str, model: str, options: Mapping[str, Any]) -> list[Point]:
    try:
        experiments = orjson.loads(text)["experiments"]
        return [_export_point(path, model, experiment, options) for experiment in experiments]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidRequest(
            f"this is no JSON of perf_analyzer's --profile-export-file: {type(error).__name__}: {error}",
            where=str(path),
            hint='it has {"experiments": [{"experiment": {"mode", "value"}, "requests", "window_boundaries"}, ...]}',
        ) from error


def _export_point(path: Path, model: str, experiment: Mapping[str, Any], options: Mapping[str, Any]) -> Point:
    about, requests = experiment["experiment"], experiment["requests"]
    mode, value = str(about["mode"]), float(about["value"])
    if mode not in ("concurrency", "request_rate"):
        raise ValueError(f"mode {mode!r} is neither concurrency nor request_rate")
    answers = [request["response_timestamps"] for request in requests]
    bounds = [int(each) for each in experiment["window_boundaries"]][-(WINDOWS + 1) :]
    streams = any(len(each) != 1 for each in answers if each)
    load = _load(mode, value, options, streaming=streams)
    samples = _samples([int(request["timestamp"]) for request in requests], answers, (bounds[0], bounds[-1]))
    client = client_side(samples, load, load.batch_size)
    fields = client_fields(client, samples)
    if load.kind == "open":  # what is not known is not 0
        fields |= {"lag_p50_ms": math.nan, "lag_p99_ms": math.nan}
    if streams:
        fields |= stream_fields(stream_side(samples, load))
    known = set(Point.__dataclass_fields__)
    return _point(
        path, model, load, [], valid=client.n > 0, stable=not client.unstable,
        reasons=client.unstable if client.n else ("no request was answered in its windows",),
        duration_s=samples.seconds, **{name: each for name, each in fields.items() if name in known},
    )  # fmt: skip


def _samples(sent: Iterable[int], answers: Sequence[Sequence[int]], window: tuple[int, int]) -> Samples:
    begun = np.array(list(sent), np.int64)
    done = np.array([int(each[-1]) if each else 0 for each in answers], np.int64)
    status = np.where(done > 0, 0, 1).astype(np.int32)
    pairs = sorted((int(at), of) for of, each in enumerate(answers) for at in each)
    times, numbers = np.array(pairs, np.int64).reshape(-1, 2).T
    return Samples(begun, begun, done, status, ["no response"], window, response_of=numbers, response_at=times)


def _joined(points: Sequence[Point], raw: Sequence[Point], path: Path) -> list[Point]:
    """The latencies of the JSON with the server's side of the CSV, load by load."""
    # The CSV has six digits of a rate.
    key: Callable[[Point], Any] = lambda point: (point.concurrency, f"{point.rate or 0:.6g}")  # noqa: E731
    by_load = {key(point): point for point in points}
    if set(by_load) != {key(point) for point in raw}:
        loads = [", ".join(point.load.label for point in each) or "none" for each in (points, raw)]
        raise InvalidRequest(
            "the two files are not of one run", where=str(path), hint=f"the CSV has {loads[0]}; the JSON {loads[1]}"
        )
    ours = (*_SERVER.values(), *_CACHE.values())
    return [replace(point, **{name: getattr(by_load[key(point)], name) for name in ours}) for point in raw]
