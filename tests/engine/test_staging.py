"""The batch that stands ready while another one runs is taken without the loop; what comes first still comes first."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asked, Asker, wait_until
from gate_backend import CONFIG, Gate
from onnx_models import CONFIG as ONNX
from onnx_models import add_model, request

from workbench.clock import monotonic_ns
from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import Cancelled
from workbench.protocol.tensors import InferenceRequest, Tensor

TWO = CONFIG.replace("max_batch_size: 8", "max_batch_size: 2")
LEVELS = "priority_levels: 3 default_priority_level: 2"
REJECT = "default_queue_policy { default_timeout_microseconds: 30000 }"
DELAY = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 30000 }"


class Scene:
    """An instance of batches of two that runs ``first``; ``a`` and ``b`` stand ready behind it, ``c`` waits."""

    root: Path

    def __init__(self, engine: InferenceEngine, gate: Gate, waiting: str = "abc", **fields: dict[str, Any]) -> None:
        self.engine, self.gate = engine, gate
        self.asker = Asker(engine)
        self.asked: dict[str, Asked] = {}
        self.send("first")
        assert gate.started.acquire(timeout=10)
        self.send(*waiting, **fields)
        self.settle()

    def request(self, id: str, **fields: Any) -> InferenceRequest:
        return request("gate", id=id, **fields)

    def send(self, *ids: str, **fields: dict[str, Any]) -> None:
        sent = self.asker.send([self.request(id, **fields.get(id, {})) for id in ids])
        self.asked.update(zip(ids, sent, strict=True))

    def settle(self) -> None:
        """Until the loop has come to all that it was given."""
        for _ in range(3):
            self.on_loop(lambda: None)

    def on_loop(self, function: Callable[[], object]) -> None:
        done = threading.Event()
        self.engine.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(20)

    @contextlib.contextmanager
    def loop_held(self) -> Iterator[None]:
        """Whatever happens meanwhile happens without the loop."""
        held, free = threading.Event(), threading.Event()
        self.engine.loop.call_soon_threadsafe(lambda: (held.set(), free.wait(20)))
        assert held.wait(10)
        try:
            yield
        finally:
            free.set()

    def open_and_see(self, *, started: bool) -> None:
        """The batch ends; another one does (or does not) begin. It is the thread alone that may begin it."""
        self.gate.open.set()
        assert self.gate.started.acquire(timeout=5 if started else 0.1) is started

    def end(self) -> list[list[str]]:
        """What was executed after the first batch, when all that was sent is answered."""
        self.gate.open.set()
        for each in self.asked.values():
            each.wait()
        return self.gate.batches[1:]


@pytest.fixture
def make_scene(tmp_path: Path, make_engine: Any, gate: Gate) -> Callable[..., Scene]:
    def make(batching: str = "", *, config: str = TWO, **fields: Any) -> Scene:
        add_model(tmp_path, "gate", config=config.replace("dynamic_batching { }", f"dynamic_batching {{ {batching} }}"))
        scene = Scene(make_engine(tmp_path), gate, **fields)
        scene.root = tmp_path
        return scene

    return make


def test_a_full_batch_begins_without_the_loop(make_scene: Any) -> None:
    scene = make_scene()
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["a", "b"], ["c"]]
    assert all(each.error is None for each in scene.asked.values())


def test_a_request_begins_without_the_loop_where_nothing_is_batched(make_scene: Any) -> None:
    scene = make_scene(config=TWO.replace("dynamic_batching { }", ""))
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["a"], ["b"], ["c"]]


def test_a_batch_that_is_not_full_waits_for_whoever_joins_it(make_scene: Any) -> None:
    scene = make_scene(waiting="a")
    with scene.loop_held():
        scene.open_and_see(started=False)
        scene.engine.loop.call_soon_threadsafe(
            lambda: scene.asked.update(late=scene.asker.send_here(scene.request("late")))
        )
    wait_until(lambda: "late" in scene.asked)
    assert scene.end() in ([["a", "late"]], [["a"], ["late"]])


def test_what_is_staged_waits_and_what_was_taken_does_not(make_scene: Any) -> None:
    scene = make_scene("default_queue_policy { max_queue_size: 3 }")
    snapshot = scene.engine.snapshot().version("gate")
    assert (snapshot.pending, snapshot.pending_rows, snapshot.running) == (3, 3, 1)
    scene.send("refused")
    assert "Exceeds maximum queue size" in scene.asked.pop("refused").refused.message

    seen: list[int] = []

    def taken() -> None:
        scene.open_and_see(started=True)
        seen.append(scene.engine.snapshot().version("gate").pending)
        scene.asked["room"] = scene.asker.send_here(scene.request("room"))

    scene.on_loop(taken)
    assert seen == [1]
    assert scene.end() == [["a", "b"], ["c", "room"]]


def test_an_instance_that_has_taken_it_is_busy_with_it(make_scene: Any) -> None:
    scene = make_scene(b={"parameters": {"do": "cancel"}})
    with scene.loop_held():
        scene.open_and_see(started=True)
    scene.asked["first"].wait()
    scene.settle()
    version = scene.engine.snapshot().version("gate")
    assert (version.pending, version.running) == (1, 2)
    scene.on_loop(scene.asked["b"].ticket.cancel)
    assert scene.end() == [["a", "b"], ["c"]]


@pytest.mark.parametrize("held", [False, True])
def test_its_records_and_statistics_are_those_of_any_batch(make_scene: Any, held: bool) -> None:
    scene = make_scene()
    with scene.loop_held() if held else contextlib.nullcontext():
        scene.open_and_see(started=True)
    scene.end()
    read = scene.engine.records.read()
    batches, rows = read.batches, read.requests
    assert list(batches["reason"]) == ["no_delay", "full", "no_delay"]
    assert list(batches["rows"]) == [1, 2, 1]
    assert [int(seq) - int(batches["batch_seq"][0]) for seq in batches["batch_seq"]] == [0, 1, 2]
    assert (batches["acquired"][1:] >= batches["done"][:-1]).all(), "a batch left while the one before it ran"
    of = {str(id): index for index, id in enumerate(rows["request_id"])}
    assert rows["batch_seq"][of["a"]] == rows["batch_seq"][of["b"]] == batches["batch_seq"][1]
    assert (rows["queue_start"] <= rows["compute_start"]).all()
    assert (rows["compute_end"] <= rows["end"]).all()
    assert set(rows["instance"]) == set(batches["instance"])
    stats = scene.engine.statistics("gate")["model_stats"][0]
    assert (stats["inference_count"], stats["execution_count"]) == (4, 3)
    queued = sum(int(start - since) for start, since in zip(rows["compute_start"], rows["queue_start"], strict=True))
    assert stats["inference_stats"]["queue"] == {"count": 4, "ns": queued}


def test_a_request_of_a_higher_priority_overtakes_it(make_scene: Any) -> None:
    scene = make_scene(LEVELS)
    scene.send("urgent", urgent={"priority": 1})
    assert scene.end() == [["urgent", "a"], ["b", "c"]]


def test_a_request_of_its_own_priority_leaves_it_alone(make_scene: Any) -> None:
    scene = make_scene(LEVELS)
    scene.send("later", "last", last={"priority": 3})
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["a", "b"], ["c", "later"], ["last"]]


def test_a_request_that_comes_when_it_was_taken_comes_behind_it(make_scene: Any) -> None:
    scene = make_scene(LEVELS)

    def taken() -> None:
        scene.open_and_see(started=True)
        scene.asked["urgent"] = scene.asker.send_here(scene.request("urgent", priority=1))

    scene.on_loop(taken)
    assert scene.end() == [["a", "b"], ["urgent", "c"]]


def test_a_cancelled_request_leaves_it_and_the_next_one_moves_up(make_scene: Any) -> None:
    scene = make_scene()
    scene.on_loop(scene.asked["a"].ticket.cancel)
    assert scene.asked["a"].wait().error.message == ""
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["b", "c"]]


def test_a_request_that_is_cancelled_when_it_was_taken_runs(make_scene: Any) -> None:
    scene = make_scene()

    def taken() -> None:
        scene.open_and_see(started=True)
        scene.asked["a"].ticket.cancel()

    scene.on_loop(taken)
    assert scene.end() == [["a", "b"], ["c"]]
    assert scene.asked["a"].error is None


@pytest.mark.parametrize("action", [REJECT, DELAY])
def test_it_is_not_taken_when_the_time_of_a_request_is_up(make_scene: Any, action: str) -> None:
    scene = make_scene(action, waiting="ab")
    with scene.loop_held():
        passed = monotonic_ns() + 31_000_000
        wait_until(lambda: monotonic_ns() > passed)
        scene.open_and_see(started=False)
    executed = scene.end()
    if action is REJECT:
        assert executed == []
        assert {scene.asked[id].error.message for id in "ab"} == {"Request timeout expired"}
    else:
        assert executed == [["a", "b"]]


def test_it_is_not_taken_when_the_delay_has_made_it_another_batch(make_scene: Any) -> None:
    scene = make_scene(
        "preferred_batch_size: 2 max_queue_delay_microseconds: 50000", config=CONFIG, waiting="abc"
    )  # fmt: skip
    with scene.loop_held():
        passed = monotonic_ns() + 51_000_000
        wait_until(lambda: monotonic_ns() > passed)
        scene.open_and_see(started=False)
    assert scene.end() == [["a", "b", "c"]]


def test_an_edit_forms_it_anew(make_scene: Any) -> None:
    scene = make_scene(config=CONFIG, waiting="abcdefgh")
    scene.engine.configure("gate", [Edit("dynamic_batching.preferred_batch_size", "set", [3])])
    assert scene.end() == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
    epochs = scene.engine.records.read().batches["epoch"]
    assert list(epochs[1:]) == [epochs[0] + 1] * 3


def test_an_instance_that_is_added_takes_it(make_scene: Any) -> None:
    scene = make_scene()
    scene.engine.configure("gate", [Edit("instance_group[0].count", "set", 2)])
    assert scene.gate.started.acquire(timeout=10)
    assert scene.gate.batches == [["first"], ["a", "b"]]
    assert scene.end() == [["a", "b"], ["c"]]


def test_of_two_instances_the_first_that_is_done_takes_it(make_scene: Any) -> None:
    scene = make_scene(config=TWO.replace("count: 1", "count: 2"), waiting="a")
    assert scene.gate.started.acquire(timeout=10)
    scene.send(*"bcde")
    with scene.loop_held():
        scene.open_and_see(started=True)
        assert not scene.gate.started.acquire(timeout=0.1), "there is one for the first that asks"
    assert scene.end() == [["a"], ["b", "c"], ["d", "e"]]


def test_an_instance_that_goes_does_not_take_it(make_scene: Any) -> None:
    scene = make_scene(config=TWO.replace("count: 1", "count: 2"), waiting="a")
    assert scene.gate.started.acquire(timeout=10)
    scene.send(*"bcde")
    scene.engine.configure("gate", [Edit("instance_group[0].count", "set", 1)])
    scene.end()
    wait_until(lambda: scene.gate.live == 1)
    batches = scene.engine.records.read().batches
    ran = sorted(zip(batches["batch_seq"], batches["rows"], batches["instance"], strict=True))
    assert [rows for _, rows, _ in ran] == [1, 1, 2, 2]
    assert len({instance for _, _, instance in ran[2:]}) == 1, "one that was to go has gone on"


def test_a_model_that_is_unloaded_answers_it(make_scene: Any) -> None:
    scene = make_scene()
    scene.engine.unload("gate")
    assert scene.end() == [["a", "b"], ["c"]]
    assert all(each.error is None for each in scene.asked.values())
    wait_until(lambda: scene.gate.live == 0)


def test_an_engine_that_stops_in_time_answers_it_and_one_that_does_not_never_runs_it(make_scene: Any) -> None:
    scene = make_scene()
    stopper = threading.Thread(target=scene.engine.stop, args=(0.2,))
    stopper.start()
    for each in scene.asked.values():
        assert each.wait().error.message == "Exit timeout expired. Exiting immediately."
    scene.gate.open.set()
    stopper.join(20)
    assert scene.gate.batches == [["first"]]


@pytest.mark.parametrize("do", ["raise", "unready", "interrupt"])
def test_what_runs_before_it_or_is_in_it_may_fail(make_scene: Any, do: str) -> None:
    scene = make_scene(waiting="abcde", b={"parameters": {"do": do}})
    assert scene.end() == [["a", "b"], ["c", "d"], ["e"]]
    failed = {id for id, each in scene.asked.items() if each.error is not None}
    assert "b" in failed
    assert failed <= {"a", "b"}


def test_answers_keep_their_order(make_scene: Any) -> None:
    scene = make_scene("preserve_ordering: true", waiting="abcdefg")
    scene.end()
    assert [each.order for each in scene.asked.values()] == list(range(8))


def test_an_instance_that_comes_back_amid_a_dispatch_takes_what_is_staged_once(make_scene: Any) -> None:
    scene = make_scene(config=TWO.replace("count: 1", "count: 2"), waiting="")
    model = scene.engine._lifecycle.lookup("gate", -1)
    lent: list[Any] = []
    scene.on_loop(lambda: lent.append(model.idle.pop()))  # as a thread does that runs a request of its own
    scene.send(*"abc")
    scene.settle()
    assert model.stage.batch is not None
    expire = model.scheduler.expire

    def back(now: int) -> Any:
        if lent:
            model.idle.append(lent.pop())
        return expire(now)

    model.scheduler.expire = back
    scene.on_loop(model._dispatch)
    assert scene.gate.started.acquire(timeout=10)
    assert scene.end() == [["a", "b"], ["c"]]
    assert scene.engine.snapshot().version("gate").pending == 0


def test_callers_that_run_their_own_and_requests_that_queue_are_each_answered_once(
    make_engine: Any, tmp_path: Path
) -> None:
    """Instances go to and fro between the loop and the callers; numbers, statistics and records stay right."""
    add_model(tmp_path, "double", config=ONNX.replace("max_batch_size: 8", "max_batch_size: 2"))
    engine = make_engine(tmp_path)
    for _ in range(3):
        engine.infer(request(), 10)
    cursor = engine.records.last_seq
    wrong: list[Any] = []

    def call(number: int) -> None:
        for index in range(150):
            value = float(1000 * number + index)
            answered = engine.infer(request(value=value), 10)
            if answered.error is not None or set(answered.outputs[0].data.ravel()) != {2 * value}:
                wrong.append((value, answered))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for each in callers:
        each.start()
    asker, asked = Asker(engine), []
    for index in range(100):
        asked.extend((index, each) for each in asker.send(request(value=float(index)) for _ in range(4)))
    for each in callers:
        each.join(60)
        assert not each.is_alive(), "a request was never answered"
    for index, one in asked:
        answered = one.wait()
        assert len(one.responses) == 1
        assert set(answered.outputs[0].data.ravel()) == {2.0 * index}
    assert wrong == []
    rows = engine.records.read(cursor).requests
    assert len(rows["seq"]) == len(set(rows["seq"])) == 850
    assert (rows["compute_end"] >= rows["compute_start"]).all()
    stats = engine.statistics("double")["model_stats"][0]
    assert stats["inference_count"] == 853
    assert all(each["ns"] >= 0 for each in stats["inference_stats"].values())


@pytest.mark.parametrize("extra", [np.ones((1, 300_000), np.float32), np.full((1, 4), b"s", np.object_)])
def test_answers_do_not_wait_for_a_batch_whose_inputs_take_long(make_scene: Any, extra: Any) -> None:
    tensor = Tensor.from_numpy("extra", extra)
    x = "input [ { name: "
    optional = f'input [ {{ name: "extra" data_type: TYPE_{tensor.datatype} dims: [ -1 ] optional: true }} ]\n'
    config = TWO.replace(x, optional.replace("BYTES", "STRING") + x)
    scene = make_scene(config=config, waiting="")
    sent = [scene.request(id) for id in "ab"]
    for each in sent:
        each.inputs.append(tensor)
    scene.asked.update(zip("ab", scene.asker.send(sent), strict=True))
    scene.settle()
    scene.gate.unready = True
    closed, scene.gate.open = scene.gate.open, threading.Event()
    closed.set()
    assert scene.gate.started.acquire(timeout=10)
    assert scene.asked["first"].wait().error is None
    assert scene.end() == [["a", "b"]]


def test_a_batch_that_failed_is_let_go_while_its_instance_is_idle(make_scene: Any) -> None:
    array = np.ones((1, 4), np.float32)
    gone = weakref.ref(array)
    scene = make_scene(waiting="")
    sent = InferenceRequest("gate", [Tensor.from_numpy("x", array)], parameters={"do": "refuse"})
    del array
    scene.asked["a"] = scene.asker.send([sent])[0]
    del sent
    scene.end()
    assert "refused" in str(scene.asked.pop("a").error)
    scene.settle()
    gc.collect()
    assert gone() is None


def test_what_was_staged_before_a_load_that_keeps_the_version_has_the_new_epoch(make_scene: Any) -> None:
    scene = make_scene(config=TWO + "version_policy { latest { num_versions: 1 } }\n")
    path = scene.root / "gate" / "config.pbtxt"
    path.write_text(path.read_text().replace("num_versions: 1", "num_versions: 2"))
    scene.engine.load("gate")
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["a", "b"], ["c"]]
    assert scene.gate.made == 1, "the version has been kept"
    read = scene.engine.records.read()
    epochs = list(read.batches["epoch"])
    assert epochs[1:] == [epochs[0] + 1] * 2


def test_a_request_that_is_cancelled_while_it_runs_leaves_alone_what_is_staged(make_scene: Any) -> None:
    scene = make_scene()
    with scene.loop_held():
        scene.engine.loop.call_soon_threadsafe(scene.asked["first"].ticket.cancel)
    scene.settle()
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["a", "b"], ["c"]]


def test_a_request_that_is_refused_leaves_alone_what_is_staged(make_scene: Any) -> None:
    levels = LEVELS + " priority_queue_policy { key: 1 value { max_queue_size: 1 } }"
    scene = make_scene(levels, waiting="ab", a={"priority": 1})
    scene.send("refused", refused={"priority": 1})
    assert "Exceeds maximum queue size" in scene.asked.pop("refused").refused.message
    scene.settle()
    with scene.loop_held():
        scene.open_and_see(started=True)
    assert scene.end() == [["a", "b"]]


def test_what_is_abandoned_when_a_thread_is_about_to_take_it_is_not_executed(make_scene: Any) -> None:
    """Else it would run with records that say that it was in no batch."""
    scene = make_scene(waiting="ab")
    model = scene.engine._lifecycle.lookup("gate", -1)
    number_batch, about_to, go_on = model.scheduler.number_batch, threading.Event(), threading.Event()

    def held_up() -> int:
        about_to.set()
        assert go_on.wait(20)
        return number_batch()

    model.scheduler.number_batch = held_up
    scene.gate.open.set()
    assert about_to.wait(10)
    scene.on_loop(lambda: model.abandon(Cancelled("over")))
    go_on.set()
    assert not scene.gate.started.acquire(timeout=0.2)
    assert scene.end() == []
    assert {scene.asked[id].error.message for id in "ab"} == {"over"}


def test_an_instance_that_is_to_go_ends_its_batch_and_takes_no_other(make_scene: Any) -> None:
    scene = make_scene(config=TWO.replace("count: 1", "count: 2"), waiting="")
    of_first, of_last = scene.gate.open, threading.Event()
    scene.gate.open = of_last
    scene.send("a")
    assert scene.gate.started.acquire(timeout=10)
    scene.send(*"bcde")
    scene.engine.configure("gate", [Edit("instance_group[0].count", "set", 1)])
    scene.settle()
    with scene.loop_held():
        of_last.set()
        assert not scene.gate.started.acquire(timeout=0.1), "it is the last one that goes"
        of_first.set()
        assert scene.gate.started.acquire(timeout=10)
    assert scene.end() == [["a"], ["b", "c"], ["d", "e"]]
