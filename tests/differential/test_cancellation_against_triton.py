"""Cancellation on both sides: the client is gone, or the deadline has passed, in every place where a request can be.

A client goes away by closing its HTTP connection; 2.51 notices only a gRPC client that cancels its call, so there the
requests of ``talk.leavers`` go over gRPC.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from harness import HEAVY, Case, Sent, Sides, Talk, Topic
from models import GATED, put, put_ensemble, step

pytestmark = HEAVY
TOPIC = Topic("can", "Cancellation")
case = TOPIC.case

WATCHES = GATED.replace(
    "                if os.path.exists(path):",
    """                if request.is_cancelled():
                    with open(path + ".told", "w"):
                        break
                if os.path.exists(path):""",
)
"""A model that stops holding when it is told that the client has gone, and says so in a file."""

SEQUENCE = "sequence_batching { max_sequence_idle_microseconds: 20000000 %s }"
NOT_BEGUN = "Triton queues the following step's request as a cancelled one, which its model counts; here none is made"
LOOKED_S = 1.2
"""Triton's batcher looks every 500 ms at what waits."""


def build(root: Path) -> None:
    def policy(name: str, text: str, **fields: Any) -> None:
        put(root, name, f"dynamic_batching {{ {text} }}", **{"size": 1} | fields)

    def ensemble(name: str, first: str, second: str) -> None:
        put_ensemble(
            root, name, step(first, {"IN": "IN"}, {"OUT": "t"}), step(second, {"IN": "t"}, {"OUT": "OUT"}), size=1
        )

    limit = "default_queue_policy { max_queue_size: 100 }"  # with it Triton forms no batch ahead
    policy("queued", limit)
    policy("batched", limit, size=4)
    policy("watches", limit, size=4, source=WATCHES)
    policy("patient", f"max_queue_delay_microseconds: 1500000 {limit}", size=4)
    policy("ahead", "")
    policy("levels", "priority_levels: 2 default_priority_level: 2")
    timeout = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    policy("timed", f"default_queue_policy {{ {timeout} }}")
    policy("ordered", f"preserve_ordering: true {limit}", count=2)
    policy("put_back", "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 600000 }")
    policy("full", "default_queue_policy { max_queue_size: 2 }")
    put(root, "direct")
    put(root, "two", SEQUENCE % "direct { }", size=2)
    put(root, "one", SEQUENCE % "direct { }", size=1)
    put(root, "oldest", SEQUENCE % "oldest { max_candidate_sequences: 1 }", size=1)
    ensemble("chain", "direct", "queued")
    ensemble("watched", "watches", "queued")


def executed_there(*models: str, why: str) -> dict[str, str]:
    """The rows of a request that Triton executes although its client has gone, while here it leaves the queue."""
    counts = ("success", "fail", "queue", "compute", "inference_count", "execution_count", "batch_stats")
    rows = [f"stats {model}/1 {count}" for model in models for count in counts]
    counters = ("count", "exec_count", "request_success", "request_failure CANCELED")
    rows += [f"metrics {models[0]} {counter}" for counter in counters]
    return dict.fromkeys([*rows, f"batches {models[0]}"], why)


def plain(names: str, **fields: Any) -> list[dict[str, Any]]:
    return [Talk.body(id=name, **fields) for name in names]


def look() -> None:
    """Long enough for the server to see that a connection is closed, and to look at its queues."""
    threading.Event().wait(LOOKED_S)


def leave(*sent: Sent) -> None:
    for each in sent:
        each.leave()
        assert each.ended.wait(10)
    look()


def finish(talk: Talk, model: str, *sent: Sent) -> None:
    """Notes answers, which requests were executed, and the counts."""
    talk.answers(*sent)
    talk.batches(model)
    talk.stats(model)
    talk.metrics(model)


def gone(talk: Talk, model: str, bodies: list[dict[str, Any]], *which: int) -> None:
    """Requests wait behind a held one, the clients of some of them go away, then the instance is free."""
    talk.leavers = [bodies[index]["id"] for index in which]
    talk.load(model)
    held = talk.hold(model)
    sent = talk.queue(model, *bodies)
    leave(*(sent[index] for index in which))
    talk.release(held)
    finish(talk, model, held, *sent)


@case("can-01 gone while it waits: never executed, the others are answered", rules=("1.17",))
def queued(talk: Talk) -> None:
    gone(talk, "queued", plain("abc"), 1)


@case("can-02 gone while it would have shared a batch", rules=("1.17",))
def in_a_batch(talk: Talk) -> None:
    gone(talk, "batched", plain("abcde"), 0, 2)


