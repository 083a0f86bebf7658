"""Random histories: the dynamic batcher against a slow reading of Triton's text, and against its invariants."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from histories import HISTORIES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.scheduling import Accepted, BatcherSettings, DynamicBatcher, Item, QueuePolicy

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


# ---- the slow reading: everything is worked out anew from what waits, at the time asked for


@dataclass
class Waiting:
    id: int
    rows: int
    priority: int
    timeout: int
    shape: int
    inputs: int
    since: int
    order: int


@dataclass
class Oracle:
    """Sections 1.3-1.7 and 2.1-2.6 of the reference, with no memory but the list of what waits."""

    s: BatcherSettings
    waiting: list[Waiting] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    draining: bool = False

    def level(self, w: Waiting) -> int:
        if not self.s.batching or self.s.priority_levels == 0:
            return 0
        if w.priority == 0 or w.priority > self.s.priority_levels:
            return self.s.default_priority_level
        return w.priority

    def policy(self, level: int) -> QueuePolicy:
        if not self.s.batching:
            return QueuePolicy()
        if level and level in self.s.priority_queue_policy:
            return self.s.priority_queue_policy[level]
        return self.s.default_queue_policy

    def deadline(self, w: Waiting) -> int | None:
        policy = self.policy(self.level(w))
        timeout = policy.default_timeout_microseconds
        if policy.allow_timeout_override and w.timeout != 0 and w.timeout < timeout:
            timeout = w.timeout
        return None if timeout == 0 else w.since + timeout * 1000

    def expired(self, w: Waiting, now: int) -> bool:
        deadline = self.deadline(w)
        return deadline is not None and now > deadline

    def action(self, w: Waiting) -> str:
        return self.policy(self.level(w)).timeout_action

    def tick(self, now: int) -> None:
        for w in list(self.waiting):
            if self.expired(w, now) and self.action(w) == "REJECT":
                self.waiting.remove(w)
                self.rejected.append(w.id)

    def offer(self, w: Waiting, now: int) -> bool:
        self.tick(now)
        level = self.level(w)
        limit = self.policy(level).max_queue_size
        if limit and sum(1 for other in self.waiting if self.level(other) == level) >= limit:
            return False
        self.waiting.append(w)
        return True

    def in_order(self, now: int) -> list[Waiting]:
        return sorted(self.waiting, key=lambda w: (self.level(w), self.expired(w, now), w.order))

    def decide(self, now: int) -> tuple[int, str] | None:
        """How many of the first leave and why; None: wait (or nothing is there)."""
        self.tick(now)
        queue = self.in_order(now)
        if not queue:
            return None
        if not self.s.batching:
            return 1, "direct"
        limit = max(1, self.s.max_batch_size)
        preferred = list(self.s.preferred_batch_sizes) or ([self.s.max_batch_size] if self.s.max_batch_size else [])
        largest = max(preferred, default=0)
        pending: list[Waiting] = []
        best: list[Waiting] = []
        send_now = ""
        for w in queue:  # 1.4
            size = sum(p.rows for p in pending)
            if pending:
                if size + w.rows > largest and not best:  # b
                    best = list(pending)
                if size + w.rows > limit:  # c
                    send_now = "full"
                    break
                if w.inputs != pending[0].inputs:  # d
                    send_now = "inputs"
                    break
                if w.shape != pending[0].shape:  # d
                    send_now = "shapes"
                    break
            pending.append(w)
            if size + w.rows in preferred:  # e
                best = list(pending)
        size = sum(p.rows for p in pending)
        delay = self.s.max_queue_delay_microseconds * 1000
        age = now - min(p.since for p in pending)
        delay_exceeded = delay != 0 and age >= delay
        if best and not delay_exceeded:  # 5.1
            got = sum(p.rows for p in best)
            return len(best), "preferred" if got in preferred and got != largest else "full"
        if send_now:  # 5.3
            return len(pending), send_now
        if size >= limit or (size >= largest and not best):  # 5.3
            return len(pending), "full"
        if delay_exceeded:  # 5.4
            return len(pending), "delay"
        if delay == 0:  # 5.4
            return len(pending), "no_delay"
        return (len(pending), "drain") if self.draining else None

    def acquire(self, now: int) -> tuple[list[int], str] | None:
        decision = self.decide(now)
        if decision is None:
            return None
        taken = self.in_order(now)[: decision[0]]
        for w in taken:
            self.waiting.remove(w)
        return [w.id for w in taken], decision[1]

    def next_change(self, now: int) -> int | None:
        """When a timeout passes or what waits may leave, given that nothing may leave now."""
        times = [d + 1 for w in self.waiting if (d := self.deadline(w)) is not None and d >= now]
        if self.waiting and self.s.batching:
            times.append(min(w.since for w in self.waiting) + self.s.max_queue_delay_microseconds * 1000)
        return min(times, default=None)


# ---- histories

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(["REJECT", "DELAY"]),
    default_timeout_microseconds=st.sampled_from([0, 0, 20, 100]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 0, 1, 3, 6]),
)
no_policy = st.just(QueuePolicy())


@st.composite
def batcher_settings(draw: st.DrawFn) -> BatcherSettings:
    levels = draw(st.sampled_from([0, 0, 1, 2, 3]))
    limit = draw(st.sampled_from([0, 1, 2, 4, 6, 8, 16]))
    sizes = st.lists(st.integers(1, max(1, limit)), max_size=3, unique=True)
    return BatcherSettings(
        max_batch_size=limit,
        preferred_batch_sizes=tuple(draw(sizes)) if limit else (),
        max_queue_delay_microseconds=draw(st.sampled_from([0, 10, 50, 200])),
        priority_levels=levels,
        default_priority_level=draw(st.integers(1, levels)) if levels else 0,
        default_queue_policy=draw(st.one_of(no_policy, policies)),
        priority_queue_policy=draw(st.dictionaries(st.integers(1, 4), policies, max_size=2)),
        batching=draw(st.sampled_from([True] * 9 + [False])),
        instances=draw(st.integers(1, 3)),
    )


usually_0 = st.sampled_from([0] * 6 + [1])
offers = st.tuples(
    st.just("offer"),
    st.sampled_from([1, 1, 1, 1, 2, 3, 5, 20]),
    st.integers(0, 4),
    st.sampled_from([0, 0, 5, 50, 500]),
    usually_0,
    usually_0,
)
steps = st.one_of(
    offers,
    offers,
    offers,
    st.tuples(st.just("acquire")),
    st.tuples(st.just("acquire")),
    st.tuples(st.just("advance"), st.sampled_from([1, 999, 1_000, 5_000, 10_000, 20_000, 20_001, 50_000, 100_000])),
    st.tuples(st.just("next")),
    st.tuples(st.just("expire")),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("complete")),
)
rare = st.one_of(st.tuples(st.just("reconfigure"), batcher_settings()), st.tuples(st.just("drain")))
histories = st.lists(st.one_of(*[steps] * 12, rare), min_size=5, max_size=70)


class History:
    """Plays one history on the batcher and on the oracle and compares what they do."""

    def __init__(self, given_settings: BatcherSettings) -> None:
        self.now = 1_000_000
        self.fast = DynamicBatcher(given_settings, first_batch_seq=100)
        self.slow = Oracle(given_settings)
        self.offered = 0
        self.ends: dict[int, str] = {}
        self.seqs: list[int] = []
        self.left: list[Waiting] = []
        self.running: list[Any] = []
        self.all: dict[int, Waiting] = {}

    def end(self, id: int, how: str) -> None:
        assert id in self.all
        assert id not in self.ends, f"{id} ended as {self.ends[id]} and again as {how}"
        self.ends[id] = how

    def offer(self, rows: int, priority: int, timeout: int, shape: int, inputs: int) -> None:
        id = self.offered
        self.offered += 1
        waiting = Waiting(id, rows, priority, timeout, shape, inputs, self.now, id)
        self.all[id] = waiting
        item = Item(id, rows, priority, timeout=timeout, shape_key=shape, input_set=inputs)
        answer = self.fast.offer(item, self.now)
        assert isinstance(answer, Accepted) == self.slow.offer(waiting, self.now)
        if not isinstance(answer, Accepted):
            assert (answer.id, answer.kind, answer.message) == (id, "queue_full", "Exceeds maximum queue size")
            self.end(id, "refused")

    def acquire(self) -> bool:
        batch = self.fast.acquire(3, self.now)
        expected = self.slow.acquire(self.now)
        assert (([item.id for item in batch.items], batch.reason) if batch else None) == expected
        if batch is None:
            return False
        self.running.append(batch)
        self.seqs.append(batch.seq)
        assert (batch.instance, batch.acquired) == (3, self.now)
        assert batch.rows == sum(item.rows for item in batch.items)
        settings = self.slow.s
        assert len(batch.items) == 1 or batch.rows <= max(1, settings.max_batch_size)
        assert len({(self.all[item.id].shape, self.all[item.id].inputs) for item in batch.items}) == 1
        for item in batch.items:
            self.end(item.id, "batch")
            assert item.enqueued == self.all[item.id].since
        self.check_reason(batch.reason, batch.items, batch.rows)
        return True

    def check_reason(self, reason: str, items: Sequence[Item], rows: int) -> None:
        """The reason names something that is so; nothing leaves early for no reason."""
        settings = self.slow.s
        age = self.now - min(item.enqueued for item in items)
        delay = settings.max_queue_delay_microseconds * 1000
        sizes = settings.effective_preferred_sizes
        if reason == "delay":
            assert delay
            assert age >= delay
        elif reason == "no_delay":
            assert not delay
        elif reason == "drain":
            assert self.slow.draining
        elif reason == "preferred":
            assert rows in sizes
        elif reason == "direct":
            assert not settings.batching
            assert len(items) == 1
        else:
            assert reason in {"full", "shapes", "inputs"}
            room = self.slow.in_order(self.now)
            if reason == "full" and rows < max(sizes, default=0):
                assert room, "full, but something more would have fit"
                assert rows + room[0].rows > max(sizes)
            elif reason != "full":
                assert room

    def expire(self) -> None:
        expired = self.fast.expire(self.now)
        self.slow.tick(self.now)
        assert sorted(e.id for e in expired) == sorted(self.slow.rejected)
        self.slow.rejected.clear()
        for e in expired:
            assert (e.kind, e.message) == ("timeout", "Request timeout expired")
            self.end(e.id, "timeout")
        for w in self.slow.waiting:
            assert not (self.slow.expired(w, self.now) and self.slow.action(w) == "REJECT")

    def cancel(self, pick: int) -> None:
        id = pick % max(1, self.offered)  # negative: one of the latest
        self.slow.tick(self.now)
        victim = [w for w in self.slow.waiting if w.id == id]
        assert self.fast.cancel(id, self.now) == bool(victim)
        if victim:
            self.slow.waiting.remove(victim[0])
            self.end(id, "cancelled")

    def next(self) -> None:
        """After acquire gave None, next_deadline is exact: nothing happens before it, something does then."""
        while self.acquire():
            pass
        self.expire()
        assert self.fast.acquire(3, self.now) is None
        assert self.fast.next_deadline() == self.slow.next_change(self.now)

    def complete(self) -> None:
        if self.running:
            self.fast.complete(self.running.pop(), self.now)

    def reconfigure(self, new: BatcherSettings) -> None:
        self.fast.reconfigure(new, self.now)
        self.slow.tick(self.now)
        self.slow.s = new
        self.slow.tick(self.now)
        assert self.fast.settings == new

    def drain(self) -> None:
        self.fast.drain(self.now)
        self.slow.draining = True

    def advance(self, by: int) -> None:
        self.now += by

    def play(self, history: Sequence[tuple[Any, ...]]) -> None:
        for name, *arguments in history:
            getattr(self, name)(*arguments)
            waiting = self.fast.statistics(self.now)
            if name not in {"advance"}:
                assert waiting.waiting_requests == self.fast.waiting
        self.finish()

    def finish(self) -> None:
        self.drain()
        while self.acquire():
            pass
        self.expire()
        assert self.fast.waiting == 0
        assert self.fast.statistics(self.now).waiting_rows == 0
        assert self.fast.next_deadline() is None
        assert set(self.ends) == set(range(self.offered)), "a request was lost"
        assert self.seqs == list(range(100, 100 + len(self.seqs)))


def play(given_settings: BatcherSettings, history: Sequence[tuple[Any, ...]]) -> None:
    History(given_settings).play(history)


# ---- histories of one character each: dense where uniform ones are thin


def some_policy(chance: random.Random) -> QueuePolicy:
    if chance.random() < 0.4:
        return QueuePolicy()
    return QueuePolicy(
        timeout_action=chance.choice(["REJECT", "DELAY"]),
        default_timeout_microseconds=chance.choice([0, 20, 60, 100, 400]),
        allow_timeout_override=chance.random() < 0.6,
        max_queue_size=chance.choice([0, 0, 0, 2, 5, 9]),
    )


def some_settings(chance: random.Random) -> BatcherSettings:
    levels = chance.choice([0, 0, 2, 3])
    limit = chance.choice([0, 1, 4, 6, 8, 8, 12, 16])
    sizes = chance.sample(range(1, limit + 1), min(limit, chance.choice([0, 0, 1, 2, 3])))
    plain = chance.random() < 0.4
    return BatcherSettings(
        max_batch_size=limit,
        preferred_batch_sizes=tuple(sizes),
        max_queue_delay_microseconds=chance.choice([0, 10, 50, 200, 1000]),
        priority_levels=levels,
        default_priority_level=chance.randint(1, levels) if levels else 0,
        default_queue_policy=QueuePolicy() if plain else some_policy(chance),
        priority_queue_policy={}
        if plain
        else {level: some_policy(chance) for level in (1, 2) if chance.random() < 0.5},
        batching=chance.random() < 0.95,
        instances=chance.randint(1, 3),
    )


def some_history(chance: random.Random, length: int) -> list[tuple[Any, ...]]:
    weights = [chance.choice([2, 5, 20]), chance.choice([0, 1, 4]), 3, 2, 1, 1, 1, chance.choice([0, 0.3])]
    names = ["offer", "acquire", "advance", "next", "expire", "cancel", "complete", "reconfigure"]
    row_sizes = chance.choice([[1], [1, 1, 1, 2], [1, 2, 3, 4], [1, 1, 5, 9, 20]])
    shapes = chance.choice([[0], [0], [0] * 8 + [1], [0, 1]])
    inputs = chance.choice([[0], [0], [0] * 8 + [1]])
    steps: list[tuple[Any, ...]] = []
    for name in chance.choices(names, weights, k=length):
        if name == "offer":
            timeout = chance.choice([0, 0, 5, 50, 500])
            details = (chance.choice(row_sizes), chance.randint(0, 4), timeout, chance.choice(shapes))
            steps.append((name, *details, chance.choice(inputs)))
        elif name == "advance":
            steps.append((name, chance.choice([1, 999, 1_000, 5_000, 10_000, 20_001, 50_000, 100_000])))
        elif name == "cancel":
            steps.append((name, -chance.randint(1, 12)))
        elif name == "reconfigure":
            steps.append((name, some_settings(chance)))
        else:
            steps.append((name,))
    if chance.random() < 0.1:
        steps.insert(chance.randrange(length), ("drain",))
    return steps


def play_seed(seed: int) -> None:
    chance = random.Random(seed)
    try:
        play(some_settings(chance), some_history(chance, chance.choice([30, 80, 150])))
    except AssertionError as error:
        raise AssertionError(f"history of seed {seed}: {error}") from error


def test_histories_of_many_characters() -> None:
    for seed in range(600):
        play_seed(seed)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW, derandomize=True)
@given(batcher_settings(), histories)
def test_random_histories_agree_with_the_text_and_lose_nothing(
    given_settings: BatcherSettings, history: list[tuple[Any, ...]]
) -> None:
    play(given_settings, history)


@pytest.mark.full
@pytest.mark.soak
@settings(max_examples=HISTORIES, deadline=None, suppress_health_check=SLOW)
@given(batcher_settings(), histories)
def test_a_thousand_random_histories(given_settings: BatcherSettings, history: list[tuple[Any, ...]]) -> None:
    play(given_settings, history)


@pytest.mark.full
@pytest.mark.soak
def test_a_thousand_histories_of_many_characters() -> None:
    for seed in range(10_000, 10_000 + HISTORIES):
        play_seed(seed)


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW, derandomize=True)
@given(
    batcher_settings(), st.lists(st.one_of(offers, st.tuples(st.just("advance"), st.integers(0, 30_000))), max_size=60)
)
def test_a_driver_that_only_follows_next_deadline_serves_everything_in_time(
    given_settings: BatcherSettings, history: list[tuple[Any, ...]]
) -> None:
    """One idle instance, asked after every event and at every deadline: no rejection under REJECT comes later than 1 ns
    after its deadline, no request waits longer than the delay, and with nothing new the driver comes to rest."""
    fast = DynamicBatcher(given_settings)
    now, offered, ended = 0, 0, 0
    delay = given_settings.max_queue_delay_microseconds * 1000

    def turn() -> None:
        nonlocal ended
        for answer in fast.expire(now):
            assert answer.kind == "timeout"
            ended += 1
        while batch := fast.acquire(0, now):
            fast.complete(batch, now)
            ended += len(batch.items)
            assert all(now - item.enqueued <= delay for item in batch.items)

    def run_until(end: int | None) -> None:
        nonlocal now
        for _ in range(1000):
            deadline = fast.next_deadline()
            if deadline is None or (end is not None and deadline > end):
                return
            now = max(now, deadline)
            turn()
        pytest.fail("the driver spins")

    for name, *arguments in history:
        if name == "offer":
            rows, priority, timeout, shape, inputs = arguments
            item = Item(offered, rows, priority, timeout=timeout, shape_key=shape, input_set=inputs)
            ended += not isinstance(fast.offer(item, now), Accepted)
            offered += 1
            turn()
        else:
            end = now + arguments[0]
            run_until(end)
            now = end
    run_until(None)
    assert (ended, fast.waiting) == (offered, 0)


def serve(chance: random.Random) -> None:
    """A driver like the engine's in virtual time: several instances with service times, one timer, edits on the way."""
    given_settings = some_settings(chance)
    fast = DynamicBatcher(given_settings)
    idle = list(range(given_settings.instances))
    busy: list[tuple[int, int, Any]] = []
    events = sorted((chance.randrange(0, 2_000_000), id) for id in range(chance.choice([20, 60])))
    service = chance.choice([1_000, 50_000, 300_000])
    now, ended, cancelled, wakes, offered = 0, 0, 0, 0, len(events)
    row_sizes = chance.choice([[1], [1, 2, 3]])

    def dispatch() -> None:
        nonlocal ended
        for answer in fast.expire(now):
            assert answer.kind == "timeout"
            ended += 1
        while idle:
            batch = fast.acquire(idle[0], now)
            if batch is None:
                break
            ended += len(batch.items)
            heapq.heappush(busy, (now + chance.randint(1, service), idle.pop(0), batch))
        if idle and fast.waiting:
            limit = fast.settings.max_queue_delay_microseconds * 1000
            assert fast.statistics(now).oldest_age_ns < limit, "an instance is idle and the delay is over"

    while events or busy or fast.waiting:
        deadline = fast.next_deadline()
        times = [deadline] if deadline is not None else []
        times += [events[0][0]] if events else []
        times += [busy[0][0]] if busy else []
        assert times, f"{fast.waiting} wait and nothing will ever happen"
        wakes += 1
        assert wakes < 2_000, "the driver spins"
        now = max(now, min(times))
        while busy and busy[0][0] <= now:
            _, instance, batch = heapq.heappop(busy)
            fast.complete(batch, now)
            idle.append(instance)
        while events and events[0][0] <= now:
            _, id = events.pop(0)
            item = Item(id, chance.choice(row_sizes), chance.randint(0, 3), timeout=chance.choice([0, 10, 200]))
            ended += not isinstance(fast.offer(item, now), Accepted)
            if chance.random() < 0.1:
                cancelled += fast.cancel(id - 1, now)
            if chance.random() < 0.05:
                new = some_settings(chance)
                fast.reconfigure(dataclasses.replace(new, instances=given_settings.instances), now)
        dispatch()
    assert ended + cancelled == offered


def test_a_driver_with_several_busy_instances_never_hangs_spins_or_leaves_one_idle_too_long() -> None:
    for seed in range(300):
        try:
            serve(random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
