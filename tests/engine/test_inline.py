"""Requests of small models run on the thread that asks, where nobody can tell but by the time and by the record."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG, Gate
from onnx_models import add_model, request, slow

from workbench.config import Edit
from workbench.engine import InferenceEngine, inline
from workbench.errors import NotFound, NotReady, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

ANY_THREAD = CONFIG + 'parameters { key: "any_thread" value { string_value: "1" } }\n'
DELAY = "dynamic_batching.max_queue_delay_microseconds"
RACES = int(os.environ.get("WORKBENCH_RACES", "8"))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine under load a small model may take its time, and is small all the same."""
    monkeypatch.setattr(inline, "LIMIT_NS", 60_000_000_000)


def gated(make_engine: Any, root: Path, gate: Gate, config: str = ANY_THREAD, **options: Any) -> InferenceEngine:
    """An engine over ``gate`` that has answered once the long way, so that it may answer on the calling thread."""
    add_model(root, "gate", config=config)
    gate.open.set()
    engine: InferenceEngine = make_engine(root, **options)
    for _ in range(2):
        engine.infer(ask(), 10)
    gate.threads.clear()
    gate.batches.clear()
    while gate.started.acquire(blocking=False):
        pass
    return engine


def ask(do: str = "", **fields: Any) -> InferenceRequest:
    made = request("gate", **fields)
    made.parameters = {"do": do} if do else {}
    return made


def reasons(engine: InferenceEngine, after: int = -1) -> list[str]:
    return list(engine.records.read(after).batches["reason"])


