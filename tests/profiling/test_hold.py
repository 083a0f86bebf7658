"""Models held for a sweep: what is loaded when they are given back is looked at, and a loss is of one sweep."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from asking import wait_until

from workbench.errors import ConfigError, NotReady
from workbench.profiling.hold import Hold


class Desk:
    """A server with one configuration, which it puts back by itself when a lease is over."""

    def __init__(self) -> None:
        self.loaded = self.original = "as it was"
        self.held = ""
        self.over = False

    def lease(self, name: str, holder: Mapping[str, Any], ttl_s: float, /) -> str:
        self.held, self.over = name, False
        return "id"

    def renew_lease(self, name: str, lease: str, /) -> None:
        if self.over:
            raise NotReady(f"'{name}' is not yours any more")

    def release_lease(self, name: str, lease: str, /) -> None:
        if not self.over:
            self.loaded = self.original
        self.held = ""

    def configure(self, name: str, edits: Sequence[Any], /, *, lease: str) -> None:
        self.renew_lease(name, lease)
        self.loaded = edits[0]

    def lose(self, loaded: str) -> None:
        self.over, self.loaded = True, loaded


def held(desk: Desk) -> Hold:
    return Hold(desk, ttl_s=0.1, read=lambda model: desk.loaded)


def test_a_lease_that_was_lost_is_restored_where_the_server_has_put_it_back() -> None:
    desk = Desk()
    hold = held(desk)
    hold.configure("m", ["swept"])
    desk.lose(desk.original)
    wait_until(lambda: bool(hold.check()))
    hold.release("m")
    assert not desk.held


def test_what_somebody_else_has_loaded_after_a_loss_is_not_called_restored() -> None:
    desk = Desk()
    hold = held(desk)
    hold.configure("m", ["swept"])
    desk.lose("theirs")
    with pytest.raises(NotReady, match="what is loaded is not what was there"):
        hold.release("m")
    hold.release("m")  # it is let go
    assert desk.loaded == "theirs"


def test_what_cannot_be_put_back_is_left_to_the_server_and_not_held_for_ever() -> None:
    class Stubborn(Desk):
        def release_lease(self, name: str, lease: str, /) -> None:
            raise ConfigError("somebody sits on it")

    def signs_of_life() -> bool:
        return any(thread.name == "sweep-lease" for thread in threading.enumerate())

    hold = held(Stubborn())
    hold.configure("m", ["swept"])
    with pytest.raises(ConfigError):
        hold.release("m")
    assert signs_of_life(), "it can be tried again"
    hold.let_go()
    wait_until(lambda: not signs_of_life())


def test_a_loss_is_of_one_sweep() -> None:
    desk = Desk()
    hold = held(desk)
    hold.take(["m"])
    desk.lose(desk.original)
    wait_until(lambda: "not yours any more" in hold.check())
    hold.release("m")
    hold.take(["m"])
    assert hold.check() == ""
    hold.release("m")
