"""Memory that connections share: what is asked for, given up and asked for anew."""

from __future__ import annotations

from workbench.server.budget import Bodies, Budget, Share


class Body:
    """What a part is for."""

    held = 0


def test_what_was_given_up_is_not_granted_in_place_of_what_is_asked_for_now() -> None:
    budget: Budget[Share] = Budget(100)
    grants: list[str] = []
    other, share = Share(budget, lambda: grants.append("other")), Share(budget, lambda: grants.append("share"))
    first, second, third = Body(), Body(), Body()
    assert not other.reserve(first, 100)
    assert share.reserve(second, 80)
    share.whole(second, 80)  # it came with what was read before it could be told to wait
    assert share.reserve(third, 50)
    other.give_back(first)
    assert grants == ["other", "share"]
    assert (share.reserved, budget.used) == (50, 50)
    share.give_back(third)
    assert (share.reserved, budget.used) == (0, 0)


class Unpacking:
    """Bodies that unpack, in the order in which they may."""

    def __init__(self, size: int) -> None:
        self.bodies = Bodies(size)
        self.begun: list[str] = []
        self.made: dict[str, Body] = {}

    def ask(self, name: str, most: int) -> Body:
        made = self.made[name] = Body()
        self.bodies.unpack(made, most, lambda: self.begun.append(name))
        return made


def test_what_bodies_unpack_to_is_given_room_in_turn() -> None:
    all = Unpacking(100)
    first, second, third = all.ask("first", 60), all.ask("second", 60), all.ask("third", 10)
    assert all.begun == ["first"]
    all.bodies.unpacked(first, 30)
    assert all.begun == ["first", "second", "third"]
    assert all.bodies.used == 100
    fourth, fifth = all.ask("fourth", 10), all.ask("fifth", 10)
    all.bodies.let_go(fourth)  # its client has left
    all.bodies.let_go(third)
    assert all.begun[3:] == ["fifth"]
    for each in (first, second, fifth):
        all.bodies.let_go(each)
    assert all.bodies.used == 0


def test_packed_bodies_that_fill_all_the_memory_do_not_wait_for_each_other() -> None:
    all = Unpacking(100)
    shares = [Share(all.bodies, lambda: None) for _ in range(2)]
    bodies = [Body() for _ in shares]
    for share, body in zip(shares, bodies, strict=True):
        assert not share.reserve(body, 50)
    first, second = all.ask("first", 80), all.ask("second", 80)
    assert all.begun == ["first"], "one is gone on with, whatever there is"
    all.bodies.unpacked(first, 80)
    all.bodies.let_go(first)
    shares[0].give_back(bodies[0])
    assert all.begun == ["first", "second"]
    late = Share(all.bodies, lambda: all.begun.append("late"))
    assert late.reserve(Body(), 30)
    all.bodies.let_go(second)
    assert all.begun[2:] == ["late"], "what comes waits for what is unpacked, too"


def test_thousands_of_packed_bodies_that_are_given_up_when_their_turn_comes() -> None:
    """As they are when the server stops."""
    bodies, given_up = Bodies(100), []
    first = Body()
    bodies.unpack(first, 100, lambda: None)

    def give_up(body: Body) -> None:
        given_up.append(body)
        bodies.let_go(body)

    others = [Body() for _ in range(3000)]
    for each in others:
        bodies.unpack(each, 100, lambda each=each: give_up(each))  # type: ignore[misc]
    assert not given_up
    bodies.let_go(first)
    assert (given_up, bodies.used) == (others, 0)