def in_thread(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_small_model_runs_where_it_is_asked_and_the_record_says_so(
    make_engine: Any, tmp_path: Path, gate: Gate
) -> None:
    engine = gated(make_engine, tmp_path, gate)
    before = engine.statistics("gate")["model_stats"][0]
    cursor = engine.records.last_seq
    response = engine.infer(ask(rows=3, id="mine"), 10)
    assert gate.threads == [threading.get_ident()]
    assert (response.id, response.model_name, response.model_version) == ("mine", "gate", 1)
    assert response.as_numpy("y").shape == (3, 4)
    requests, batches = engine.records.read(cursor).to_frames()
    (row,), (batch,) = requests.to_dict("records"), batches.to_dict("records")
    assert (batch["reason"], batch["rows"], batch["requests"]) == ("inline", 3, 1)
    assert row["batch_seq"] == batch["batch_seq"]
    assert (row["status"], row["request_id"], row["rows"], row["instance"]) == ("ok", "mine", 3, batch["instance"])
    assert row["arrival"] == row["queue_start"] <= row["compute_start"] <= row["compute_end"] <= row["end"]
    after = engine.statistics("gate")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 3
    assert after["execution_count"] == before["execution_count"] + 1
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert engine.captured.get(row["seq"]).inputs[0].data.shape == (3, 4)


def test_the_first_request_goes_the_long_way(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    add_model(tmp_path, "gate", config=ANY_THREAD)
    gate.open.set()
    engine = make_engine(tmp_path)
    for _ in range(3):
        engine.infer(ask(), 10)
    assert reasons(engine) == ["no_delay", "no_delay", "inline"]


NOT_INLINE: Mapping[str, tuple[str, dict[str, Any]]] = {
    "switched off": (ANY_THREAD, {"inline": False}),
    "bound to its thread": (CONFIG, {}),
    "decoupled": (ANY_THREAD + "model_transaction_policy { decoupled: true }\n", {}),
    "ordered": (ANY_THREAD.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }"), {}),
    "rate limiter": (ANY_THREAD, {"rate_limit": "execution_count"}),
    "pinned": (
        ANY_THREAD.replace("kind: KIND_CPU", 'kind: KIND_CPU host_policy: "mine"'),
        {"host_policies": {"mine": {"cpu-cores": "0-0"}}},
    ),
    "held for more": (
        ANY_THREAD.replace("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 300 }"),
        {},
    ),
    "own process": (ANY_THREAD + 'parameters { key: "loop" value { string_value: "1" } }\n', {}),
}


@pytest.mark.parametrize("why", NOT_INLINE)
def test_what_goes_through_the_scheduler(why: str, make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    config, options = NOT_INLINE[why]
    engine = gated(make_engine, tmp_path, gate, config, **options)
    for _ in range(2):
        engine.infer(ask(), 10)
    assert "inline" not in reasons(engine)
    assert threading.get_ident() not in gate.threads


def test_a_request_that_no_delay_would_hold_runs_at_once(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    batching = "dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 300 }"
    engine = gated(make_engine, tmp_path, gate, ANY_THREAD.replace("dynamic_batching { }", batching))
    cursor = engine.records.last_seq
    for rows in (1, 2, 3, 4, 8):
        engine.infer(ask(rows=rows), 10)
    assert reasons(engine, cursor) == ["delay", "inline", "delay", "inline", "inline"]


def test_a_model_that_takes_its_time_goes_the_long_way_again(
    make_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "LIMIT_NS", 1_000_000)
    config = 'backend: "onnxruntime"\nmax_batch_size: 64\n'
    add_model(tmp_path, "slow", config=config, model=slow())
    engine = make_engine(tmp_path)
    tensor = Tensor.from_numpy("x", np.ones((64, 256), np.float32))
    for _ in range(4):
        engine.infer(InferenceRequest("slow", [tensor]), 10)
    assert len(reasons(engine)) == 4
    assert "inline" not in reasons(engine)


def test_nobody_is_overtaken(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    engine = gated(make_engine, tmp_path, gate)
    gate.open.clear()
    asker = Asker(engine)
    asker.send([ask(id="running")])
    assert gate.started.acquire(timeout=10)
    waiting = asker.send([ask(id="waiting")])
    late = in_thread(lambda: engine.infer(ask(id="late"), 10))
    wait_until(lambda: engine.snapshot().version("gate").pending == 2)
    gate.open.set()
    late.join(10)
    waiting[0].wait()
    assert gate.batches == [["running"], ["waiting", "late"]]
    assert threading.get_ident() not in gate.threads


def test_what_came_meanwhile_runs_when_a_request_on_a_thread_is_done(
    make_engine: Any, tmp_path: Path, gate: Gate
) -> None:
    engine = gated(make_engine, tmp_path, gate)
    gate.open.clear()
    here = in_thread(lambda: engine.infer(ask(id="here"), 10))
    assert gate.started.acquire(timeout=10)
    snapshot = engine.snapshot().version("gate")
    assert (snapshot.running, snapshot.pending, snapshot.instances[0].busy) == (1, 0, True)
    waiting = Asker(engine).send([ask(id="a"), ask(id="b")])
    snapshot = engine.snapshot().version("gate")
    assert (snapshot.running, snapshot.pending) == (1, 2)
    gate.open.set()
    for each in waiting:
        assert each.wait().error is None
    here.join(10)
    assert gate.batches == [["here"], ["a", "b"]]
    snapshot = engine.snapshot().version("gate")
    assert (snapshot.running, snapshot.instances[0].busy) == (0, False)


BAD: Mapping[str, Callable[[], InferenceRequest]] = {
    "error": lambda: ask("error", id="7"),
    "raise": lambda: ask("raise"),
    "nothing": lambda: ask("nothing"),
    "rows": lambda: ask(rows=9, id="7"),
    "unknown model": lambda: request("missing"),
    "unknown version": lambda: InferenceRequest("gate", request("gate").inputs, model_version=9),
    "no input": lambda: InferenceRequest("gate", []),
}


@pytest.mark.parametrize("what", BAD)
def test_errors_are_the_same(what: str, make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    told = []
    for allowed in (True, False):
        folder = tmp_path / str(allowed)
        folder.mkdir()
        engine = gated(make_engine, folder, gate, inline=allowed)
        cursor = engine.records.last_seq
        with pytest.raises(WorkbenchError) as raised:
            engine.infer(BAD[what](), 10)
        error = raised.value
        requests = engine.records.read(cursor).to_frames()[0]
        failures = engine.snapshot().version("gate").failures
        told.append(
            (type(error), error.message, error.where, list(requests["status"]), list(requests["error"]), failures)
        )
    assert told[0] == told[1]


def test_an_interrupt_ends_the_request_and_not_the_instance(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    engine = gated(make_engine, tmp_path, gate)
    cursor = engine.records.last_seq
    with pytest.raises(KeyboardInterrupt):
        engine.infer(ask("interrupt"), 10)
    assert list(engine.records.read(cursor).requests["status"]) == ["CANCELED"]
    assert engine.infer(ask(), 10).as_numpy("y").shape == (1, 4)
    assert reasons(engine, cursor) == ["inline", "inline"]
    assert engine.snapshot().version("gate").running == 0


def test_an_unload_waits_for_a_request_on_a_thread(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    engine = gated(make_engine, tmp_path, gate)
    gate.open.clear()
    answers: list[Any] = []
    here = in_thread(lambda: answers.append(engine.infer(ask(), 10)))
    assert gate.started.acquire(timeout=10)
    engine.unload("gate")
    with pytest.raises((NotFound, NotReady)):
        engine.infer(ask(), 10)
    assert gate.live == 1
    assert engine.repository_index()[0]["state"] == "UNLOADING"
    gate.open.set()
    here.join(10)
    assert answers[0].error is None
    wait_until(lambda: gate.live == 0)
    wait_until(lambda: engine.repository_index()[0]["state"] == "UNAVAILABLE")


def test_an_instance_that_is_taken_away_ends_after_the_request_on_a_thread(
    make_engine: Any, tmp_path: Path, gate: Gate
) -> None:
    engine = gated(make_engine, tmp_path, gate, ANY_THREAD.replace("count: 1", "count: 2"))
    gate.open.clear()
    here = [in_thread(lambda: engine.infer(ask(), 10)) for _ in range(2)]
    for _ in here:
        assert gate.started.acquire(timeout=10)
    engine.configure("gate", [Edit("instance_group[0].count", "set", 1)])
    assert gate.live == 2
    gate.open.set()
    for each in here:
        each.join(10)
    wait_until(lambda: gate.live == 1)
    assert engine.infer(ask(), 10).error is None
    engine.unload("gate")
    wait_until(lambda: gate.live == 0)


def test_a_stop_waits_for_a_request_on_a_thread(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    engine = gated(make_engine, tmp_path, gate)
    gate.open.clear()
    answers: list[Any] = []
    here = in_thread(lambda: answers.append(engine.infer(ask(), 10)))
    assert gate.started.acquire(timeout=10)
    stopping = in_thread(lambda: engine.stop(10))
    wait_until(lambda: engine.snapshot().stopping)
    assert gate.live == 1
    gate.open.set()
    here.join(10)
    stopping.join(10)
    assert answers[0].error is None
    assert gate.live == 0


def test_the_limit_of_rows_holds_from_the_edit_on(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    engine = gated(make_engine, tmp_path, gate)
    engine.infer(ask(rows=8), 10)
    epoch = engine.configure("gate", [Edit("max_batch_size", "set", 4)]).epoch
    with pytest.raises(WorkbenchError, match="batch-size must be <= 4"):
        engine.infer(ask(rows=8), 10)
    for _ in range(2):
        engine.infer(ask(rows=4), 10)
    rows = engine.records.read().to_frames()[0]
    assert list(rows["epoch"][-2:]) == [epoch, epoch]
    assert reasons(engine)[-1] == "inline"


class Caller:
    """A thread that asks until it is told to stop, and keeps what became of each request."""

    def __init__(self, engine: InferenceEngine, seed: int, stop: threading.Event) -> None:
        self.engine, self.chance, self.stop = engine, random.Random(seed), stop
        self.seed = seed
        self.answered: list[str] = []
        self.refused: list[str] = []
        self.wrong: list[str] = []
        self.thread = in_thread(self._main)

    def _main(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            made = ask(rows=self.chance.choice([1, 1, 1, 2, 4]), id=f"{self.seed}.{number}")
            try:
                response = self.engine.infer(made, 20)
            except (NotFound, NotReady):
                self.refused.append(made.id)
            except Exception as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
            else:
                self.answered.append(response.id)
                if response.id != made.id or response.as_numpy("y").shape != made.inputs[0].shape:
                    self.wrong.append(f"{made.id} was answered with {response.id}")


def disturb(engine: InferenceEngine, chance: random.Random) -> None:
    """One change of a model under load."""
    what = chance.randrange(5)
    if what == 0:
        engine.configure("gate", [Edit("max_batch_size", "set", chance.choice([4, 8]))])
    elif what == 1:
        engine.configure("gate", [Edit("instance_group[0].count", "set", chance.choice([1, 2, 3]))])
    elif what == 2:
        engine.configure("gate", [Edit(DELAY, "set", chance.choice([0, 0, 200]))])
    elif what == 3:
        key = 'parameters["reload"].string_value'
        engine.configure("gate", [Edit(key, "set", str(chance.random()))])
    else:
        engine.unload("gate")
        engine.load("gate")


def race(engine: InferenceEngine, gate: Gate, seed: int, changes: int) -> None:
    chance, stop = random.Random(seed), threading.Event()
    cursor = engine.records.last_seq
    callers = [Caller(engine, seed * 10 + index, stop) for index in range(3)]
    asker, asked = Asker(engine), []
    for _ in range(changes):
        asked += asker.send(ask(id="scheduled") for _ in range(chance.randrange(6)))
        disturb(engine, chance)
        stop.wait(chance.random() / 200)
    stop.set()
    for caller in callers:
        caller.thread.join(30)
        assert not caller.thread.is_alive(), "a caller hangs"
        assert not caller.wrong, caller.wrong[:3]
    for each in asked:
        assert each.ended.wait(20), "a scheduled request hangs"
        assert len(each.responses) == (each.refused is None)
    check_records(engine, cursor, callers, sum(each.refused is None for each in asked))
    wait_until(lambda: engine.snapshot().version("gate").running == 0)
    wait_until(lambda: gate.live == len(engine.snapshot().version("gate").instances))


def check_records(engine: InferenceEngine, cursor: int, callers: list[Caller], scheduled: int) -> None:
    """Every answer has one record, every batch its requests; an instance runs one batch at a time."""
    rows, batches = engine.records.read(cursor).to_frames()
    mine = rows[rows["request_id"] != "scheduled"]
    assert sorted(mine["request_id"]) == sorted(id for caller in callers for id in caller.answered)
    assert len(rows) - len(mine) == scheduled
    assert rows["seq"].is_unique
    assert batches["batch_seq"].is_unique
    ran = rows.merge(batches, on="batch_seq", validate="m:1", suffixes=("", "_of_batch"))
    assert len(ran) == len(rows)
    assert (ran["epoch"] == ran["epoch_of_batch"]).all()
    sums = ran.groupby("batch_seq")["rows"].sum()
    assert (sums.sort_index().to_numpy() == batches.sort_values("batch_seq")["rows"].to_numpy()).all()
    assert (batches["rows"] <= 8).all()
    alone = batches[batches["reason"] == "inline"]
    assert (alone["requests"] == 1).all()
    assert len(alone) > 0
    # generations of a model have batch numbers of their own, and instances of equal names
    spans = pd.DataFrame(
        {
            "place": ran["instance"] + "/" + (ran["batch_seq"] // 1_000_000_000).astype(str),
            "start": ran["compute_start"],
            "end": ran["compute_end"],
            "batch_seq": ran["batch_seq"],
        }
    ).drop_duplicates("batch_seq")
    for place, each in spans.sort_values("start").groupby("place"):
        assert (each["start"].to_numpy()[1:] >= each["end"].to_numpy()[:-1]).all(), f"two batches at once in {place}"


def test_callers_race_with_changes(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    engine = gated(make_engine, tmp_path, gate)
    for seed in range(3):
        race(engine, gate, seed, 15)


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_callers_race_with_many_changes(make_engine: Any, tmp_path: Path, gate: Gate) -> None:
    # a quick machine answers more in a race than the ring usually holds
    engine = gated(make_engine, tmp_path, gate, record_capacity=1 << 19)
    for seed in range(100, 100 + RACES):
        race(engine, gate, seed, 100)
