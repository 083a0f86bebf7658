"""Batchers of several models under one rate limiter, driven in virtual time as an engine drives them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest
from histories import HISTORIES

from workbench.scheduling import (
    Batch,
    BatcherSettings,
    DynamicBatcher,
    Item,
    RateLimiter,
    ResourceNeed,
    Scheduler,
    SequenceSettings,
    sequence_scheduler,
)

Key = tuple[str, int]


@dataclass
class Driver:
    """Idle instances with work are staged; what is granted asks its scheduler, and gives its turn back if there is no
    batch to form yet. One timer for all."""

    chance: random.Random
    limiter: RateLimiter = field(default_factory=RateLimiter)
    schedulers: dict[str, Scheduler] = field(default_factory=dict)
    idle: set[Key] = field(default_factory=set)
    busy: list[tuple[int, int, Key, Batch]] = field(default_factory=list)
    now: int = 0
    ended: int = 0
    started: list[str] = field(default_factory=list)

    def add(self, name: str, scheduler: Scheduler, instances: int, needs: list[ResourceNeed], priority: int) -> None:
        self.schedulers[name] = scheduler
        for number in range(instances):
            scheduler.add_instance(number, 0)
            self.limiter.register((name, number), needs, priority, name)
            self.idle.add((name, number))

    def turn(self) -> None:
        for scheduler in self.schedulers.values():
            self.ended += len(scheduler.expire(self.now))
        for key in sorted(self.idle):
            if self.schedulers[key[0]].statistics(self.now).waiting_requests:
                self.carry_out(self.limiter.stage(key, self.now))
            elif not self.limiter.is_holding(key):
                self.carry_out(self.limiter.unstage(key))

    def carry_out(self, granted: list[Hashable]) -> None:
        while granted:
            key = granted.pop(0)
            assert isinstance(key, tuple)
            batch = self.schedulers[key[0]].acquire(key[1], self.now)
            if batch is None:
                granted += self.limiter.release(key, executed=False)
                continue
            self.started.append(key[0])
            self.idle.remove(key)
            heapq.heappush(self.busy, (self.now + self.chance.randint(1, 200_000), batch.seq * 10 + key[1], key, batch))

    def finish(self) -> None:
        while self.busy and self.busy[0][0] <= self.now:
            _, _, key, batch = heapq.heappop(self.busy)
            self.schedulers[key[0]].complete(batch, self.now)
            self.ended += len(batch.items)
            self.idle.add(key)
            self.carry_out(self.limiter.release(key))

    def next_time(self) -> int | None:
        times = [time for each in self.schedulers.values() if (time := each.next_deadline()) is not None]
        times += [self.busy[0][0]] if self.busy else []
        return min(times, default=None)


def some_models(driver: Driver, chance: random.Random) -> list[str]:
    names = []
    for number in range(chance.randint(1, 4)):
        name = f"m{number}"
        needs = [ResourceNeed(each, chance.randint(1, 3)) for each in chance.sample(["R", "Q"], chance.randint(0, 2))]
        if chance.random() < 0.7:
            delay = chance.choice([0, 50, 500])
            scheduler: Scheduler = DynamicBatcher(
                BatcherSettings(max_batch_size=4, max_queue_delay_microseconds=delay, instances=2)
            )
        else:
            strategy = chance.choice(["direct", "oldest"])
            scheduler = sequence_scheduler(SequenceSettings(max_batch_size=2, strategy=strategy))  # type: ignore[arg-type]
        driver.add(name, scheduler, chance.randint(1, 2), needs, chance.randint(0, 2))
        names.append(name)
    return names


def play(seed: int) -> None:
    chance = random.Random(seed)
    driver = Driver(chance)
    names = some_models(driver, chance)
    arrivals = sorted((chance.randrange(2_000_000), id) for id in range(60))
    offered = len(arrivals)
    for _ in range(10_000):
        coming = [arrivals[0][0]] if arrivals else []
        times = coming + [time for time in [driver.next_time()] if time is not None]
        if not times:
            break
        driver.now = max(driver.now, min(times))
        driver.finish()
        while arrivals and arrivals[0][0] <= driver.now:
            _, id = arrivals.pop(0)
            item = Item(id, sequence_id=id + 1, sequence_start=True, sequence_end=True)
            driver.schedulers[chance.choice(names)].offer(item, driver.now)
        driver.turn()
    assert driver.ended == offered, f"seed {seed}: {offered - driver.ended} requests are lost or wait for ever"
    assert not driver.busy


def test_models_under_one_rate_limiter_serve_everything_and_come_to_rest() -> None:
    for seed in range(150):
        play(seed)


@pytest.mark.full
@pytest.mark.soak
def test_a_thousand_random_histories_of_several_models() -> None:
    for seed in range(10_000, 10_000 + HISTORIES):
        play(seed)


def test_f24_a_model_that_needs_no_resource_is_served_while_others_wait_for_one() -> None:
    driver = Driver(random.Random(0))
    for name, needs in (("B", [ResourceNeed("R", 1)]), ("C", [ResourceNeed("R", 1)]), ("A", [])):
        driver.add(name, DynamicBatcher(BatcherSettings(max_batch_size=1)), 1, needs, 1)
    for id, name in enumerate("BC"):
        driver.schedulers[name].offer(Item(id), 0)
        driver.turn()
    assert driver.started == ["B"]
    driver.schedulers["A"].offer(Item(9), 0)
    driver.turn()
    assert driver.started == ["B", "A"]
