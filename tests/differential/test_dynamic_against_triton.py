"""Dynamic batching on both sides: which requests come together, what is answered, what is counted.

Requests queue up behind one that holds the instance, so what can be formed does not hang on a race.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import HEAVY, Case, Sent, Sides, Talk, Topic
from models import IN, put

pytestmark = HEAVY
TOPIC = Topic("dyn", "Dynamic batcher")
case = TOPIC.case

VARIABLE = IN.replace("dims: 2", "dims: -1")
MORE = 'input { name: "MORE" data_type: TYPE_FP32 dims: 1 optional: true }\n'
LOOSE = 'output { name: "OUT" data_type: TYPE_FP32 dims: -1 }\n'


@dataclass(frozen=True)
class Drawn:
    """Settings of a model, and requests for it: rows, width, priority."""

    size: int
    batching: str
    requests: list[tuple[int, int, int]]


def draws(seed: int, count: int = 3) -> Iterator[Drawn]:
    """Random models and requests, with a queue limit and without a delay, so that Triton's answer hangs on no race."""
    chance = random.Random(seed)
    for _ in range(count):
        size, levels = chance.choice([1, 2, 4, 6, 8]), chance.choice([0, 3])
        preferred = sorted(chance.sample(range(1, size + 1), chance.randint(0, min(3, size))))
        batching = f"preferred_batch_size: {preferred} default_queue_policy {{ max_queue_size: 100 }} "
        batching += "priority_levels: 3 default_priority_level: 2" if levels else ""
        requests = [
            (
                min(size, chance.choice([1, 1, 1, 2, 3, size])),
                chance.choice([2, 2, 2, 3]),
                chance.randint(0, levels + 1) if levels else 0,
            )
            for _ in range(chance.randint(4, 9))
        ]
        yield Drawn(size, batching, requests)


def build(root: Path) -> None:
    def batching(name: str, text: str = "", **fields: Any) -> None:
        put(root, name, f"dynamic_batching {{ {text} }}", **fields)

    # with a queue limit Triton forms no batch ahead, so nothing hangs on when its thread wakes
    limit = "default_queue_policy { max_queue_size: 100 }"
    batching("five", f"preferred_batch_size: [ 2, 3, 4, 6, 8 ] max_queue_delay_microseconds: 2000000 {limit}")
    batching("at_once", limit, size=4)
    batching("patient", "preferred_batch_size: 4 max_queue_delay_microseconds: 200000")
    batching("slow", "preferred_batch_size: 4 max_queue_delay_microseconds: 2000000")
    batching("small", f"preferred_batch_size: 2 {limit}")
    batching("variable", limit, inputs=VARIABLE, outputs=LOOSE)
    batching("ragged", inputs=VARIABLE.replace("dims", "allow_ragged_batch: true dims"), outputs=LOOSE)
    batching("optional", limit, inputs=IN + MORE)
    batching("two", size=2, count=2)
    batching("ordered", "preserve_ordering: true", size=1, count=2)
    batching("unordered", size=1, count=2)
    batching("scalar", size=0)
    batching("one_row", "max_queue_delay_microseconds: 100000", size=1)
    batching("idle", "preferred_batch_size: 4 max_queue_delay_microseconds: 2000000", inputs=VARIABLE, outputs=LOOSE)
    put(root, "none")
    for seed in (1, 2, 3):
        for index, drawn in enumerate(draws(seed)):
            batching(f"random{seed}_{index}", drawn.batching, size=drawn.size, inputs=VARIABLE, outputs=LOOSE)


def bodies(*rows: int, **fields: Any) -> list[dict[str, Any]]:
    """Requests a, b, c, ... of so many rows."""
    return [Talk.body({"IN": [[index, 0]] * each}, id=chr(97 + index), **fields) for index, each in enumerate(rows)]


def wide(*widths: int) -> list[dict[str, Any]]:
    """Requests a, b, c, ... of one row of so many elements."""
    return [Talk.body({"IN": [[index] * each]}, id=chr(97 + index)) for index, each in enumerate(widths)]


