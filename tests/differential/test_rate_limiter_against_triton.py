"""The rate limiter on both sides, with limits that follow from what the models need: who runs beside whom, whose turn.

Limits that are declared are in ``test_rate_limits_against_triton.py``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness import HEAVY, Case, Sides, Talk, Topic
from models import put
from turns import TURNS, begin, turns, waits, waits_for

pytestmark = HEAVY
TOPIC = Topic("rate", "Rate limiter", ("--disable-auto-complete-config", "--rate-limit=execution_count"))
case = TOPIC.case


def resource(name: str, count: int, where: str = "global: true") -> str:
    return f'resources {{ name: "{name}" count: {count} {where} }} '


def group(limiter: str = "", count: int = 1, more: str = "") -> str:
    return f"instance_group {{ kind: KIND_CPU count: {count} {more} rate_limiter {{ {limiter} }} }}\n"


def build(root: Path) -> None:
    def add(name: str, *groups: str, size: int = 1, extra: str = "") -> None:
        put(root, name, "".join(groups) + extra, size=size, count=0, source=TURNS)

    add("a", group(resource("R", 1)))
    add("b", group(resource("R", 1)))
    add("free", group())
    add("pair", group(resource("R", 1), 2))
    add("double", group(resource("R", 2)))
    add("four", group(resource("R", 4)))
    add("both", group(resource("R", 1) + resource("Q", 1)))
    add("q", group(resource("Q", 1)))
    add("first", group(resource("R", 1) + "priority: 1"))
    add("second", group(resource("R", 1) + "priority: 2"))
    add("third", group(resource("R", 1) + "priority: 3"))
    add("groups", group(resource("R", 1) + "priority: 1"), group(resource("R", 1) + "priority: 4"))
    add("device", group(resource("D", 1, "")))
    add("device_two", group(resource("D", 1, "")))
    add("clash", group(resource("R", 1) + resource("R", 1, "")))
    add("clash_groups", group(resource("R", 1)), group(resource("R", 1, "")))
    add("mixed_r", group(resource("R", 1, "")))
    add("batching", group(resource("R", 1)), size=8, extra="dynamic_batching { }")
    add("delayed", group(resource("R", 1)), size=8, extra="dynamic_batching { max_queue_delay_microseconds: 200000 }")
    add("sequence", group(resource("R", 1)), extra="sequence_batching { max_sequence_idle_microseconds: 60000000 }")


def bodies(prefix: str, count: int, **fields: object) -> list[dict[str, object]]:
    return [Talk.body(id=f"{prefix}{index}", **fields) for index in range(count)]


@case("rate-01 two models that share a resource take turns", rules=("4.2",))
def shared(talk: Talk) -> None:
    begin(talk, "a", "b")
    held = talk.hold("a")
    waits_for(talk, "b", "b", held)
    talk.note("turns", turns(talk))
    for model in ("a", "b"):
        talk.stats(model)


@case("rate-02 instances of one model share it too: one runs at a time", rules=("4.3", "4.4"))
def instances(talk: Talk) -> None:
    begin(talk, "pair")
    held = talk.hold("pair")
    waits_for(talk, "pair", "second", held)
    talk.stats("pair")


@case("rate-03 the limit is the most that one instance needs: two of one, or one of two", rules=("4.4",))
def most(talk: Talk) -> None:
    begin(talk, "pair", "double")
    waits_for(talk, "double", "double", talk.hold("pair", "h0"), talk.hold("pair", "h1"))


@case("rate-04 a model that needs more raises the limit when it comes, and takes it with it", rules=("4.4",))
def raises_the_limit(talk: Talk) -> None:
    begin(talk, "pair", "four")
    held = [talk.hold("pair", "h0"), talk.hold("pair", "h1")]
    talk.release(*held)
    talk.answers(*held)
    talk.unload("four")
    one = talk.hold("pair", "h2")
    sent = talk.send("pair", talk.body(id="late"))
    waits(talk, "pair", sent)
    talk.release(one)
    talk.answers(one, sent)


@case("rate-05 two resources are taken at once, or none", rules=("4.3",))
def two_resources(talk: Talk) -> None:
    begin(talk, "both", "a", "q")
    held = talk.hold("a")
    sent = talk.send("both", talk.body(id="both"))
    waits(talk, "both", sent)
    talk.release(held)
    talk.answers(held, sent)
    held = talk.hold("both")
    sent = talk.send("q", talk.body(id="q"))
    waits(talk, "q", sent)
    talk.release(held)
    talk.answers(held, sent)


def share(talk: Talk, *models: str) -> None:
    """Queues many requests of each model behind one that holds the resource, and notes the turns of the first."""
    begin(talk, "a", *models)
    held = talk.hold("a")
    sent = [talk.queue(model, *bodies(model[0], 12)) for model in models]
    talk.release(held)
    for each in (*sent,):
        for one in each:
            assert one.ended.wait(30)
    order = [line.rpartition("_")[0].rpartition("_")[0] for line in turns(talk) if not line.startswith("a_")]
    found = Counter(order[: 12 + 12 // 2])
    talk.note("turns of the first 18", {model: found[model] for model in models})
    talk.note("all turns", Counter(order))


@case("rate-06 equal priorities take turns", rules=("4.2",))
def equal(talk: Talk) -> None:
    share(talk, "b", "first")


@case("rate-07 priority 2 gets half the turns of priority 1", rules=("4.2",))
def half(talk: Talk) -> None:
    share(talk, "first", "second")


@case("rate-08 priority 3 gets a third", rules=("4.2",))
def third(talk: Talk) -> None:
    share(talk, "first", "third")


@case("rate-09 groups of one model with priorities of their own", rules=("4.2",))
def groups(talk: Talk) -> None:
    begin(talk, "a", "groups")
    held = talk.hold("a")
    sent = talk.queue("groups", *bodies("g", 20))
    talk.release(held)
    talk.answers(held, *sent)
    found = Counter(line.partition(" ")[0] for line in turns(talk))
    talk.note("turns", found)


@case("rate-10 resources of a device", rules=("4.2",))
def devices(talk: Talk) -> None:
    begin(talk, "device", "device_two")
    waits_for(talk, "device_two", "two", talk.hold("device"))


@case("rate-11 a resource that is both global and of a device is refused", rules=("4.4",))
def clash(talk: Talk) -> None:
    begin(talk, "clash", "clash_groups", "a", "mixed_r")
    talk.infer("a")


@case("rate-12 an error gives the resources back", rules=("4.3",))
def errors(talk: Talk) -> None:
    begin(talk, "a", "b")
    for do in ("raise", "nothing"):
        talk.infer("a", do=do)
        talk.infer("b")
    talk.stats("a")
    talk.stats("b")


@case("rate-13 requests that wait for a resource are batched", rules=("4.3",))
def batching(talk: Talk) -> None:
    begin(talk, "a", "batching", "delayed")
    for model in ("batching", "delayed"):
        held = talk.hold("a", id=f"hold_{model}")
        sent = talk.queue(model, *bodies("r", 5))
        talk.release(held)
        talk.answers(held, *sent)
        talk.stats(model)


@case("rate-14 sequences wait for resources too", rules=("4.3",))
def sequences(talk: Talk) -> None:
    begin(talk, "a", "sequence")
    held = talk.hold("a")
    sent = talk.send("sequence", talk.body(id="s", sequence_id=1, sequence_start=True))
    waits(talk, "sequence", sent)
    talk.release(held)
    talk.answers(held, sent)
    talk.infer("sequence", sequence_id=1, sequence_end=True)
    talk.stats("sequence")


@case("rate-15 a model that goes gives what it held to those that wait", rules=("4.3",))
def unload(talk: Talk) -> None:
    begin(talk, "a", "b")
    held = talk.hold("a")
    sent = talk.send("b", talk.body(id="b"))
    talk.call("POST", "/v2/repository/models/a/unload", {})
    waits(talk, "b", sent)
    talk.release(held)
    talk.answers(held, sent)
    talk.infer("b")


@case(
    "rate-16 a model that needs nothing",
    rules=("4.3",),
    differs={
        "free answered": "2.51 tries the first of those that wait only: a model that needs nothing waits behind it; "
        "here it runs (server#8358)"
    },
)
def needs_nothing(talk: Talk) -> None:
    begin(talk, "a", "b", "free")
    held = talk.hold("a")
    sent = talk.send("b", talk.body(id="b"))
    waits(talk, "b", sent)
    free = talk.send("free", talk.body(id="free"))
    talk.note("free answered", free.ended.wait(1))
    talk.release(held)
    talk.answers(held, sent, free)


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
