"""Random histories through the running engine, read back from its records.

No request is lost, answered twice, out of order within a priority, batched above the maximum, or kept past its timeout.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from asking import Asked, Asker
from gate_backend import CONFIG, Gate
from histories import HISTORIES
from onnx_models import add_model, request

from workbench.config import Edit
from workbench.engine import InferenceEngine

ROWS = ([1], [1, 1, 1, 2], [1, 2, 3, 4])


def some_policy(chance: random.Random) -> dict[str, Any]:
    return {
        "timeout_action": chance.choice(["REJECT", "DELAY"]),
        "default_timeout_microseconds": chance.choice([0, 300, 2000, 20000]),
        "allow_timeout_override": chance.random() < 0.5,
        "max_queue_size": chance.choice([0, 0, 3, 10]),
    }


def some_batching(chance: random.Random, limit: int) -> dict[str, Any]:
    levels = chance.choice([0, 0, 2, 3])
    made: dict[str, Any] = {
        "preferred_batch_size": sorted(chance.sample(range(1, limit + 1), min(limit, chance.choice([0, 0, 1, 2])))),
        "max_queue_delay_microseconds": chance.choice([0, 0, 100, 1000]),
        "priority_levels": levels,
        "default_priority_level": chance.randint(1, levels) if levels else 0,
    }
    if chance.random() < 0.6:
        made["default_queue_policy"] = some_policy(chance)
    if levels and chance.random() < 0.4:
        made["priority_queue_policy"] = {"1": some_policy(chance)}
    return made


class History:
    """One configuration, some bursts of requests, and what became of them."""

    def __init__(self, engine: InferenceEngine, gate: Gate, seed: int, cursor: int) -> None:
        self.engine, self.gate, self.chance = engine, gate, random.Random(seed)
        self.cursor = cursor
        self.limit = self.chance.choice([1, 2, 4, 8])
        self.batching = some_batching(self.chance, self.limit)
        self.cancelled: list[Asked] = []
        self.timeouts: list[int] = []

    def play(self) -> None:
        chance, engine = self.chance, self.engine
        edits = [
            Edit("max_batch_size", "set", self.limit),
            Edit("dynamic_batching", "set", self.batching),
            Edit("instance_group[0].count", "set", chance.choice([1, 1, 2])),
        ]
        epoch = engine.configure("gate", edits).epoch
        asker, asked = Asker(engine), []
        sizes = chance.choice(ROWS)
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.6:
                self.gate.open.clear()
            sent = self._requests(chance.randint(1, 25), sizes)
            asked += asker.send(sent)
            self.timeouts += [each.timeout for each in sent]
            for each in asked:
                if each.ticket is not None and chance.random() < 0.05:
                    self.cancelled.append(each)
                    engine.loop.call_soon_threadsafe(each.ticket.cancel)
            self.gate.open.set()
        for each in asked:
            assert each.ended.wait(20), "a request was never answered"
        self.check(asked, epoch)

    def _requests(self, count: int, sizes: list[int]) -> list[Any]:
        made = []
        for index in range(count):
            rows = min(self.limit, self.chance.choice(sizes))
            made.append(request("gate", rows=rows, id=str(index), priority=self.chance.randrange(4)))
            made[-1].timeout = self.chance.choice([0, 0, 200, 5000])
        return made

    def check(self, asked: list[Asked], epoch: int) -> None:
        accepted = {each.ticket.id: each for each in asked if each.ticket is not None}
        own = {each.ticket.id: t for each, t in zip(asked, self.timeouts, strict=True) if each.ticket is not None}
        for each in asked:
            assert len(each.responses) == (each.refused is None), "answered twice, or not at all"
            if each.refused is not None:
                assert "Exceeds maximum queue size" in each.refused.message
        read = self.engine.records.read(self.cursor)
        self.cursor = read.last_seq
        rows, batches = pd.DataFrame(read.requests), pd.DataFrame(read.batches)
        assert sorted(rows["seq"]) == sorted(accepted), "a record is missing, or there are two"
        assert set(rows["epoch"]) <= {epoch}
        assert (batches["rows"] <= self.limit).all()
        ran = rows[rows["batch_seq"] >= 0].merge(batches[["batch_seq", "acquired"]], on="batch_seq", validate="m:1")
        assert sorted(ran["seq"]) == sorted(rows[rows["batch_seq"] >= 0]["seq"]), "a batch has no record"
        sums = ran.groupby("batch_seq")["rows"].sum().to_dict()
        assert sums == dict(zip(batches["batch_seq"], batches["rows"], strict=True))
        self.check_order(ran, own)
        for each in rows.itertuples():
            error = accepted[each.seq].error
            if each.batch_seq < 0:  # it never ran: its timeout, or a cancellation
                assert error is not None
                expired = error.message == "Request timeout expired"
                assert expired or accepted[each.seq] in self.cancelled
                if expired:
                    timeout, action = self.timeout(each.priority, own[each.seq])
                    assert action == "REJECT"
                    assert each.end - each.queue_start > timeout > 0

    def check_order(self, ran: pd.DataFrame, own: dict[int, int]) -> None:
        """By level first come, first served; what overstayed under DELAY follows, what did under REJECT is not here."""
        last: dict[int, int] = {}
        for each in ran.sort_values("seq").itertuples():
            timeout, action = self.timeout(each.priority, own[each.seq])
            if timeout and each.acquired - each.queue_start > timeout:
                assert action == "DELAY", "kept past its timeout"
                continue
            level = self.level(each.priority)
            assert each.batch_seq >= last.get(level, -1), "out of order within a priority"
            last[level] = each.batch_seq

    def level(self, priority: int) -> int:
        levels = self.batching["priority_levels"]
        if not levels:
            return 0
        return priority if 1 <= priority <= levels else int(self.batching["default_priority_level"])

    def timeout(self, priority: int, own: int) -> tuple[int, str]:
        """In nanoseconds, and what happens then: reference section 2.4, 2.5."""
        policies = self.batching.get("priority_queue_policy", {})
        policy = policies.get(str(self.level(priority)), self.batching.get("default_queue_policy", {}))
        timeout = policy.get("default_timeout_microseconds", 0)
        if policy.get("allow_timeout_override") and 0 < own < timeout:
            timeout = own
        return timeout * 1000, policy.get("timeout_action", "REJECT")


def play(make_engine: Any, tmp_path: Path, gate: Gate, seeds: range) -> None:
    add_model(tmp_path, "gate", config=CONFIG)
    gate.open.set()
    engine = make_engine(tmp_path)
    cursor = engine.records.read().last_seq
    for seed in seeds:
        history = History(engine, gate, seed, cursor)
        try:
            history.play()
        except AssertionError as error:
            raise AssertionError(f"history of seed {seed}: {error}") from error
        cursor = history.cursor
    assert engine.snapshot().version("gate").pending == engine.snapshot().version("gate").running == 0


@pytest.mark.rule("1.3", "2.2", "2.4", "2.5", "2.6")
def test_histories_through_the_engine(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    play(make_engine, tmp_path, gate, range(60))


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_histories_through_the_engine(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    play(make_engine, tmp_path, gate, range(10_000, 10_000 + HISTORIES))
