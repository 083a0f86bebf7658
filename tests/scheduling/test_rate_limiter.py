"""The rate limiter rule by rule ("4.1" is a number of the reference), and its invariants in random histories.

Without a test: 4.2's requests for a certain instance before those for any (late binding has only the former).
"""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from google.protobuf import text_format
from histories import HISTORIES
from tritonclient.grpc import model_config_pb2 as pb

from workbench.errors import ConfigError, InvalidRequest
from workbench.scheduling import (
    NestedCall,
    RateLimiter,
    ResourceLimit,
    ResourceNeed,
    parse_resource_limit,
    rate_limiter_needs,
    wait_cycle,
    wait_report,
)
from workbench.scheduling.rate_limiter import PATIENCE

S = 1_000_000_000


def limiter(*instances: tuple[str, dict[str, int], int], limits: tuple[ResourceLimit, ...] = ()) -> RateLimiter:
    """Instances as (key, needs of global resources, priority)."""
    made = RateLimiter(limits)
    for key, needs, priority in instances:
        made.register(key, [ResourceNeed(name, count) for name, count in needs.items()], priority, key)
    return made


def turns(arbiter: RateLimiter, keys: list[str], count: int) -> list[Hashable]:
    """Everybody always has work: who gets the turns."""
    got: list[Hashable] = []
    queue: list[Hashable] = []
    for key in keys:
        queue += arbiter.stage(key, 0)
    while len(got) < count:
        key = queue.pop(0)
        got.append(key)
        queue += arbiter.release(key, again=0)
    return got


# ---- 4.1


@pytest.mark.rule("4.1a")
def test_4_1_switched_off_resources_and_priorities_are_ignored() -> None:
    arbiter = RateLimiter([ResourceLimit("R", 0)], enabled=False)
    for key in ("a", "b"):
        arbiter.register(key, [ResourceNeed("R", 5)])
        assert arbiter.stage(key, 0) == [key]


@pytest.mark.rule("4.1c")
@pytest.mark.parametrize(("text", "limit"), [("R1:10", ResourceLimit("R1", 10)), ("R2:5:0", ResourceLimit("R2", 5, 0))])
def test_4_1_the_option_is_read(text: str, limit: ResourceLimit) -> None:
    assert parse_resource_limit(text) == limit


@pytest.mark.rule("4.1c")
@pytest.mark.parametrize("text", ["R1", "R1:x", "R1:1:2:3", "R1:1:gpu", ""])
def test_4_1_another_form_of_the_option_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_resource_limit(text)
    assert raised.value.message == (
        "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
        f"Got {text}"
    )


# ---- 4.2


@pytest.mark.rule("4.2a")
def test_4_2_needs_and_priority_are_read_from_the_instance_group() -> None:
    text = """rate_limiter { priority: 2 resources [ { name: "A" count: 3 }, { name: "B" global: true count: 1 } ] }"""
    group = text_format.Parse(text, pb.ModelInstanceGroup())
    assert rate_limiter_needs(group, 1) == ((ResourceNeed("A", 3, 1), ResourceNeed("B", 1, None)), 2)


@pytest.mark.rule("4.2b")
def test_4_2_priority_2_gets_half_the_turns_of_priority_1() -> None:
    """tritonserver 2.51, both always with work: 60 against 30 in 90 turns."""
    arbiter = limiter(("one", {"R": 1}, 1), ("two", {"R": 1}, 2))
    got = turns(arbiter, ["one", "two"], 90)
    assert abs(got.count("one") - 60) <= 1


@pytest.mark.rule("4.2a")
def test_4_2_priority_0_is_1() -> None:
    arbiter = limiter(("zero", {"R": 1}, 0), ("one", {"R": 1}, 1))
    assert abs(turns(arbiter, ["zero", "one"], 100).count("zero") - 50) <= 1


def test_4_2_among_equals_the_one_that_waits_longest_is_first() -> None:
    arbiter = limiter(*[(key, {"R": 1}, 1) for key in "abc"])
    assert arbiter.stage("c", 0) == ["c"]
    assert arbiter.stage("b", 1) == arbiter.stage("a", 2) == []
    assert arbiter.release("c") == ["b"]
    assert arbiter.release("b") == ["a"]


def test_4_2_a_turn_without_a_batch_is_not_counted() -> None:
    arbiter = limiter(("a", {"R": 1}, 1), ("b", {"R": 1}, 1))
    arbiter.stage("a", 0)
    arbiter.stage("b", 0)
    assert arbiter.release("a", executed=False) == ["b"]
    assert (arbiter.executions("a"), arbiter.is_holding("b")) == (0, True)


# ---- 4.3


