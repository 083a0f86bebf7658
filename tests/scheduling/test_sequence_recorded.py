"""What tritonserver 2.51 did with sequences, recorded, and replayed on the schedulers in virtual time.

A Python model whose batches take 250 ms wrote down the rows that it was given (X, START, END, READY, CORRID); the
client sent a request each 20 ms. Rows are written as in the model's log: the request's number with S and E for its
flags, ``-`` for a null row. Differences: 2.51 leaves the inputs of a null row as they happen to be in memory, and lets
a string correlation id through to a model with an integer CORRID (later releases refuse it, as here).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from workbench.scheduling import Accepted, Batch, Item, SequenceSettings, sequence_scheduler

MS = 1_000_000
BATCH = 250 * MS
DIRECT: dict[str, Any] = {"model_name": "m", "max_batch_size": 4}
OLDEST: dict[str, Any] = {**DIRECT, "strategy": "oldest"}


@dataclass
class Recording:
    """``sent``: "NUMBER:SEQUENCE:FLAGS[:TIMEOUT in us]", 20 ms apart, or a pause as "+MS"."""

    settings: dict[str, Any]
    sent: str
    batches: str
    errors: tuple[str, ...] = ()


def shown(batch: Batch) -> str:
    rows = [
        f"{row.item.id}{'S' * row.start}{'E' * row.end}@{row.correlation_id}" if row.item else "-"
        for row in batch.slots
    ]
    return " ".join(rows)


def replay(recording: Recording) -> tuple[list[str], list[str]]:
    """Batches and refusals in virtual time."""
    scheduler = sequence_scheduler(SequenceSettings(**recording.settings))
    scheduler.add_instance(0, 0)
    arrivals: list[tuple[int, Item]] = []
    moment = 0
    for word in recording.sent.split():
        if word.startswith("+"):
            moment += int(word) * MS
            continue
        number, sequence, flags, timeout = (*word.split(":"), "0")[:4]
        item = Item(int(number), timeout=int(timeout), sequence_id=int(sequence))
        item.sequence_start, item.sequence_end = "S" in flags, "E" in flags
        arrivals.append((moment, item))
        moment += 20 * MS
    batches: list[str] = []
    errors: list[str] = []
    running: tuple[int, Batch] | None = None
    now = 0
    while True:
        times = [at for at, _ in arrivals[:1]] + ([running[0]] if running else [])
        deadline = scheduler.next_deadline()
        times += [deadline] if deadline is not None else []
        if not times:
            return batches, errors
        now = max(now, min(times))
        while arrivals and arrivals[0][0] <= now:
            answer = scheduler.offer(arrivals.pop(0)[1], now)
            if not isinstance(answer, Accepted):
                errors.append(f"{answer.id} {answer.message}")
        if running and running[0] <= now:
            scheduler.complete(running[1], now)
            running = None
        errors += [f"{each.id} {each.message}" for each in scheduler.expire(now)]
        batch = None if running else scheduler.acquire(0, now)
        if batch:
            batches.append(shown(batch))
            running = (now + BATCH, batch)


def no_start(number: int, sequence: int) -> str:
    return (
        f"{number} inference request for sequence {sequence} to model 'm' must specify the START flag on the first "
        "request of the sequence"
    )


EXPIRED = "timeout of the corresponding sequence has been expired"

RECORDINGS = {
    "3.5 slots and null rows": Recording(
        DIRECT,
        "1:10:S 2:20:S 3:30:S 4:30: 5:20: 6:10:E +800 7:30: 8:40:S 9:20:E 10:30:E 11:40:E",
        "1S@10 | 6E@10 2S@20 3S@30 | - 5@20 4@30 | - - 7@30 | 8S@40 9E@20 10E@30 | 11E@40",
    ),
    "3.4 START on a live id": Recording(DIRECT, "1:10:S 2:10: 3:10:S 4:10:E", "1S@10 | 2@10 | 3S@10 | 4E@10"),
    "3.7 idle sequences": Recording(
        {**DIRECT, "max_batch_size": 2, "max_sequence_idle_microseconds": 600_000},
        "1:10:S +300 2:20:S +900 3:10: 4:20:",
        "1S@10 | - 2S@20",
        (no_start(3, 10), no_start(4, 20)),
    ),
    "3.7 the slot of an idle sequence goes to the backlog": Recording(
        {**DIRECT, "max_batch_size": 2, "max_sequence_idle_microseconds": 600_000},
        "1:10:S 2:20:S 3:30:S 4:30:",
        "1S@10 | - 2S@20 | 3S@30 | 4@30",
    ),
    "3.4 the backlog is served in order": Recording(
        {**DIRECT, "max_batch_size": 1, "max_sequence_idle_microseconds": 3_000_000},
        "1:1:S 2:2:S 3:3:SE 4:2:E 5:1:E",
        "1S@1 | 5E@1 | 2S@2 | 4E@2 | 3SE@3",
    ),
    "3.8 the backlog's timeout": Recording(
        {**DIRECT, "max_batch_size": 1, "max_sequence_idle_microseconds": 3_000_000},
        "1:1:S 2:2:S:300000 3:2: 4:3:SE +600 5:2: 6:1:E",
        "1S@1 | 6E@1 | 4SE@3",
        (f"2 {EXPIRED}", f"3 {EXPIRED}", no_start(5, 2)),
    ),
    "3.5 utilization and delay": Recording(
        {
            **DIRECT,
            "max_queue_delay_microseconds": 1_000_000,
            "minimum_slot_utilization": 0.75,
            "max_sequence_idle_microseconds": 9_000_000,
        },
        "1:1:S 2:2:S +300 3:3:SE +500 4:1:E 5:2:E",
        "1S@1 2S@2 3SE@3 | 4E@1 5E@2",
    ),
    "3.6 one request of a sequence at a time": Recording(
        {**OLDEST, "max_candidate_sequences": 4},
        "1:1:S 2:1: 3:2:S 4:2:E 5:1:E 6:3:SE",
        "1S@1 | 3S@2 6SE@3 2@1 | 4E@2 5E@1",
    ),
    "3.6 preferred sizes and delay": Recording(
        {
            **OLDEST,
            "max_candidate_sequences": 2,
            "preferred_batch_sizes": (2,),
            "max_queue_delay_microseconds": 700_000,
            "max_sequence_idle_microseconds": 3_000_000,
        },
        "1:1:S +200 2:2:S 3:3:SE 4:1: +800 5:1:E 6:2:E",
        "1S@1 2S@2 | 4@1 6E@2 | 5E@1 3SE@3",
    ),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_of_triton_is_replayed(name: str) -> None:
    recording = RECORDINGS[name]
    batches, errors = replay(recording)
    assert " | ".join(batches) == recording.batches
    assert tuple(errors) == recording.errors
