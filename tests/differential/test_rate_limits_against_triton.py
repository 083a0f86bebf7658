"""The rate limiter on both sides with declared limits: what loads, what is refused in which words, who waits."""

from __future__ import annotations

from pathlib import Path

from harness import HEAVY, Case, Sides, Talk, Topic
from models import put
from turns import TURNS, begin, forget, turns, waits, waits_for

pytestmark = HEAVY
LIMITS = ("R:2", "D:1", "G:3:0", "Z:0")
TOPIC = Topic(
    "limit",
    "Rate limiter, declared limits",
    (
        "--disable-auto-complete-config",
        "--rate-limit=execution_count",
        *(f"--rate-limit-resource={limit}" for limit in LIMITS),
    ),
)
case = TOPIC.case


def resource(name: str, count: int, everywhere: bool = True) -> str:
    return f'resources {{ name: "{name}" count: {count} {"global: true" if everywhere else ""} }} '


def build(root: Path) -> None:
    def add(name: str, needs: str, count: int = 1, extra: str = "") -> None:
        limiter = f"instance_group {{ kind: KIND_CPU count: {count} rate_limiter {{ {needs} }} }}\n"
        put(root, name, limiter + extra, size=1, count=0, source=TURNS)

    add("one", resource("R", 1), 3)
    add("other", resource("R", 1))
    add("two", resource("R", 2))
    add("three", resource("R", 3))
    add("unknown", resource("Q", 1))
    add("none", resource("Z", 1))
    add("nothing", resource("R", 0))
    add("device", resource("D", 1, False), 2)
    add("device_two", resource("D", 2, False))
    add("local_r", resource("R", 1, False))
    add("global_d", resource("D", 1))
    add("numbered", resource("G", 3, False))
    add("numbered_global", resource("G", 3))
    add("numbered_too", resource("G", 4, False))
    add("several", resource("R", 1) + resource("D", 1, False) + resource("R", 3))
    add("both", resource("R", 2) + resource("Q", 2))
    add("plain", "")
    add("again", resource("R", 1))
    for name in ("step_a", "step_b"):
        add(name, resource("R", 2))
    io = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 } output { name: "OUT" data_type: TYPE_FP32 dims: 2 }'
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "IN" value: "{source}" }} '
        f'output_map {{ key: "OUT" value: "{target}" }} }}'
        for name, source, target in (("step_a", "IN", "t"), ("step_b", "t", "OUT"))
    )
    (root / "chain" / "1").mkdir(parents=True)
    (root / "chain" / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 1\n{io}\nensemble_scheduling {{ {steps} }}\n'
    )


@case("limit-01 as many run together as the limit allows", rules=("4.1", "4.2"))
def together(talk: Talk) -> None:
    forget(talk)
    talk.load("one")
    held = [talk.hold("one", id) for id in ("h0", "h1")]
    sent = talk.send("one", talk.body(id="third"))
    waits(talk, "one", sent)
    talk.release(held[0])
    talk.answers(held[0], sent)
    talk.release(held[1])
    talk.answers(held[1])
    talk.stats("one")


@case("limit-02 across models: one that needs all waits for all", rules=("4.2", "4.3"))
def across(talk: Talk) -> None:
    begin(talk, "one", "other", "two")
    waits_for(talk, "two", "all", talk.hold("one", "h0"), talk.hold("other", "h1"))


@case("limit-03 more than the limit is refused at load; what is loaded serves on", rules=("4.4",))
def too_much(talk: Talk) -> None:
    talk.load("one")
    talk.load("three")
    talk.infer("one")
    talk.infer("three")


@case("limit-04 a resource that is not declared, one of which there is none, one that is not needed", rules=("4.4",))
def undeclared(talk: Talk) -> None:
    for model in ("unknown", "none", "nothing", "plain"):
        talk.load(model)
        talk.infer(model)


@case("limit-05 a limit without device holds for every device, and globally", rules=("4.1", "4.4"))
def per_device(talk: Talk) -> None:
    begin(talk, "device")
    waits_for(talk, "device", "second", talk.hold("device", "h0"))
    talk.load("device_two")
    talk.unload("device")
    talk.load("global_d")
    talk.load("local_r")
    talk.infer("local_r")


@case("limit-06 a limit of one device", rules=("4.1", "4.4"))
def numbered(talk: Talk) -> None:
    talk.load("numbered")
    talk.infer("numbered")
    talk.load("numbered_too")
    talk.unload("numbered")
    talk.load("numbered_global")
    talk.infer("numbered_global")


@case("limit-07 several resources: the first that does not suffice is named", rules=("4.4",))
def several(talk: Talk) -> None:
    talk.load("several")
    talk.load("both")


@case("limit-08 a need that was refused does not count any more", rules=("4.4",))
def refused_then_good(talk: Talk) -> None:
    talk.load("three")
    talk.load("again")
    talk.infer("again")
    config = (talk.root / "again" / "config.pbtxt").read_text()
    (talk.root / "again" / "config.pbtxt").write_text(config.replace("count: 1 global", "count: 3 global"))
    talk.load("again")
    talk.infer("again")
    (talk.root / "again" / "config.pbtxt").write_text(config)
    talk.load("again")
    talk.infer("again")


@case("limit-09 steps of an ensemble take and give back one after the other", rules=("4.3", "5.2"))
def ensemble(talk: Talk) -> None:
    forget(talk)
    talk.load("chain")
    talk.load("other")
    held = talk.hold("other")
    sent = talk.send("chain", talk.body(id="through"))
    waits(talk, "step_a", sent)
    talk.release(held)
    talk.answers(held, sent)
    talk.note("turns", turns(talk))


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