@pytest.mark.rule("4.3b", "4.3c")
def test_4_3_all_resources_are_taken_at_once_or_none() -> None:
    arbiter = limiter(("a", {"R": 1}, 1), ("b", {"R": 1, "Q": 1}, 1))
    assert arbiter.stage("a", 0) == ["a"]
    assert arbiter.stage("b", 0) == []
    assert arbiter.free((None, "Q")) == 1
    assert arbiter.release("a") == ["b"]
    assert (arbiter.free((None, "R")), arbiter.free((None, "Q"))) == (0, 0)


@pytest.mark.rule("4.3a")
def test_4_3_what_is_first_keeps_what_it_lacks_from_those_behind() -> None:
    """Triton's head-of-line rule, where it serves a purpose: a big one is not starved by small ones."""
    arbiter = limiter(("big", {"R": 3}, 1), *[(f"small{n}", {"R": 1}, 1) for n in range(3)])
    arbiter.stage("small0", 0)
    assert arbiter.stage("big", 0) == []
    assert arbiter.stage("small1", 0) == []
    assert arbiter.release("small0") == ["big"]
    assert arbiter.release("big") == ["small1"]


def test_4_3_f24_a_model_without_resources_never_waits() -> None:
    arbiter = limiter(("B", {"R": 1}, 2), ("C", {"R": 1}, 1), ("A", {}, 1))
    assert arbiter.stage("B", 0) == ["B"]
    assert arbiter.stage("C", 0) == []
    assert arbiter.stage("A", 0) == ["A"], "B calls A while C waits"
    assert arbiter.release("A") == []
    assert arbiter.release("B") == ["C"], "B ends, then C runs"


def test_4_3_f24_nor_does_one_whose_resources_are_free() -> None:
    arbiter = limiter(("B", {"R": 1}, 2), ("C", {"R": 1, "Q": 1}, 1), ("A", {"Q": 1}, 1))
    arbiter.stage("B", 0)
    arbiter.stage("C", 0)
    assert arbiter.stage("A", 0) == ["A"]


def test_4_3_one_that_many_have_overtaken_is_next() -> None:
    arbiter = limiter(("hold", {"R": 1}, 1), ("both", {"R": 1, "Q": 1}, 1), ("q", {"Q": 1}, 1))
    arbiter.stage("hold", 0)
    arbiter.stage("both", 0)
    for _ in range(PATIENCE):
        assert arbiter.stage("q", 0) == ["q"]
        arbiter.release("q")
    assert arbiter.stage("q", 0) == []
    assert arbiter.release("hold") == ["both"]
    assert arbiter.release("both") == ["q"]


def test_4_3_an_urgent_nested_call_gets_even_what_is_kept_for_others() -> None:
    arbiter = limiter(("B", {"R": 1}, 1), ("C", {"R": 1, "Q": 1}, 1), ("A", {"Q": 1}, 1))
    arbiter.stage("B", 0)
    arbiter.stage("C", 0)
    for _ in range(PATIENCE):
        assert arbiter.stage("A", 0) == ["A"]
        arbiter.release("A")
    assert arbiter.stage("A", 0) == []
    assert arbiter.stage("A", 0, urgent=True) == ["A"]


# ---- 4.4


@pytest.mark.rule("4.4a")
def test_4_4_an_undeclared_resource_is_as_much_as_the_greatest_need() -> None:
    arbiter = limiter(("a", {"R": 2}, 1), ("b", {"R": 5}, 1))
    assert arbiter.capacity == {(None, "R"): 5}
    arbiter.unregister("b")
    assert arbiter.capacity == {(None, "R"): 2}


@pytest.mark.rule("4.4b")
def test_4_4_a_declared_limit_that_is_too_small_fails_the_load() -> None:
    arbiter = RateLimiter([ResourceLimit("R", 3)])
    with pytest.raises(ConfigError) as raised:
        arbiter.register("a", [ResourceNeed("R", 4)])
    assert raised.value.message == (
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 4"
    )
    assert arbiter.register("a", [ResourceNeed("R", 3)]) == []


def test_4_4_beside_declared_limits_an_undeclared_resource_is_not_there() -> None:
    """As tritonserver 2.51 says at the load of such a model."""
    arbiter = RateLimiter([ResourceLimit("Q", 3)])
    with pytest.raises(ConfigError, match='"R" is limited to 0'):
        arbiter.register("a", [ResourceNeed("R", 1)])


