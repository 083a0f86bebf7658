"""Random histories: both strategies of the sequence batcher against a slow reading of section 3 and its invariants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from histories import HISTORIES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.scheduling import (
    Accepted,
    Batch,
    DynamicBatcher,
    Item,
    RejectedItem,
    SequenceSettings,
    sequence_scheduler,
)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
GRACE = 50_000_000
Place = tuple[int, int]


# ---- the slow reading: sequences as lists, everything worked out anew


@dataclass(eq=False)
class Request:
    id: int
    corr: int
    start: bool
    end: bool
    timeout: int
    shape: int
    since: int


@dataclass(eq=False)
class Seq:
    """A sequence, or several where START came on a live id. Over when it is closed and nothing waits."""

    corr: int
    last: int
    waiting: list[Request] = field(default_factory=list)
    closed: bool = False
    place: Place | None = None
    grace: int = 0
    deadline: int | None = None
    open: int = 0
    ends: bool = False
    placed: int = 0


@dataclass
class Slow:
    """Sections 3.4-3.8, 3.11 and 3.13, with no memory but the list of sequences."""

    s: SequenceSettings
    seqs: list[Seq] = field(default_factory=list)
    instances: list[int] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)
    running: dict[int, Batch] = field(default_factory=dict)
    flying: dict[Place, Request] = field(default_factory=dict)
    pools: dict[int, DynamicBatcher] = field(default_factory=dict)
    executing: dict[int, Seq] = field(default_factory=dict)
    rejected: list[int] = field(default_factory=list)
    draining: bool = False
    placed: int = 0

    @property
    def oldest(self) -> bool:
        return self.s.strategy == "oldest"

    def live(self, corr: int) -> Seq | None:
        return next((seq for seq in self.seqs if seq.corr == corr and not seq.closed), None)

    def occupant(self, place: Place) -> Seq | None:
        return next((seq for seq in self.seqs if seq.place == place), None)

    def free(self) -> Place | None:
        places = [(i, n) for i in self.instances if i not in self.leaving for n in range(self.s.slots)]
        taken = [place for place in places if self.occupant(place) is None]
        return min(taken, key=lambda place: (place[1], place[0]), default=None)

    def purge(self, now: int) -> None:
        for seq in list(self.seqs):
            if seq.place is None and seq.deadline is not None and now >= seq.deadline:
                self.rejected += [request.id for request in seq.waiting]
                self.seqs.remove(seq)

    def settle(self, now: int, first: Sequence[Place] = ()) -> None:
        """Hands on, frees slots and fills them from the backlog, in some places before the others."""
        places = [*first, *sorted({seq.place for seq in self.seqs if seq.place} - set(first))]
        while places:
            places += self.settle_place(places.pop(0), now)

    def settle_place(self, place: Place, now: int) -> list[Place]:
        """Gives the other places that got a sequence."""
        while True:
            seq = self.occupant(place)
            if seq is None:
                filled = self.fill(now)
                if self.occupant(place) is None:
                    return filled
                continue
            if self.oldest and seq.waiting and place not in self.flying:
                handed = self.flying[place] = seq.waiting.pop(0)
                self.executing[handed.id] = seq
                self.pools[place[0]].offer(Item(handed.id, shape_key=handed.shape), now)
            # an END that is handed on frees the slot at once; another end waits for what is under way
            elif seq.closed and not seq.waiting and (not self.oldest or seq.ends or place not in self.flying):
                self.seqs.remove(seq)
            else:
                return []

    def fill(self, now: int) -> list[Place]:
        self.purge(now)
        filled = []
        while (place := self.free()) is not None:
            seq = next((seq for seq in self.seqs if seq.place is None), None)
            if seq is None:
                break
            self.put(seq, place)
            seq.grace = now + GRACE
            filled.append(place)
        return filled

    def put(self, seq: Seq, place: Place | None) -> None:
        seq.place = place
        if place is not None:
            self.placed += 1
            seq.placed, seq.deadline = self.placed, None

    def offer(self, request: Request, now: int) -> bool:
        self.purge(now)
        seq = self.live(request.corr)
        if seq is None and not request.start:
            return False
        if seq is None:
            seq = Seq(request.corr, now)
            self.put(seq, self.free())
            self.seqs.append(seq)
        seq.last, seq.grace = now, 0
        seq.waiting.append(request)
        seq.open += 1
        if seq.place is None and request.timeout:
            until = now + request.timeout * 1000
            seq.deadline = until if seq.deadline is None else min(until, seq.deadline)
        if request.end and not self.s.iterative_sequence:
            seq.closed = seq.ends = True
        self.settle(now)
        return True

    def acquire(self, instance: int, now: int) -> list[int | None] | None:
        if self.oldest:
            batch = self.pools[instance].acquire(0, now)
            return [item.id for item in batch.items] if batch else None
        if instance in self.running:
            return None
        ready = {seq.place[1]: seq for seq in self.seqs if seq.place and seq.place[0] == instance and seq.waiting}
        if not ready:
            return None
        delay = self.s.max_queue_delay_microseconds * 1000
        age = now - min(seq.waiting[0].since for seq in ready.values())
        enough = len(ready) / max(1, self.s.max_batch_size) >= self.s.minimum_slot_utilization
        if delay and self.s.minimum_slot_utilization and not enough and age <= delay and not self.draining:
            return None
        shape = ready[min(ready)].waiting[0].shape
        rows: list[int | None] = []
        for number in range(max(ready) + 1):
            seq = ready.get(number)
            if seq is None or seq.waiting[0].shape != shape:
                rows.append(None)
            else:
                first = seq.waiting.pop(0)
                self.executing[first.id] = seq
                rows.append(first.id)
        self.settle(now, [(instance, number) for number in range(len(rows))])
        return rows

    def complete(self, batch: Batch, again: Sequence[int], now: int) -> list[int]:
        """Ids of those in ``again`` that are refused."""
        refused = []
        if self.oldest:
            self.pools[batch.instance].complete(batch, now)
        ids = [item.id for item in batch.items]
        for item in batch.items:
            if item.id in again:
                seq = self.executing[item.id]
                if seq.closed:
                    refused.append(item.id)
                else:
                    seq.waiting.append(Request(item.id, seq.corr, False, False, 0, item.shape_key, now))  # type: ignore[arg-type]
        places = [
            next(place for place, request in self.flying.items() if request.id == id) for id in ids if self.oldest
        ]
        for place in places:
            del self.flying[place]
        finished = []
        for id in ids:
            seq = self.executing.pop(id)
            if self.s.iterative_sequence and id not in again:
                seq.open -= 1
                if not seq.open and not seq.closed:
                    seq.closed = True
                    finished.append(seq.place)
        self.settle(now, [*(place for place in finished if place), *places])
        return refused

    def due(self, seq: Seq) -> int:
        return max(seq.last + self.s.idle, seq.grace)

    def expire(self, now: int) -> None:
        for pool in self.pools.values():
            pool.expire(now)
        self.purge(now)
        while not self.s.iterative_sequence:
            due = [seq for seq in self.seqs if seq.place and not seq.closed and self.due(seq) <= now]
            if not due:
                break
            first = min(due, key=lambda seq: (self.due(seq), seq.placed))
            first.closed = True
            assert first.place
            self.settle(now, [first.place])

    def cancel(self, id: int, now: int) -> bool:
        self.purge(now)
        for place, request in list(self.flying.items()):
            if request.id == id and self.pools[place[0]].cancel(id, now):
                seq = self.executing.pop(id)
                del self.flying[place]
                if seq in self.seqs:
                    self.rejected += [each.id for each in seq.waiting]
                    seq.waiting, seq.closed, seq.ends = [], True, False
                self.settle(now, [place])
                return True
        for seq in self.seqs:
            index = next((n for n, request in enumerate(seq.waiting) if request.id == id), None)
            if index is None:
                continue
            if seq.place is None:
                self.seqs.remove(seq)
                index = 0
            self.rejected += [request.id for request in seq.waiting[index:] if request.id != id]
            seq.waiting, seq.closed, seq.ends = seq.waiting[:index], True, False
            self.settle(now)
            return True
        return False

    def evict(self, instance: int, now: int) -> list[int]:
        lost = []
        for place, request in list(self.flying.items()):
            if place[0] == instance and self.pools[instance].cancel(request.id, now):
                del self.flying[place], self.executing[request.id]
                lost.append(request.id)
        for seq in self.seqs:
            if seq.place and seq.place[0] == instance:
                lost += [request.id for request in seq.waiting]
                seq.waiting, seq.closed, seq.ends = [], True, False
        self.settle(now, [(instance, number) for number in range(20)])
        return lost

    def clear(self, now: int) -> list[int]:
        self.purge(now)
        lost = [request.id for seq in self.seqs if seq.place is None for request in seq.waiting]
        self.seqs = [seq for seq in self.seqs if seq.place]
        for instance in list(self.instances):
            lost += self.evict(instance, now)
        return lost

    def reconfigure(self, new: SequenceSettings, now: int) -> None:
        self.s = new
        for pool in self.pools.values():
            pool.reconfigure(new.inner(), now)
        for seq in self.seqs:
            seq.grace = now + GRACE
        self.settle(now, self.fill(now))


# ---- histories


def some_settings(chance: random.Random, strategy: str | None = None) -> SequenceSettings:
    strategy = strategy or chance.choice(["direct", "oldest"])
    limit = chance.choice([0, 1, 2, 4, 8])
    return SequenceSettings(
        model_name="m",
        max_batch_size=limit,
        strategy=strategy,  # type: ignore[arg-type]
        max_sequence_idle_microseconds=chance.choice([200, 1_000, 100_000, 1_000_000]),
        max_queue_delay_microseconds=chance.choice([0, 0, 50, 300]),
        minimum_slot_utilization=chance.choice([0.0, 0.25, 0.5, 1.0]) if strategy == "direct" else 0.0,
        max_candidate_sequences=chance.choice([0, 1, 3, 6]) if strategy == "oldest" else 0,
        preferred_batch_sizes=(chance.randint(1, limit),) if limit and chance.random() < 0.5 else (),
    )


class History:
    """Plays one history on a scheduler and on the slow reading and compares what they do."""

    def __init__(self, seed: int, given_settings: SequenceSettings) -> None:
        self.chance = random.Random(seed)
        self.now = 1_000_000
        self.fast = sequence_scheduler(given_settings)
        self.slow = Slow(given_settings)
        self.offered: dict[int, Request] = {}
        self.ends: dict[int, str] = {}
        self.batches: dict[int, Batch] = {}
        self.owners: dict[Place, int] = {}
        self.last: dict[Seq, int] = {}
        for number in range(self.chance.randint(1, 3)):
            self.add(number)

    def end(self, id: int, how: str) -> None:
        assert id not in self.ends, f"{id} ended as {self.ends[id]} and again as {how}"
        self.ends[id] = how

    def add(self, number: int) -> None:
        self.fast.add_instance(number, self.now)
        self.slow.instances.append(number)
        if self.slow.oldest:
            self.slow.pools[number] = DynamicBatcher(self.slow.s.inner())
        self.slow.settle(self.now, self.slow.fill(self.now))

    def offer(self) -> None:
        live = [seq.corr for seq in self.slow.seqs if not seq.closed]
        corr = self.chance.choice(live) if live and self.chance.random() < 0.6 else self.chance.randint(1, 9)
        start = corr not in live or self.chance.random() < 0.1
        if self.chance.random() < 0.05:
            start = False
        request = Request(
            len(self.offered),
            corr,
            start,
            self.chance.random() < 0.25,
            self.chance.choice([0, 0, 0, 100, 2_000]),
            self.chance.choice([0] * 8 + [1]),
            self.now,
        )
        self.offered[request.id] = request
        item = Item(
            request.id,
            timeout=request.timeout,
            shape_key=request.shape,
            sequence_id=corr,
            sequence_start=start,
            sequence_end=request.end,
        )
        answer = self.fast.offer(item, self.now)
        assert isinstance(answer, Accepted) == self.slow.offer(request, self.now)
        if isinstance(answer, RejectedItem):
            assert answer.kind == "invalid"
            self.end(request.id, "refused")

    def acquire(self, instance: int | None = None) -> bool:
        number = self.chance.choice(self.slow.instances) if instance is None else instance
        if number in self.batches:
            return False
        batch = self.fast.acquire(number, self.now)
        expected = self.slow.acquire(number, self.now)
        rows = [row.item.id if row.item else None for row in batch.slots] if batch else None
        assert rows == expected
        if batch is None:
            return False
        self.batches[number] = self.slow.running[number] = batch
        assert batch.rows == len(batch.slots)
        assert batch.rows <= max(1, self.fast.settings.max_batch_size) or not self.slow.oldest
        assert [item.id for item in batch.items] == [id for id in rows or () if id is not None]
        assert len({item.shape_key for item in batch.items}) == 1
        for row in batch.slots:
            if row.item is None:
                continue
            place = (number, row.slot)
            if row.start:
                self.owners[place] = row.item.sequence_id  # type: ignore[assignment]
            assert self.owners[place] == row.correlation_id, "a row sees another sequence's state"
            seq = self.slow.executing[row.item.id]
            if not self.slow.s.iterative_sequence:
                assert self.last.get(seq, -1) < row.item.id, "out of order"
                self.last[seq] = row.item.id
        if not self.slow.oldest:
            assert [row.slot for row in batch.slots] == list(range(len(batch.slots)))
        return True

    def complete(self) -> None:
        if not self.batches:
            return
        number = self.chance.choice(list(self.batches))
        batch = self.batches.pop(number)
        del self.slow.running[number]
        again = [item.id for item in batch.items if self.slow.s.iterative_sequence and self.chance.random() < 0.5]
        refused = []
        for item in batch.items:
            if item.id in again and not isinstance(self.fast.reschedule(item, self.now), Accepted):
                refused.append(item.id)
        self.fast.complete(batch, self.now)
        assert self.slow.complete(batch, again, self.now) == refused
        for item in batch.items:
            if item.id not in again:
                self.end(item.id, "executed")
            elif item.id in refused:
                self.end(item.id, "cancelled")

    def expire(self) -> None:
        rejected = self.fast.expire(self.now)
        self.slow.expire(self.now)
        assert sorted(each.id for each in rejected) == sorted(self.slow.rejected)
        self.slow.rejected = []
        for each in rejected:
            assert each.kind in {"timeout", "cancelled"}
            self.end(each.id, each.kind)

    def cancel(self) -> None:
        if not self.offered:
            return
        id = self.chance.choice(list(self.offered)[-12:])
        cancelled = self.fast.cancel(id, self.now)
        assert cancelled == self.slow.cancel(id, self.now)
        if cancelled:
            self.end(id, "cancelled")

    def advance(self) -> None:
        self.now += self.chance.choice([1, 1_000, 50_000, 100_000, 200_000, 1_000_000, 60_000_000])
        if self.chance.random() < 0.7:
            self.expire()

    def remove(self) -> None:
        number = self.chance.choice(self.slow.instances)
        if len(self.slow.instances) - len(self.slow.leaving) > 1 and number not in self.slow.leaving:
            self.slow.leaving.add(number)
            if self.fast.remove_instance(number, self.now):
                self.depart(number)

    def depart(self, number: int) -> None:
        assert number in self.slow.leaving
        assert number not in self.batches
        assert not any(seq.place and seq.place[0] == number for seq in self.slow.seqs)
        self.slow.instances.remove(number)
        self.slow.leaving.remove(number)
        self.slow.pools.pop(number, None)
        for place in [place for place in self.owners if place[0] == number]:
            del self.owners[place]

    def grow(self) -> None:
        if len(self.slow.instances) < 4:
            self.add(max(self.slow.instances) + 1)

    def evict(self) -> None:
        number = self.chance.choice(self.slow.instances)
        lost = self.fast.evict(number, self.now)
        assert sorted(lost) == sorted(self.slow.evict(number, self.now))
        for id in lost:
            self.end(id, "lost")

    def clear(self) -> None:
        lost = self.fast.clear(self.now)
        assert sorted(lost) == sorted(self.slow.clear(self.now))
        for id in lost:
            self.end(id, "lost")
        assert self.fast.waiting == 0

    def reconfigure(self) -> None:
        old = self.slow.s
        new = replace(some_settings(self.chance, old.strategy), iterative_sequence=old.iterative_sequence)
        self.fast.reconfigure(new, self.now)
        self.slow.reconfigure(new, self.now)

    def check(self) -> None:
        for number in self.fast.departed(self.now):
            self.depart(number)
        waiting = sum(len(seq.waiting) for seq in self.slow.seqs)
        waiting += sum(pool.waiting for pool in self.slow.pools.values())
        seen = self.fast.sequence_statistics()
        overdue = any(seq.deadline is not None and seq.deadline <= self.now for seq in self.slow.seqs)
        if overdue or self.slow.rejected:
            return  # counted until somebody looks
        assert self.fast.waiting == waiting
        assert seen.taken == sum(seq.place is not None for seq in self.slow.seqs)
        assert seen.backlog == sum(seq.place is None for seq in self.slow.seqs)
        assert not (seen.backlog and self.slow.free()), "a sequence waits beside a free slot"

    def play(self, length: int) -> None:
        rare = {"cancel": 1, "remove": 0.3, "evict": 0.2, "clear": 0.1, "reconfigure": 0.3}
        weights = {"offer": 10, "acquire": 8, "complete": 6, "advance": 3, "grow": 0.3}
        weights |= {name: weight * self.chance.choice([0, 1]) for name, weight in rare.items()}
        for name in self.chance.choices(list(weights), list(weights.values()), k=length):
            getattr(self, name)()
            self.check()
        self.finish()

    def finish(self) -> None:
        """Drained and left alone for long, everything comes to an end and every slot is free."""
        self.fast.drain(self.now)
        self.slow.draining = True
        for pool in self.slow.pools.values():
            pool.drain(self.now)
        for _ in range(2_000):
            self.now += 1_000_000
            self.expire()
            self.check()
            for number in list(self.slow.instances):
                self.acquire(number)
            while self.batches:
                self.complete()
                self.check()
            if not self.fast.waiting and not self.fast.sequence_statistics().taken:
                break
        assert set(self.ends) == set(self.offered), "a request was lost"
        assert self.fast.next_deadline() is None
        seen = self.fast.sequence_statistics()
        assert (seen.taken, seen.backlog) == (0, 0)


def play_seed(seed: int, **changes: Any) -> None:
    chance = random.Random(seed)
    given_settings = replace(some_settings(chance), **changes)
    try:
        History(seed, given_settings).play(chance.choice([30, 80, 200]))
    except AssertionError as error:
        raise AssertionError(f"history of seed {seed}: {error}") from error


def test_random_histories_agree_with_the_slow_reading_and_lose_nothing() -> None:
    for seed in range(100):
        play_seed(seed)


def test_random_histories_of_iterative_models() -> None:
    for seed in range(80):
        play_seed(seed, iterative_sequence=True)


@pytest.mark.full
@pytest.mark.soak
def test_a_thousand_random_histories_of_sequences() -> None:
    for seed in range(10_000, 10_000 + HISTORIES):
        play_seed(seed, iterative_sequence=seed % 4 == 0)


# ---- a driver like the engine's


events = st.lists(
    st.tuples(
        st.integers(0, 400_000),
        st.integers(1, 5),
        st.sampled_from(["S", "S", "", "", "E", "SE"]),
        st.sampled_from([0, 0, 0, 50, 500]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW, derandomize=True)
@given(st.integers(0, 10_000), events)
def test_a_driver_that_only_follows_next_deadline_serves_everything_and_comes_to_rest(
    seed: int, history: list[tuple[int, int, str, int]]
) -> None:
    """Instances with service times, one timer: nothing hangs, nothing spins, no idle sequence keeps its slot."""
    chance = random.Random(seed)
    scheduler = sequence_scheduler(some_settings(chance))
    instances = chance.randint(1, 2)
    for number in range(instances):
        scheduler.add_instance(number, 0)
    idle, busy, ended, accepted, wakes = set(range(instances)), [], 0, 0, 0
    arrivals = sorted((at, n, *rest) for n, (at, *rest) in enumerate(history))
    now = 0
    while True:
        times = [busy[0][0]] if busy else []
        times += [arrivals[0][0]] if arrivals else []
        deadline = scheduler.next_deadline()
        times += [deadline] if deadline is not None else []
        if not times:
            break
        wakes += 1
        assert wakes < 3_000, "the driver spins"
        now = max(now, min(times))
        while busy and busy[0][0] <= now:
            _, number, batch = busy.pop(0)
            scheduler.complete(batch, now)
            ended += len(batch.items)
            idle.add(number)
        while arrivals and arrivals[0][0] <= now:
            _, id, corr, flags, timeout = arrivals.pop(0)
            item = Item(id, timeout=timeout, sequence_id=corr, sequence_start="S" in flags, sequence_end="E" in flags)
            accepted += isinstance(scheduler.offer(item, now), Accepted)
        ended += len(scheduler.expire(now))
        for number in sorted(idle):
            batch = scheduler.acquire(number, now)
            if batch is not None:
                idle.remove(number)
                busy.append((now + chance.choice([1, 30_000, 300_000]), number, batch))
                busy.sort(key=lambda entry: entry[:2])
    assert (ended, scheduler.waiting) == (accepted, 0)
    seen = scheduler.sequence_statistics()
    assert (seen.taken, seen.backlog) == (0, 0)
