"""What the dynamic batcher says ahead of time is what an instance gets, whatever comes behind it."""

from __future__ import annotations

import random

import pytest

from workbench.scheduling import Batch, BatcherSettings, DynamicBatcher, Item, QueuePolicy


def some_settings(chance: random.Random) -> BatcherSettings:
    levels = chance.choice([0, 0, 2, 3])
    largest = chance.choice([1, 2, 4, 8])
    return BatcherSettings(
        max_batch_size=largest,
        preferred_batch_sizes=tuple(sorted(chance.sample(range(1, largest + 1), chance.randint(0, min(2, largest))))),
        max_queue_delay_microseconds=chance.choice([0, 0, 5, 50]),
        priority_levels=levels,
        default_priority_level=chance.randint(1, levels) if levels else 0,
        default_queue_policy=QueuePolicy(
            chance.choice(["REJECT", "DELAY"]), chance.choice([0, 0, 20, 100]), allow_timeout_override=True
        ),
        batching=chance.random() < 0.9,
    )


def some_item(chance: random.Random, id: int, largest: int) -> Item:
    return Item(
        id,
        chance.choice([1, 1, 1, min(2, max(1, largest)), max(1, largest)]),
        priority=chance.randrange(4),
        timeout=chance.choice([0, 0, 10]),
        shape_key=chance.choice([0, 0, 0, 0, 1]),
    )


def played(seed: int) -> tuple[DynamicBatcher, int, int, random.Random]:
    """A batcher with some requests in its queue, the time, and the next id."""
    chance = random.Random(seed)
    batcher = DynamicBatcher(some_settings(chance))
    now = 1_000_000
    count = chance.randint(1, 20)
    for id in range(count):
        batcher.offer(some_item(chance, id, batcher.settings.max_batch_size), now)
        now += chance.choice([0, 0, 1000, 30_000])
    batcher.expire(now)
    return batcher, now, count, chance


def test_it_is_what_an_instance_gets_until_then() -> None:
    foreseen = 0
    for seed in range(3000):
        batcher, now, next_id, chance = played(seed)
        cut = batcher.foresee(now)
        if cut is None:
            continue
        foreseen += 1
        for id in range(next_id, next_id + chance.randint(0, 6)):
            item = some_item(chance, id, batcher.settings.max_batch_size)
            now = min(now + chance.choice([0, 1000, 20_000]), cut.until)
            if batcher.comes_last(item.priority):
                batcher.offer(item, now)
        asked = chance.choice([now, min(cut.until, now + 10**9)])
        batch = batcher.acquire(0, asked)
        assert batch is not None, seed
        got = [item.id for item in batch.items], batch.rows, batch.reason
        assert got == ([item.id for item in cut.items], cut.rows, cut.reason), seed
    assert foreseen > 500, "hardly ever is anything foreseen: this proves nothing"


def test_it_waits_until_it_leaves_and_is_gone_then() -> None:
    for seed in range(1000):
        batcher, now, _, _ = played(seed)
        before = batcher.statistics(now)
        cut = batcher.foresee(now)
        assert batcher.statistics(now) == before
        if cut is None:
            continue
        batcher.leave(Batch(-1, 0, cut.items, cut.rows, cut.reason, now), now)
        after = batcher.statistics(now)
        assert after.waiting_requests == before.waiting_requests - len(cut.items)
        assert after.waiting_rows == before.waiting_rows - cut.rows
        assert not any(batcher.cancel(item.id, now) for item in cut.items)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (BatcherSettings(max_batch_size=4), [1, 1, 1]),  # one more may join
        (BatcherSettings(max_batch_size=8, preferred_batch_sizes=(2, 4)), [1, 1, 1]),  # 4 may be reached
        (BatcherSettings(max_batch_size=1, hold_until_queued=3), [1, 1]),  # the test hook holds it
    ],
)
def test_what_an_arrival_may_change_is_not_foreseen(settings: BatcherSettings, rows: list[int]) -> None:
    batcher = DynamicBatcher(settings)
    for id, each in enumerate(rows):
        batcher.offer(Item(id, each), 0)
    assert batcher.foresee(0) is None
