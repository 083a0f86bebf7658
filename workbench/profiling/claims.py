"""How many requests it takes to claim a percentile, by MLPerf's early-stopping rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.profiling.distributions import incomplete_beta

CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether a percentile holds a goal: ``holds``, ``broken`` or ``open`` (too few requests to say), in words.

    ``needed`` is the least number of requests for the claim, given how many took longer; ``had`` how many there were,
    counted as what they are worth when they depend on each other.
    """

    verdict: Literal["holds", "broken", "open"]
    text: str
    needed: int
    had: int

    def __bool__(self) -> bool:
        return self.verdict == "holds"

    def __repr__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def requests_needed(q: float = 0.99, over: int = 0, confidence: float = CONFIDENCE) -> int:
    """How many requests the claim "the q-quantile is at most the goal" needs when ``over`` of them took longer.

    MLPerf's rule (inference rules, early stopping): with t over the goal, the smallest h with I_q(h, t + 1) <= 1 -
    confidence must have been within it, so n = h + t. With q = 0.99 and confidence 0.99: 459 when none took longer, 662
    when one did.

    Raises:
        InvalidRequest: q or confidence is not between 0 and 1, ``over`` is negative.
    """
    if not (0 < q < 1 and 0 < confidence < 1 and over >= 0):
        raise InvalidRequest(f"q and confidence lie between 0 and 1, over is at least 0: got {q}, {confidence}, {over}")
    low, high = 0, max(1, over)
    while incomplete_beta(high, over + 1, q) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if incomplete_beta(middle, over + 1, q) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high + over


def claimable(ordered: NDArray[np.float64], q: float, worth: float = math.inf, confidence: float = CONFIDENCE) -> float:
    """The lowest goal that the q-quantile is shown to hold (MLPerf's early-stopping estimate); nan for too few.

    As many of the highest values are left out as the rule allows to be over the goal; the next one is the goal.

    Args:
        ordered: latencies, ascending.
        q: the quantile.
        worth: how many independent values they are worth; all, unless told otherwise.
        confidence: of the claim.
    """
    n = len(ordered)
    had = min(n, int(worth)) if math.isfinite(worth) else n
    over = allowed_over(had, q, confidence)
    if over < 0:
        return math.nan
    # Of fewer independent values the same share may be over.
    left_out = int(over * n / had)
    return float(ordered[n - 1 - left_out])


def allowed_over(n: int, q: float, confidence: float = CONFIDENCE) -> int:
    """How many of n requests may take longer than a goal that is claimed; -1 when n is too few for any claim."""
    if n < requests_needed(q, 0, confidence):
        return -1
    low, high = 0, max(1, int(n * (1 - q)) + 1)  # more than the share itself are never allowed
    while high - low > 1:
        middle = (low + high) // 2
        if requests_needed(q, middle, confidence) <= n:
            low = middle
        else:
            high = middle
    return low


def too_few(n: int, worth: float, q: float = 0.99) -> str:
    """The sentence about a percentile that rests on too few requests; empty when there are enough."""
    needed = requests_needed(q)
    had = _had(n, worth)
    if had >= needed:
        return ""
    alike = f" ({n}, but their latencies are alike: worth {had} independent ones)" if had < n else ""
    return f"p{100 * q:g} needs at least {needed} requests, had {had}{alike}"


def claim_of(goal_ms: float, n: int, worth: float, p99: tuple[float, float], claimable_ms: float) -> Claim:
    """The claim that p99 is at most a goal.

    Args:
        goal_ms: the goal.
        n: requests.
        worth: how many independent ones they are worth.
        p99: the figure and the low end of its 95 % interval, ms.
        claimable_ms: what ``claimable`` gave.
    """
    needed, had = requests_needed(), _had(n, worth)
    figure, low = p99
    if claimable_ms <= goal_ms:
        return Claim("holds", f"p99 is at most {goal_ms:g} ms (99 % confidence, {had} requests)", needed, had)
    if low > goal_ms or (math.isnan(low) and figure > goal_ms and had >= needed):
        return Claim("broken", f"p99 is above {goal_ms:g} ms: {figure:.2f} ms, at least {low:.2f}", needed, had)
    few = too_few(n, worth)
    if few:
        return Claim("open", few, needed, had)
    text = f"too close to call: p99 is {figure:.2f} ms, and at most {claimable_ms:.2f} ms with 99 % confidence; "
    return Claim("open", f"{text}more requests may show that it is at most {goal_ms:g} ms", needed, had)


def _had(n: int, worth: float) -> int:
    return n if math.isnan(worth) else min(n, int(worth))
