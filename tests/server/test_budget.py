"""Memory that connections share: what is asked for, given up and asked for anew."""

from __future__ import annotations

from workbench.server.budget import Budget, Share


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