def test_4_4_declared_limits_hold_for_a_device_for_each_device_and_for_global_resources() -> None:
    arbiter = RateLimiter([ResourceLimit("R", 2), ResourceLimit("R", 5, 1), ResourceLimit("G", 4, 3)])
    arbiter.register("gpu0", [ResourceNeed("R", 1, 0)])
    arbiter.register("gpu1", [ResourceNeed("R", 1, 1)])
    arbiter.register("any", [ResourceNeed("G", 1)])
    assert arbiter.capacity == {(0, "R"): 2, (1, "R"): 5, (None, "G"): 4}


def test_4_4_resources_of_two_devices_are_two() -> None:
    arbiter = RateLimiter()
    for device in (0, 1):
        arbiter.register(device, [ResourceNeed("R", 1, device)])
        assert arbiter.stage(device, 0) == [device]


@pytest.mark.rule("4.4c")
def test_4_4_one_name_may_not_be_both_global_and_of_a_device() -> None:
    arbiter = RateLimiter()
    arbiter.register("a", [ResourceNeed("R", 1)])
    with pytest.raises(ConfigError) as raised:
        arbiter.register("b", [ResourceNeed("R", 1, 0)])
    assert raised.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )
    assert arbiter.capacity == {(None, "R"): 1}


# ---- leaving, looking


def test_an_instance_that_goes_gives_back_what_it_holds() -> None:
    arbiter = limiter(("a", {"R": 1}, 1), ("b", {"R": 1}, 1))
    arbiter.stage("a", 0)
    arbiter.stage("b", 0)
    assert arbiter.unregister("a") == ["b"]


def test_one_that_has_no_work_any_more_stands_in_nobodys_way() -> None:
    arbiter = limiter(("small", {"R": 1}, 1), ("big", {"R": 2}, 1), ("other", {"R": 1}, 1))
    arbiter.stage("small", 0)
    arbiter.stage("big", 0)
    assert arbiter.stage("other", 0) == []
    assert arbiter.unstage("big") == ["other"]
    assert arbiter.unstage("big") == []


def test_giving_back_what_is_not_held_is_an_error() -> None:
    arbiter = limiter(("a", {"R": 1}, 1))
    with pytest.raises(ValueError, match="has not been granted"):
        arbiter.release("a")
    with pytest.raises(ValueError, match="registered already"):
        arbiter.register("a")


def test_f24_the_watchdog_names_who_waits_for_whom() -> None:
    arbiter = limiter(("B", {"R": 1}, 2), ("C", {"R": 1}, 1), ("A", {}, 1))
    arbiter.stage("B", 0)
    arbiter.stage("C", 5)
    call = NestedCall("B", "A", 10)
    assert wait_report(arbiter, [call], 10 + S, after=2 * S) is None
    assert wait_report(arbiter, [call], 10 + 2 * S, after=2 * S) == "B waits for A; C waits for R held by B"
    (wait,) = arbiter.waits()
    assert (wait.key, wait.since, wait.needed, wait.free, wait.held_by, wait.kept_for) == ("C", 5, 1, 0, ("B",), ())
    assert wait_cycle(arbiter, [call]) is None


def test_a_call_to_a_model_that_needs_what_the_caller_holds_is_a_circle() -> None:
    arbiter = limiter(("B", {"R": 1}, 1), ("A", {"R": 1}, 1))
    arbiter.stage("B", 0)
    arbiter.stage("A", 0)
    call = NestedCall("B", "A", 0)
    assert wait_cycle(arbiter, [call]) == ["A", "B", "A"]
    assert wait_report(arbiter, [call], S, after=S) == "B waits for A; A waits for R held by B"


def test_the_report_says_for_whom_a_resource_is_kept_and_of_which_device() -> None:
    arbiter = RateLimiter([ResourceLimit("R", 3)])
    for key, count in (("small", 1), ("big", 3), ("late", 1)):
        arbiter.register(key, [ResourceNeed("R", count, 0)], label=key)
        arbiter.stage(key, 0)
    arbiter.register("free", label="free")
    text = wait_report(arbiter, [NestedCall("small", "free", 0)], S, after=S)
    assert text == (
        "small waits for free; big waits for R of device 0 held by small; late waits for R of device 0 held by small"
    )
    assert arbiter.waits()[1].kept_for == ("big",)


# ---- random histories