@case("can-03 all that wait have gone; the next is served", rules=("1.17",))
def all_gone(talk: Talk) -> None:
    talk.leavers = ["a", "b"]
    talk.load("queued")
    held = talk.hold("queued")
    sent = talk.queue("queued", *plain("ab"))
    leave(*sent)
    talk.release(held)
    talk.answers(held, *sent)
    talk.infer("queued", id="after")
    finish(talk, "queued")


@case("can-04 gone while it runs: the model goes on, the next is served", rules=("1.17",))
def running(talk: Talk) -> None:
    talk.leavers = ["hold"]
    talk.load("queued")
    held = talk.hold("queued")
    sent = talk.queue("queued", *plain("a"))
    leave(held)
    talk.release(held)
    finish(talk, "queued", held, *sent)


@case("can-05 gone while it runs: the model is told", rules=("1.17",))
def told(talk: Talk) -> None:
    talk.leavers = ["hold"]
    talk.load("watches")
    held = talk.hold("watches")
    leave(held)
    talk.until(lambda: (talk.root / "watches.hold.open.told").exists(), "the model is not told")
    (talk.root / "watches.hold.open.told").unlink()
    talk.infer("watches", id="after")
    finish(talk, "watches", held)


@case(
    "can-06 gone before its turn without a batcher",
    rules=("1.17",),
    differs=executed_there(
        "direct", why="without a batcher Triton hands requests on at once; here what does not run yet waits in a queue"
    ),
)
def direct(talk: Talk) -> None:
    gone(talk, "direct", plain("abc"), 1)


@case(
    "can-07 gone while a batch is formed ahead",
    rules=("1.17", "1.9"),
    differs=executed_there(
        "ahead", why="Triton executes what it has formed ahead of the busy instance; here no batch is formed ahead"
    ),
)
def formed_ahead(talk: Talk) -> None:
    gone(talk, "ahead", plain("abcd"), 0, 3)


@case("can-08 gone while it waits in a lower priority level", rules=("1.17", "2.2"))
def levels(talk: Talk) -> None:
    gone(talk, "levels", plain("ab", priority=2) + plain("c", priority=1), 0)


@case("can-09 the deadline of one passes, another goes away, the third is answered", rules=("1.17", "2.4", "2.5"))
def deadline(talk: Talk) -> None:
    talk.leavers = ["a"]
    talk.load("timed")
    held = talk.hold("timed")
    sent = talk.queue("timed", Talk.body(id="late", timeout=200000), *plain("ab"))
    assert sent[0].ended.wait(30)
    leave(sent[1])
    talk.release(held)
    finish(talk, "timed", held, *sent)


@case("can-10 gone after its deadline: counted once", rules=("1.17", "2.5"))
def after_deadline(talk: Talk) -> None:
    talk.leavers = ["late"]
    talk.load("timed")
    held = talk.hold("timed")
    sent = talk.queue("timed", Talk.body(id="late", timeout=100000))
    leave(sent[0])
    talk.release(held)
    talk.infer("timed", id="after")
    talk.answers(held)
    talk.batches("timed")
    talk.stats("timed")


@case("can-11 gone while an idle instance waits for the delay", rules=("1.17", "1.5"))
def while_delayed(talk: Talk) -> None:
    talk.leavers = ["b"]
    talk.load("patient")
    sent = talk.queue("patient", *plain("abc"))
    sent[1].leave()
    finish(talk, "patient", *sent)


@case(
    "can-12 gone while a step of an ensemble waits",
    rules=("1.17", "5.8"),
    differs=executed_there(
        "queued", "chain", why="Triton cancels the steps that follow, not the one that waits; here both"
    ),
)
def ensemble_waits(talk: Talk) -> None:
    talk.leavers = ["a"]
    for name in ("direct", "queued", "chain"):
        talk.load(name)
    held = talk.hold("queued")
    sent = talk.queue("chain", *plain("ab"), on="queued")
    leave(sent[0])
    talk.release(held)
    finish(talk, "queued", held, *sent)
    talk.stats("chain")
    talk.stats("direct")


@case(
    "can-13 gone while the first step of an ensemble runs: the second is not executed",
    rules=("1.17", "5.8"),
    differs={
        "stats queued/1 fail": NOT_BEGUN,
        "metrics queued request_failure CANCELED": NOT_BEGUN,
        "stats watched/1 fail": "2.51 counts the failure of an ensemble twice",
    },
)
def ensemble_runs(talk: Talk) -> None:
    talk.leavers = ["hold"]
    for name in ("watches", "queued", "watched"):
        talk.load(name)
    held = talk.hold("watched", on="watches")
    leave(held)
    talk.release(held, on="watches")
    talk.infer("watched", id="after")
    finish(talk, "queued", held)
    talk.stats("watched")
    talk.stats("watches")


