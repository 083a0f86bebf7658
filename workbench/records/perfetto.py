"""A timeline in Chrome's trace-event form (JSON), which ui.perfetto.dev and chrome://tracing open.

Processes are models, threads their instances (slices: batches, in them input, infer and output) and lanes of requests
(slices: the requests, in them their phases). Arrows lead from a request to its batch and from what made requests to
those requests. Counters tell how many requests waited. Times are microseconds of the server's CLOCK_MONOTONIC.
The form is that of the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from workbench.errors import InvalidRequest
from workbench.records.columns import Columns
from workbench.records.timeline import TimelineData
from workbench.records.waiting import queue_depth, short_number
from workbench.records.waterfall import phases_of

Event = dict[str, Any]
FIRST_LANE = 1000
"""Number of the first thread that shows requests; instances come before."""


def write_perfetto(data: TimelineData, path: str | Path) -> Path:
    """Writes the trace; compressed where the name ends in ``.gz`` (Perfetto opens that, too).

    Raises:
        InvalidRequest: it cannot be written there.
    """
    path = Path(path)
    text = orjson.dumps(trace_of(data))
    try:
        path.write_bytes(gzip.compress(text, 6) if path.suffix == ".gz" else text)
    except OSError as error:
        raise InvalidRequest(f"the trace cannot be written: {error}", where=str(path)) from error
    return path


def trace_of(data: TimelineData) -> dict[str, Any]:
    """The trace as a JSON object: ``traceEvents`` and what it is of."""
    about = {"made_by": "serving-workbench", "clock": "CLOCK_MONOTONIC of the server", "model": data.model or "all"}
    return {"traceEvents": _Trace(data).events, "displayTimeUnit": "ms", "otherData": about}


def _us(ns: int) -> float:
    return ns / 1000


class _Trace:
    def __init__(self, data: TimelineData) -> None:
        self._data = data
        names = sorted({*data.requests["model"].tolist(), *data.batches["model"].tolist()})
        self._pids = {model: number for number, model in enumerate(names, 1)}
        self._flows = itertools.count(1)
        self._threads: dict[tuple[str, str], int] = {}
        for model, instance in data.instances:
            of_model = sum(1 for other, _ in self._threads if other == model)
            self._threads[model, instance] = 1 + of_model
        self._lanes: list[int] = _lanes(data)
        self._batch_of: list[int] = data.waits.batch.tolist()
        # plain numbers: one by one, those of numpy are slow
        self._kept, self._asked = _rows(data.batches), _rows(data.requests)
        self.events: list[Event] = [*self._names(), *self._batches(), *self._requests(), *self._depths()]

    def _names(self) -> Iterator[Event]:
        """Metadata: what processes and threads are called, and their order."""
        for model, pid in self._pids.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": model}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        threads = {(self._pids[model], tid): f"instance {name}" for (model, name), tid in self._threads.items()}
        models = self._data.requests["model"].tolist()
        for model, lane in sorted(set(zip(models, self._lanes, strict=True))):
            threads[self._pids[model], FIRST_LANE + lane] = f"requests {lane + 1}"
        for (pid, tid), name in threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}

    def _batches(self) -> Iterator[Event]:
        first: dict[int, int] = {}  # of each batch one of its requests
        for request, batch in enumerate(self._batch_of):
            first.setdefault(batch, request)
        for row, kept in enumerate(self._kept):
            begin, end, where = kept["acquired"], kept["done"], self._of_batch(row)
            told = {name: kept[name] for name in ("batch_seq", "rows", "requests", "epoch", "reason")}
            name = f"batch {short_number(kept['batch_seq'])}: {kept['rows']} rows, {kept['reason']}"
            yield _slice(name, "batch", begin, end, where, told)
            if row in first:
                for name, start, stop in phases_of(self._asked[first[row]]):
                    if name.startswith("compute") and begin <= start and stop <= end:
                        yield _slice(name.removeprefix("compute "), "phase", start, stop, where, {})

    def _requests(self) -> Iterator[Event]:
        rows = {record["seq"]: row for row, record in enumerate(self._asked)}
        for row, record in enumerate(self._asked):
            begin, where = record["arrival"], self._place(row)
            told = {name: record[name] for name in ("seq", "rows", "priority", "epoch", "version")}
            told |= {name: record[name] for name in ("request_id", "client", "status", "error") if record[name]}
            yield _slice(f"request {record['seq']}", "request", begin, record["end"], where, told)
            for name, start, stop in phases_of(record):
                yield _slice(name, "phase", start, stop, where, {})
            batch = self._batch_of[row]
            if batch >= 0:
                at = self._kept[batch]["acquired"]
                yield from self._arrow("in batch", (where, max(begin, at - 1)), (self._of_batch(batch), at))
            parent = rows.get(record["parent_seq"])
            if parent is not None:
                source = self._maker(parent, begin)
                if source[1] <= begin:  # what began later did not ask for it
                    yield from self._arrow("asks for", source, (where, begin))

    def _place(self, row: int) -> Event:
        return {"pid": self._pids[self._asked[row]["model"]], "tid": FIRST_LANE + self._lanes[row]}

    def _of_batch(self, batch: int) -> Event:
        kept = self._kept[batch]
        return {"pid": self._pids[kept["model"]], "tid": self._threads[kept["model"], kept["instance"]]}

    def _maker(self, parent: int, when: int) -> tuple[Event, int]:
        """What a request was made by: the batch of its parent, or the parent itself (an ensemble)."""
        batch = self._batch_of[parent]
        if batch >= 0:
            kept = self._kept[batch]
            return self._of_batch(batch), _between(when, kept["acquired"], kept["done"])
        record = self._asked[parent]
        return self._place(parent), _between(when, record["arrival"], record["end"])

    def _arrow(self, name: str, source: tuple[Event, int], target: tuple[Event, int]) -> Iterator[Event]:
        number = next(self._flows)
        for phase, (where, when) in (("s", source), ("f", target)):
            event = {"ph": phase, "name": name, "cat": "flow", "id": number, "ts": _us(when), **where}
            yield event if phase == "s" else {**event, "bp": "e"}

    def _depths(self) -> Iterator[Event]:
        for model, (times, depth) in queue_depth(self._data.requests, self._data.waits).items():
            for when, waiting in zip(times.tolist(), depth.tolist(), strict=True):
                yield {
                    "ph": "C", "name": "queue depth", "pid": self._pids[model], "tid": 0, "ts": _us(when),
                    "args": {"waiting": waiting},
                }  # fmt: skip


def _slice(name: str, kind: str, begin: int, end: int, where: Event, args: Event) -> Event:
    return {
        "ph": "X", "name": name, "cat": kind, "ts": _us(begin), "dur": _us(max(0, end - begin)), **where, "args": args,
    }  # fmt: skip


def _between(value: int, low: int, high: int) -> int:
    return max(low, min(value, high - 1))


def _rows(table: Columns) -> list[dict[str, Any]]:
    columns = (values.tolist() for values in table.values())
    return [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]


def _lanes(data: TimelineData) -> list[int]:
    """A lane for each request: requests of a model that overlap in time are in different ones (slices must nest)."""
    arrival, end = data.requests["arrival"].tolist(), data.requests["end"].tolist()
    models = data.requests["model"].tolist()
    lanes = [0] * len(arrival)
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[int, int]]] = {}
    for row in np.argsort(data.requests["arrival"], kind="stable").tolist():
        open_lanes, unused = busy.setdefault(models[row], []), free.setdefault(models[row], [])
        while open_lanes and open_lanes[0][0] <= arrival[row]:
            heapq.heappush(unused, heapq.heappop(open_lanes)[1])
        lanes[row] = heapq.heappop(unused) if unused else len(open_lanes)
        heapq.heappush(open_lanes, (end[row], lanes[row]))
    return lanes