class Books:
    """Plays a history and keeps its own books of who holds and waits."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        names = ["R", "Q", "P"][: chance.randint(1, 3)]
        self.limits = [ResourceLimit(name, 8) for name in names] if chance.random() < 0.5 else []
        self.arbiter = RateLimiter(self.limits)
        self.needs: dict[int, dict[str, int]] = {}
        self.priority: dict[int, int] = {}
        self.done: dict[int, int] = {}
        for key in range(chance.randint(1, 8)):
            chosen = chance.sample(names, chance.randint(0, len(names)))
            self.needs[key] = {name: chance.randint(1, 5) for name in chosen}
            self.priority[key] = chance.randint(1, 3)
            self.done[key] = 0
            needs = [ResourceNeed(name, count) for name, count in self.needs[key].items()]
            self.arbiter.register(key, needs, self.priority[key])
        self.holding: list[int] = []
        self.staged: list[int] = []
        self.passed: dict[int, int] = {}

    def capacity(self, name: str) -> int:
        if self.limits:
            return 8
        return max((needs.get(name, 0) for needs in self.needs.values()), default=0)

    def free(self, name: str) -> int:
        return self.capacity(name) - sum(self.needs[key].get(name, 0) for key in self.holding)

    def take(self, granted: list[Hashable]) -> None:
        for key in granted:
            assert isinstance(key, int)
            assert key in self.staged
            assert key not in self.holding
            self.staged.remove(key)
            self.holding.append(key)
            self.passed.pop(key, None)
            for name in self.needs[key]:
                assert self.free(name) >= 0, "more is given than there is"
            rank = (self.done[key] * self.priority[key],)
            for other in self.staged:
                shared = set(self.needs[other]) & set(self.needs[key])
                if shared and (self.done[other] * self.priority[other],) < rank:
                    self.passed[other] = self.passed.get(other, 0) + 1
                    assert self.passed[other] <= PATIENCE, "overtaken without end"
        for key in self.staged:
            assert self.needs[key], "it needs nothing and waits"
        if self.staged:
            first = min(self.staged, key=lambda key: self.done[key] * self.priority[key])
            level = self.done[first] * self.priority[first]
            tied = [key for key in self.staged if self.done[key] * self.priority[key] == level]
            assert any(any(self.free(name) < count for name, count in self.needs[key].items()) for key in tied), (
                "the first in line waits for nothing"
            )

    def play(self, length: int) -> None:
        for now in range(length):
            idle = [key for key in self.needs if key not in self.holding and key not in self.staged]
            if idle and self.chance.random() < 0.6:
                key = self.chance.choice(idle)
                self.staged.append(key)
                self.take(self.arbiter.stage(key, now))
            elif self.staged and self.chance.random() < 0.1:
                key = self.chance.choice(self.staged)
                self.staged.remove(key)
                self.passed.pop(key, None)
                self.take(self.arbiter.unstage(key))
            elif self.holding:
                self.finish(
                    self.chance.choice(self.holding),
                    self.chance.random() < 0.9,
                    again=self.chance.random() < 0.4,
                )
        while self.holding:
            self.finish(self.holding[0], True)
        assert not self.staged, "somebody waits though nobody holds anything"
        for name in ("R", "Q", "P"):
            assert self.arbiter.free((None, name)) == self.arbiter.capacity.get((None, name), 0)

    def finish(self, key: int, executed: bool, *, again: bool = False) -> None:
        self.holding.remove(key)
        self.done[key] += executed
        if again:
            self.staged.append(key)
        self.take(self.arbiter.release(key, executed=executed, again=0 if again else None))


def play_seed(seed: int) -> None:
    try:
        Books(random.Random(seed)).play(200)
    except AssertionError as error:
        raise AssertionError(f"history of seed {seed}: {error}") from error


def test_random_histories_give_no_more_than_there_is_and_starve_nobody() -> None:
    for seed in range(200):
        play_seed(seed)


@pytest.mark.full
@pytest.mark.soak
def test_a_thousand_random_histories_of_the_rate_limiter() -> None:
    for seed in range(10_000, 10_000 + HISTORIES):
        play_seed(seed)


@pytest.mark.rule("4.2b", "4.3a")
def test_with_one_shared_resource_the_order_is_tritons() -> None:
    """Everybody needs all of it: then head-of-line and our rule are the same."""
    for seed in range(50):
        chance = random.Random(seed)
        priorities = {key: chance.randint(1, 4) for key in range(4)}
        arbiter = RateLimiter()
        for key, priority in priorities.items():
            arbiter.register(key, [ResourceNeed("R", 1)], priority)
        done = dict.fromkeys(priorities, 0)
        order: dict[int, int] = {}
        running: list[int] = []
        for tick in range(200):
            idle = [key for key in priorities if key not in order and key not in running]
            if idle and chance.random() < 0.7:
                key = chance.choice(idle)
                order[key] = tick
                granted = arbiter.stage(key, tick)
            elif running:
                done[running[0]] += 1
                granted = arbiter.release(running.pop())
            else:
                continue
            expected = []
            if not running and order:
                expected = [min(order, key=lambda key: (done[key] * priorities[key], order[key]))]
            assert granted == expected
            for key in expected:
                del order[key]
                running.append(key)