@case("can-14 gone while its sequence waits for a slot", rules=("1.17", "3.4"))
def backlog(talk: Talk) -> None:
    talk.leavers = ["a"]
    talk.load("one")
    talk.infer("one", id="one", sequence_id=1, sequence_start=True)
    sent = talk.queue(
        "one", *plain("a", sequence_id=2, sequence_start=True), *plain("b", sequence_id=3, sequence_start=True)
    )
    leave(sent[0])
    talk.infer("one", id="end", sequence_id=1, sequence_end=True)
    finish(talk, "one", *sent)


@case("can-15 gone while it waits behind its own sequence", rules=("1.17", "3.6"))
def behind_its_own(talk: Talk) -> None:
    talk.leavers = ["a"]
    for model in ("one", "oldest"):
        talk.load(model)
        held = talk.hold(model, sequence_id=1, sequence_start=True)
        sent = talk.queue(model, *plain("ab", sequence_id=1), *plain("c", sequence_id=1, sequence_end=True))
        leave(sent[0])
        talk.release(held)
        finish(talk, model, held, *sent)


@case("can-16 gone under preserve_ordering: the others keep their order", rules=("1.12", "1.17"))
def ordered(talk: Talk) -> None:
    talk.leavers = ["b"]
    talk.load("ordered")
    held = [talk.hold("ordered", "hold1"), talk.hold("ordered", "hold2")]
    sent = talk.queue("ordered", *plain("abc"))
    leave(sent[1])
    talk.release(*held)
    talk.answers(*held, *sent)
    talk.batches("ordered", ordered=False)
    talk.stats("ordered")


@case("can-17 gone after DELAY put it back", rules=("1.17", "2.5"))
def put_back(talk: Talk) -> None:
    talk.leavers = ["a"]
    talk.load("put_back")
    held = talk.hold("put_back")
    sent = talk.queue("put_back", *plain("ab"))
    look()
    leave(sent[0])
    talk.release(held)
    finish(talk, "put_back", held, *sent)


PLACE = "while the instance is busy Triton's queue keeps the place of a request whose client has gone; here it is free"


@case(
    "can-18 gone from a full queue",
    rules=("1.17", "2.6"),
    differs={"full answers c": PLACE}
    | {row: why for row, why in executed_there("full", why=PLACE).items() if not re.search("fail", row)},
)
def full(talk: Talk) -> None:
    talk.leavers = ["a"]
    talk.load("full")
    held = talk.hold("full")
    sent = talk.queue("full", *plain("ab"))
    leave(sent[0])
    sent += talk.queue("full", *plain("c"))
    talk.release(held)
    finish(talk, "full", held, *sent)


@case("can-19 gone while its sequence's request runs: the sequence goes on", rules=("1.17",))
def sequence_runs(talk: Talk) -> None:
    talk.leavers = ["hold"]
    for model in ("one", "oldest"):
        talk.load(model)
        held = talk.hold(model, sequence_id=1, sequence_start=True)
        leave(held)
        talk.release(held)
        talk.infer(model, id="next", sequence_id=1)
        talk.infer(model, id="end", sequence_id=1, sequence_end=True)
        talk.infer(model, id="late", sequence_id=1)
        finish(talk, model, held)


@case("can-20 one request of a sequence that waits for a slot is gone: the whole sequence is", rules=("1.17", "3.4"))
def backlog_of_several(talk: Talk) -> None:
    talk.leavers = ["b"]
    for model in ("one", "oldest"):
        talk.load(model)
        talk.infer(model, id="one", sequence_id=1, sequence_start=True)
        sent = talk.queue(model, *plain("a", sequence_id=2, sequence_start=True), *plain("b", sequence_id=2))
        leave(sent[1])
        talk.infer(model, id="end", sequence_id=1, sequence_end=True)
        talk.answers(*sent)
        talk.infer(model, id="late", sequence_id=2)
        finish(talk, model)


@case("can-21 gone at the start of a sequence beside another one", rules=("1.17", "3.5"))
def beside_another(talk: Talk) -> None:
    talk.leavers = ["a"]
    talk.load("two")
    held = talk.hold("two", sequence_id=1, sequence_start=True)
    sent = talk.queue("two", *plain("a", sequence_id=2, sequence_start=True), *plain("b", sequence_id=1))
    leave(sent[0])
    talk.release(held)
    talk.answers(held, *sent)
    talk.infer("two", id="late", sequence_id=2)
    talk.infer("two", id="again", sequence_id=2, sequence_start=True)
    talk.infer("two", id="end", sequence_id=1, sequence_end=True)
    finish(talk, "two")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