def behind(talk: Talk, model: str, queued: list[dict[str, Any]], *, wait_s: float = 0.0, **hold: Any) -> list[Sent]:
    """Queues requests behind one that holds the only instance, lets it go, and notes everything."""
    talk.load(model)
    held = talk.hold(model, **hold)
    sent = talk.queue(model, *queued)
    threading.Event().wait(wait_s)
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches(model)
    talk.stats(model)
    return sent


@case("dyn-01 five preferred sizes: which of them seven requests leave in", rules=("1.4",))
def five_preferred_sizes(talk: Talk) -> None:
    behind(talk, "five", bodies(*[1] * 7))


@case("dyn-02 no delay: whatever waits goes, up to max_batch_size", rules=("1.3", "1.6"))
def no_delay(talk: Talk) -> None:
    behind(talk, "at_once", bodies(*[1] * 6))


@case("dyn-03 requests of several rows are never split and never pass each other", rules=("1.3",))
def several_rows(talk: Talk) -> None:
    behind(talk, "none", bodies(3, 3))
    behind(talk, "at_once", bodies(3, 2, 1, 4, 1))


@case(
    "dyn-04 more rows than max_batch_size, no rows, rows that differ between inputs: texts",
    rules=("1.3",),
    differs={
        "IN[2,2] MORE[3,1]": "Triton goes through the inputs in the order of a hash table, names the other of the two"
    },
)
def over_large(talk: Talk) -> None:
    talk.load("at_once")
    talk.infer("at_once", {"IN": [[1, 2]] * 5})
    talk.infer("at_once", {"IN": np.zeros((0, 2), np.float32)})
    talk.infer("at_once", {"IN": [1, 2]})
    talk.load("optional")
    talk.infer("optional", {"IN": [[1, 2]] * 2, "MORE": [[1]] * 3})
    talk.stats("at_once")


@case("dyn-05 a request larger than the largest preferred size goes at once", rules=("1.7",))
def larger_than_preferred(talk: Talk) -> None:
    talk.load("slow")
    talk.infer("slow", {"IN": [[1, 2]] * 6}, id="a")
    talk.infer("slow", {"IN": [[1, 2]] * 4}, id="b")
    talk.batches("slow")
    talk.stats("slow")


LATE = (
    "Triton forms the batch ahead of the busy instance, and who comes later joins it; here it is formed when the "
    "instance is idle: a preferred size, and the rest waits for its delay"
)


@case(
    "dyn-06 more wait than the largest preferred size",
    rules=("1.4", "1.5", "1.8"),
    differs={"batches": LATE, "execution_count": LATE, "batch_stats": LATE},
)
def preferred_cut(talk: Talk) -> None:
    behind(talk, "slow", bodies(2, 2, 1), inputs={"IN": [[1, 2]] * 4}, wait_s=0.7)


@case("dyn-07 the delay passes while the instance is busy", rules=("1.6",))
def delay_passes(talk: Talk) -> None:
    behind(talk, "patient", bodies(1, 1, 1), wait_s=0.6, inputs={"IN": [[1, 2]] * 4})


@case("dyn-08 preferred size without delay cuts an over-long queue", rules=("1.6",))
def preferred_without_delay(talk: Talk) -> None:
    behind(talk, "small", bodies(1, 1, 1, 1, 1))


@case("dyn-09 other shapes part a batch; order is kept", rules=("1.4", "1.11"))
def other_shapes(talk: Talk) -> None:
    behind(talk, "variable", wide(2, 2, 3, 2, 2))


@case("dyn-10 ragged inputs of any shape share a batch", rules=("1.11",))
def ragged(talk: Talk) -> None:
    behind(talk, "ragged", wide(2, 3, 1, 4))


@case("dyn-11 another set of optional inputs parts a batch", rules=("1.4", "1.11"))
def optional_inputs(talk: Talk) -> None:
    more = [{"MORE": [[5]]}, {"MORE": [[6]]}, {}, {}, {"MORE": [[7]]}]
    queued = [Talk.body({"IN": [[index, 0]]} | each, id=chr(97 + index)) for index, each in enumerate(more)]
    behind(talk, "optional", queued)


