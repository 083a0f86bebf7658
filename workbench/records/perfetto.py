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
    text = orjson.dumps(trace_of(data), option=orjson.OPT_SERIALIZE_NUMPY)
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
    return int(ns) / 1000


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
        self._lanes = _lanes(data)
        self.events: list[Event] = [*self._names(), *self._batches(), *self._requests(), *self._depths()]

    def _names(self) -> Iterator[Event]:
        """Metadata: what processes and threads are called, and their order."""
        for model, pid in self._pids.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": model}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        threads = {(self._pids[model], tid): f"instance {name}" for (model, name), tid in self._threads.items()}
        models = self._data.requests["model"].tolist()
        for model, lane in sorted(set(zip(models, self._lanes.tolist(), strict=True))):
            threads[self._pids[model], FIRST_LANE + lane] = f"requests {lane + 1}"
        for (pid, tid), name in threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}

    def _batches(self) -> Iterator[Event]:
        data = self._data
        stamps: dict[int, int] = {}  # of each batch one of its requests
        for request, batch in enumerate(data.waits.batch.tolist()):
            if batch >= 0:
                stamps.setdefault(batch, request)
        for row in range(len(data.batches["batch_seq"])):
            kept = {name: values[row] for name, values in data.batches.items()}
            begin, end = int(kept["acquired"]), int(kept["done"])
            where = {"pid": self._pids[kept["model"]], "tid": self._threads[kept["model"], kept["instance"]]}
            told = {name: int(kept[name]) for name in ("batch_seq", "rows", "requests", "epoch")}
            name = f"batch {short_number(kept['batch_seq'])}: {kept['rows']} rows, {kept['reason']}"
            yield _slice(name, "batch", begin, end, where, {**told, "reason": kept["reason"]})
            if row in stamps:
                record = {name: values[stamps[row]] for name, values in data.requests.items()}
                for name, start, stop in phases_of(record):
                    if name.startswith("compute") and begin <= start and stop <= end:
                        yield _slice(name.removeprefix("compute "), "phase", start, stop, where, {})

    def _requests(self) -> Iterator[Event]:
        data = self._data
        rows = {int(seq): row for row, seq in enumerate(data.requests["seq"].tolist())}
        for row in range(len(data.requests["seq"])):
            record = {name: values[row] for name, values in data.requests.items()}
            begin, end = int(record["arrival"]), int(record["end"])
            where = self._place(row)
            told: Event = {name: int(record[name]) for name in ("seq", "rows", "priority", "epoch", "version")}
            told |= {name: record[name] for name in ("request_id", "client", "status", "error") if record[name]}
            yield _slice(f"request {record['seq']}", "request", begin, end, where, told)
            for name, start, stop in phases_of(record):
                yield _slice(name, "phase", start, stop, where, {})
            batch = int(data.waits.batch[row])
            if batch >= 0:
                at = int(data.batches["acquired"][batch])
                yield from self._arrow("in batch", (where, max(begin, at - 1)), (self._of_batch(batch), at))
            parent = rows.get(int(record["parent_seq"]))
            if parent is not None:
                source = self._maker(parent, begin)
                if source[1] <= begin:  # what began later did not ask for it
                    yield from self._arrow("asks for", source, (where, begin))

    def _place(self, row: int) -> Event:
        lane = int(self._lanes[row])
        return {"pid": self._pids[self._data.requests["model"][row]], "tid": FIRST_LANE + lane}

    def _of_batch(self, batch: int) -> Event:
        model, instance = self._data.batches["model"][batch], self._data.batches["instance"][batch]
        return {"pid": self._pids[model], "tid": self._threads[model, instance]}

    def _maker(self, parent: int, when: int) -> tuple[Event, int]:
        """What a request was made by: the batch of its parent, or the parent itself (an ensemble)."""
        batch = int(self._data.waits.batch[parent])
        if batch >= 0:
            kept = self._data.batches
            return self._of_batch(batch), _between(when, int(kept["acquired"][batch]), int(kept["done"][batch]))
        requests = self._data.requests
        return self._place(parent), _between(when, int(requests["arrival"][parent]), int(requests["end"][parent]))

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


def _lanes(data: TimelineData) -> Any:
    """A lane for each request: requests of a model that overlap in time are in different ones (slices must nest)."""
    lanes = np.zeros(len(data.requests["seq"]), np.int64)
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[int, int]]] = {}
    arrival, end = data.requests["arrival"], data.requests["end"]
    for row in np.argsort(arrival, kind="stable"):
        model = data.requests["model"][row]
        open_lanes, unused = busy.setdefault(model, []), free.setdefault(model, [])
        while open_lanes and open_lanes[0][0] <= arrival[row]:
            heapq.heappush(unused, heapq.heappop(open_lanes)[1])
        lanes[row] = heapq.heappop(unused) if unused else len(open_lanes)
        heapq.heappush(open_lanes, (int(end[row]), int(lanes[row])))
    return lanes
