"""The trace that ui.perfetto.dev opens: held against the rules of the trace-event format, and what it shows."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_helpers import MS, START, Book, busy_instance

from workbench.errors import InvalidRequest
from workbench.records.perfetto import write_perfetto
from workbench.records.timeline import timeline_of

METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
            "thread_sort_index": "sort_index"}  # fmt: skip


def check_trace(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Holds a trace against the format's rules; gives its events by phase.

    Every event has a name, a known phase, whole numbers for process and thread; all but metadata a time in
    microseconds. Complete slices have a duration and nest in their thread. A flow has one start and one end, in this
    order, each inside a slice of its thread. A counter has numbers. Every process and thread that is used has a name.
    """
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in "XMCsf", event
        assert isinstance(event["name"], str) and event["name"], event  # noqa: PT018
        assert type(event["pid"]) is int, event
        assert type(event["tid"]) is int, event
        if event["ph"] != "M":
            assert isinstance(event["ts"], int | float), event
            assert event["ts"] > 0, event
        events[event["ph"]].append(event)
    processes, threads = set(), set()
    for event in events["M"]:
        value = event["args"][METADATA[event["name"]]]
        assert isinstance(value, str if event["name"].endswith("_name") else int)
        (threads if event["name"].startswith("thread") else processes).add((event["pid"], event["tid"]))
    slices = defaultdict(list)
    for event in events["X"]:
        assert event["dur"] >= 0, event
        assert (event["pid"], event["tid"]) in threads, event
        slices[event["pid"], event["tid"]].append(event)
    for lane in slices.values():
        open_ends: list[int] = []
        for event in sorted(lane, key=lambda each: (each["ts"], -each["dur"])):
            begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"{event} reaches beyond the slice that it begins in"
            open_ends.append(end)
    flows = defaultdict(list)
    for event in events["s"] + events["f"]:
        flows[event["cat"], event["id"]].append(event)
        around = [each for each in slices[event["pid"], event["tid"]]
                  if each["ts"] <= event["ts"] <= each["ts"] + each["dur"] + 1e-3]  # fmt: skip
        assert around, f"{event} is in no slice"
    for pair in flows.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        assert pair[0]["ts"] <= pair[1]["ts"]
        assert pair[1]["bp"] == "e"
    for event in events["C"]:
        assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
    assert {pid for pid, _ in processes} == {event["pid"] for event in trace["traceEvents"]}
    return events


def exported(book: Book, tmp_path: Path, name: str = "trace.json") -> dict[str, list[dict[str, Any]]]:
    path = write_perfetto(timeline_of(book.columns(), START), tmp_path / name)
    raw = path.read_bytes()
    return check_trace(json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw))


def test_batches_and_phases_of_requests_are_slices_of_their_threads(tmp_path: Path) -> None:
    events = exported(busy_instance(), tmp_path)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    batch = next(e for e in events["X"] if e["name"] == "batch 19: 3 rows, delay")
    assert (batch["ts"], batch["dur"]) == ((START + 9 * MS) / 1000, 5000.0)
    assert names[batch["pid"], batch["tid"]] == "instance m_0"
    assert batch["args"] == {"batch_seq": 19, "rows": 3, "requests": 2, "epoch": 1, "reason": "delay"}
    request = next(e for e in events["X"] if e["name"] == "request 1")
    assert (request["ts"], request["dur"]) == ((START + 2 * MS) / 1000, 12500.0)
    assert request["args"]["request_id"] == "slow one"
    phases = [e for e in events["X"] if e["cat"] == "phase" and (e["pid"], e["tid"]) == (1, request["tid"])]
    inside = [(e["name"], e["dur"]) for e in phases if request["ts"] <= e["ts"] < request["ts"] + request["dur"]]
    assert inside == [("queue", 7000.0), ("compute infer", 5000.0), ("answer", 500.0)]
    depths = {e["ts"]: e["args"]["waiting"] for e in events["C"]}
    assert depths[(START + 2 * MS) / 1000] == 2
    assert depths[(START + 9 * MS) / 1000] == 0


def test_arrows_lead_from_requests_to_batches_and_to_what_was_made_for_them(tmp_path: Path) -> None:
    book = Book()
    book.batch(1, 1, 9, model="asks", instance="asks_0")
    book.batch(2, 3, 6, model="asked", instance="asked_0")
    book.request(10, 0, begun=0.5, computed=9.5, model="pipeline")
    book.request(11, 0.5, batch=1, parent_seq=10, end=9.25)
    book.request(12, 2, batch=2, parent_seq=11, end=6.5)
    events = exported(book, tmp_path, "trace.json.gz")
    process = {e["pid"]: e["args"]["name"] for e in events["M"] if e["name"] == "process_name"}
    ends = {e["id"]: e for e in events["f"]}
    arrows = sorted((e["name"], process[e["pid"]], process[ends[e["id"]]["pid"]]) for e in events["s"])
    assert arrows == [
        ("asks for", "asks", "asked"), ("asks for", "pipeline", "asks"), ("in batch", "asked", "asked"),
        ("in batch", "asks", "asks"),
    ]  # fmt: skip


def test_traces_of_random_records_keep_the_rules(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for case in range(20):
        book, at, seq = Book(), 0.0, 0
        for number in range(int(rng.integers(1, 20))):
            begin = at + float(rng.integers(0, 4)) / 2
            at = begin + float(rng.integers(1, 8)) / 2
            count = int(rng.integers(1, 5))
            book.batch(number, begin, at, requests=count, rows=count, model="mn"[number % 2])
            for _ in range(count):
                parent = int(rng.integers(-1, max(1, seq)))
                book.request(seq, max(0.0, begin - float(rng.integers(0, 9)) / 2), batch=number,
                             end=at + float(rng.integers(0, 5)) / 2, parent_seq=parent)  # fmt: skip
                seq += 1
        book.request(seq, 1, end=3, status="QUEUE_FULL")
        exported(book, tmp_path, f"{case}.json")


def test_an_empty_timeline_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    exported(Book(), tmp_path)
    with pytest.raises(InvalidRequest, match="the trace cannot be written"):
        write_perfetto(timeline_of(Book().columns(), START), tmp_path / "missing" / "trace.json")