@case("dyn-12 several instances share one queue", rules=("1.9",))
def several_instances(talk: Talk) -> None:
    talk.load("two")
    held = [talk.hold("two", "hold1"), talk.hold("two", "hold2")]
    sent = talk.queue("two", *bodies(1, 1, 1, 1))
    talk.release(*held)
    talk.answers(*held, *sent)
    talk.batches("two", ordered=False)
    talk.stats("two")


@case("dyn-13 preserve_ordering: no answer before those of earlier requests", rules=("1.12",))
def preserve_ordering(talk: Talk) -> None:
    for model in ("ordered", "unordered"):
        talk.load(model)
        held = talk.hold(model)
        sent = talk.send(model, Talk.body(id="quick"))
        talk.running(model, "quick")
        talk.note(f"{model}: the later one is answered first", sent.ended.wait(20 if model == "unordered" else 0.5))
        talk.release(held)
        talk.answers(held, sent)
        talk.stats(model)


@case("dyn-14 max_batch_size 0: one request, one execution, whatever dynamic_batching says", rules=("1.3",))
def no_batching(talk: Talk) -> None:
    queued = [Talk.body({"IN": [index, 0]}, id=chr(97 + index)) for index in range(3)]
    behind(talk, "scalar", queued, inputs={"IN": [1, 2]})
    talk.infer("scalar", {"IN": [[1, 2]]})


@case("dyn-15 a model without dynamic_batching executes each request alone", rules=("1.1",))
def no_batcher(talk: Talk) -> None:
    behind(talk, "none", bodies(1, 2, 1))


@case("dyn-16 max_batch_size 1 with a delay: nothing to wait for", rules=("1.2", "1.5"))
def one_row(talk: Talk) -> None:
    behind(talk, "one_row", bodies(1, 1))


@case("dyn-17 what waits when a model is unloaded is still answered", rules=("1.16",))
def unloaded(talk: Talk) -> None:
    talk.load("at_once")
    held = talk.hold("at_once")
    sent = talk.queue("at_once", *bodies(1, 1))
    talk.call("POST", "/v2/repository/models/at_once/unload", {})
    talk.infer("at_once", id="late")
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches("at_once")


@case("dyn-18 a batch that was formed ahead is joined by those who come later", rules=("1.8",))
def late_joiners(talk: Talk) -> None:
    talk.load("patient")
    held = talk.hold("patient", inputs={"IN": [[1, 2]] * 4})
    sent = talk.queue("patient", *bodies(1, 1))
    threading.Event().wait(0.5)
    sent += talk.queue("patient", Talk.body(id="late"))
    threading.Event().wait(0.8)  # Triton looks again when its thread wakes: after the delay, or 500 ms
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches("patient")


@case("dyn-19 six wait longer than the delay: all leave, though four are a preferred size", rules=("1.6",))
def delay_exceeded(talk: Talk) -> None:
    behind(talk, "patient", bodies(*[1] * 6), wait_s=1.0, inputs={"IN": [[1, 2]] * 4})


@case(
    "dyn-20 an idle instance: a preferred size leaves at once, other shapes and what is too large part",
    rules=("1.4", "1.5"),
)
def idle(talk: Talk) -> None:
    talk.load("idle")
    for queued in (wide(2, 2, 2, 2), bodies(3, 2), wide(2, 3)):
        talk.answers(*talk.queue("idle", *queued))
    talk.batches("idle")
    talk.stats("idle")


@case(
    "dyn-21 random settings, requests of random rows, shapes and priorities: seed 1", rules=("1.3", "1.4", "1.5", "2.2")
)
def random_1(talk: Talk) -> None:
    at_random(talk, 1)


@case("dyn-22 the same, seed 2", rules=("1.3", "1.4", "1.5", "2.2"))
def random_2(talk: Talk) -> None:
    at_random(talk, 2)


@case("dyn-23 the same, seed 3", rules=("1.3", "1.4", "1.5", "2.2"))
def random_3(talk: Talk) -> None:
    at_random(talk, 3)


def at_random(talk: Talk, seed: int) -> None:
    for index, drawn in enumerate(draws(seed)):
        name = f"random{seed}_{index}"
        queued = [
            Talk.body({"IN": [[1] * width] * rows}, id=chr(97 + place), priority=priority)
            for place, (rows, width, priority) in enumerate(drawn.requests)
        ]
        behind(talk, name, queued)


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
