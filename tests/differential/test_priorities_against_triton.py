"""Priorities and queue policies on both sides: order, timeouts, limits, their texts, and what is counted where."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from harness import HEAVY, Case, Sent, Sides, Talk, Topic, at_rest
from models import put

pytestmark = HEAVY
TOPIC = Topic("pri", "Priorities and queue policies")
case = TOPIC.case


LARGEST = 2**64 - 1
QUESTIONABLE = (
    "priority_levels: 2",
    "priority_levels: 2 default_priority_level: 3",
    "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }",
    "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value { } }",
    "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
    "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }",
    "preserve_ordering: true default_queue_policy { timeout_action: DELAY }",
    "default_priority_level: 2",
    "priority_levels: 1 default_priority_level: 1 preserve_ordering: true",
    "preferred_batch_size: 0",
    "preferred_batch_size: -1",
    "preferred_batch_size: [ 2, 9 ]",
    "preferred_batch_size: [ 2, 2, 1 ]",
    "default_queue_policy { max_queue_size: 4294967295 }",
    f"priority_levels: {LARGEST} default_priority_level: {LARGEST}",
)
"""Settings that Triton refuses, or takes although they look wrong."""


def build(root: Path) -> None:
    def batching(name: str, text: str, **fields: Any) -> None:
        put(root, name, f"dynamic_batching {{ {text} }}", **{"size": 1} | fields)

    def policy(name: str, text: str, **fields: Any) -> None:
        batching(name, f"default_queue_policy {{ {text} }}", **fields)

    batching("levels", "priority_levels: 3 default_priority_level: 2")
    batching("batched", "priority_levels: 3 default_priority_level: 2", size=4)
    batching("no_levels", "")
    policy("reject", "default_timeout_microseconds: 400000")
    # longer than the 500 ms after which Triton looks again: what comes last is still in time then
    policy("delay", "timeout_action: DELAY default_timeout_microseconds: 1500000")
    policy("override", "default_timeout_microseconds: 30000000 allow_timeout_override: true")
    policy("fixed", "default_timeout_microseconds: 30000000")
    policy("no_default", "allow_timeout_override: true")
    policy("limit", "max_queue_size: 3")
    policy("limit_rows", "max_queue_size: 3", size=4)
    policy("delay_limit", "timeout_action: DELAY default_timeout_microseconds: 300000 max_queue_size: 2")
    batching(
        "own",
        "priority_levels: 2 default_priority_level: 1 default_queue_policy { max_queue_size: 1 } "
        "priority_queue_policy { key: 2 value { default_timeout_microseconds: 300000 max_queue_size: 2 } }",
    )
    batching(
        "unused",
        "default_queue_policy { max_queue_size: 2 } priority_queue_policy { key: 1 value { max_queue_size: 1 } }",
    )
    batching(
        "delayed_levels",
        "priority_levels: 2 default_priority_level: 2 "
        "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 3000000 }",
    )
    batching(
        "own_timeouts",
        "priority_levels: 2 default_priority_level: 2 "
        "priority_queue_policy { key: 1 value { default_timeout_microseconds: 400000 } } priority_queue_policy "
        "{ key: 2 value { default_timeout_microseconds: 60000000 allow_timeout_override: true } }",
    )
    for index, text in enumerate(QUESTIONABLE):
        batching(f"questionable{index:02}", text, size=8)
    put(root, "none")


def asked(**priorities: int) -> list[dict[str, Any]]:
    """Requests by name with the priority that each asks for."""
    return [Talk.body(id=name, **({"priority": value} if value else {})) for name, value in priorities.items()]


def plain(names: str, **fields: Any) -> list[dict[str, Any]]:
    """A request for each letter."""
    return [Talk.body(id=name, **fields) for name in names]


def behind(talk: Talk, model: str, queued: list[dict[str, Any]], *, wait: str = "", wait_s: float = 0.0) -> list[Sent]:
    """Queues requests behind one that holds the only instance, waits for the answers of some, lets it go, notes all."""
    talk.load(model)
    held = talk.hold(model)
    sent = talk.queue(model, *queued)
    for each in sent:
        if each.id in wait:
            assert each.ended.wait(30), f"{each.id} is not answered while the instance is busy"
    threading.Event().wait(wait_s)
    talk.note("waiting", at_rest(lambda: talk.pending(model)))
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches(model)
    talk.stats(model)
    return sent


@case(
    "pri-01 level 1 first, first come first served within a level; 0 and too high are the default level",
    rules=("2.1", "2.2"),
)
def levels(talk: Talk) -> None:
    behind(talk, "levels", asked(three=3, two=2, default=0, high=4, one=1, huge=1000, also_one=1, also_three=3))


@case("pri-02 a batch mixes levels, the highest first", rules=("2.2",))
def mixed_batch(talk: Talk) -> None:
    behind(talk, "batched", asked(three=3, two=2, three_b=3, one=1, two_b=2, one_b=1))


@case("pri-03 without levels a priority is ignored", rules=("2.1",))
def no_levels(talk: Talk) -> None:
    behind(talk, "no_levels", asked(a=3, b=1, c=2))


@case("pri-04 a priority that is no number, or negative: texts", rules=("2.1",))
def bad_priorities(talk: Talk) -> None:
    talk.load("levels")
    for priority in ("high", 1.5, True, -1):
        talk.infer("levels", priority=priority)
    for timeout in ("long", 1.5, -1):
        talk.infer("levels", timeout=timeout)
    talk.stats("levels")


@case("pri-05 REJECT: answered while the instance is still busy, counted as failed", rules=("2.5", "2.7"))
def reject(talk: Talk) -> None:
    behind(talk, "reject", plain("ab"), wait="ab")
    talk.infer("reject", id="after")


def put_back(talk: Talk, model: str, early: str, wait_s: float, late: str) -> None:
    """DELAY puts the early ones back while the instance is busy; then come the late ones, then it is free."""
    talk.load(model)
    held = talk.hold(model)
    sent = talk.queue(model, *plain(early))
    threading.Event().wait(wait_s)
    sent += talk.queue(model, *plain(late))
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches(model)
    talk.stats(model)


@case("pri-06 DELAY: those in time go first, the others are not lost", rules=("2.5",))
def delay(talk: Talk) -> None:
    put_back(talk, "delay", "abc", 1.7, "d")


@case("pri-07 override: a smaller timeout counts, a larger one does not", rules=("2.4",))
def override(talk: Talk) -> None:
    behind(talk, "override", [Talk.body(id="a", timeout=200000), Talk.body(id="b", timeout=90000000)], wait="a")


@case("pri-08 override without a default timeout never applies", rules=("2.4",))
def override_without_default(talk: Talk) -> None:
    behind(talk, "no_default", plain("a", timeout=100000), wait_s=1.0)


@case("pri-09 without allow_timeout_override a request's timeout is ignored", rules=("2.4",))
def no_override(talk: Talk) -> None:
    behind(talk, "fixed", plain("a", timeout=100000), wait_s=1.0)


@case("pri-10 max_queue_size is exact; a refused request leaves no trace in the counts", rules=("2.6",))
def limit(talk: Talk) -> None:
    behind(talk, "limit", plain("abcde"), wait="de")


@case("pri-11 max_queue_size counts requests, not rows", rules=("2.6",))
def limit_of_requests(talk: Talk) -> None:
    behind(talk, "limit_rows", [Talk.body({"IN": [[1, 2]] * 3}, id=name) for name in "abcd"], wait="d")


@case("pri-12 what DELAY put back still counts in max_queue_size", rules=("2.5", "2.6"))
def delayed_count(talk: Talk) -> None:
    put_back(talk, "delay_limit", "ab", 1.0, "c")


@case("pri-13 a level's own policy, and the default policy for the others", rules=("2.3",))
def own_policy(talk: Talk) -> None:
    behind(talk, "own", asked(one=1, one_refused=1, two=2, two_b=2, two_refused=2, default_refused=0), wait="two two_b")


@case("pri-14 without levels priority_queue_policy is ignored", rules=("2.3",))
def unused_policy(talk: Talk) -> None:
    behind(talk, "unused", asked(a=1, b=1, c=1), wait="c")


@case("pri-15 without dynamic_batching a timeout and a priority do nothing", rules=("1.1",))
def no_batcher(talk: Talk) -> None:
    behind(talk, "none", [Talk.body(id="a", priority=2, timeout=1000), Talk.body(id="b", priority=1)], wait_s=0.7)


@case("pri-16 a level goes before the next one, with what DELAY put back in it", rules=("2.2", "2.5"))
def delayed_levels(talk: Talk) -> None:
    talk.load("delayed_levels")
    held = talk.hold("delayed_levels")
    sent = talk.queue("delayed_levels", *asked(late_two=2, late_one=1))
    threading.Event().wait(3.2)
    sent += talk.queue("delayed_levels", *asked(two=2, one=1))
    talk.release(held)
    talk.answers(held, *sent)
    talk.batches("delayed_levels")
    talk.stats("delayed_levels")


@case("pri-17 levels with timeouts of their own, one of which requests may shorten", rules=("2.3", "2.4"))
def own_timeouts(talk: Talk) -> None:
    queued = [
        Talk.body(id="a", priority=1), Talk.body(id="b", priority=2, timeout=300000),
        Talk.body(id="c", priority=2, timeout=0), Talk.body(id="d", timeout=100000),
        Talk.body(id="e", priority=1, timeout=100),
    ]  # fmt: skip
    behind(talk, "own_timeouts", queued, wait="abde")
    talk.metrics("own_timeouts")


@case("pri-18 settings that are refused, or taken although they look wrong: texts", rules=("2.1",))
def questionable(talk: Talk) -> None:
    for index in range(len(QUESTIONABLE)):
        talk.load(f"questionable{index:02}")


@case("pri-19 the largest numbers, and what is none: priority, timeout, id", rules=("2.1", "2.4"))
def largest_numbers(talk: Talk) -> None:
    talk.load("own_timeouts")
    for priority in (LARGEST, 2**63, 2**63 - 1, 2**70, None, [1], {}):
        talk.infer("own_timeouts", priority=priority)
    for timeout in (LARGEST, 2**63, 2**63 - 1, None):
        talk.infer("own_timeouts", timeout=timeout)
    for id in (5, {"a": 1}, [1], None):
        talk.call("POST", "/v2/models/own_timeouts/infer", talk.body() | {"id": id})
    talk.stats("own_timeouts")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
