"""How many requests a p99 claim needs, by MLPerf's early-stopping rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.profiling import Load, Point
from workbench.profiling.claims import allowed_over, claimable, requests_needed


def test_the_least_numbers_are_mlperfs() -> None:
    assert requests_needed(0.99) == 459  # 0.99^459 is the first power below 1 %
    assert requests_needed(0.99, over=1) == 662  # what LoadGen sets for MultiStream's p99
    assert requests_needed(0.9) == 44
    assert requests_needed(0.99, confidence=0.95) == 299


@pytest.mark.parametrize("over", [0, 1, 7, 60])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_it_is_the_first_n_that_the_binomial_tail_allows(q: float, over: int) -> None:
    def tail(n: int) -> float:  # at most ``over`` of n above the quantile itself
        return sum(math.comb(n, k) * (1 - q) ** k * q ** (n - k) for k in range(over + 1))

    n = requests_needed(q, over)
    assert tail(n) <= 0.01 < tail(n - 1)
    assert allowed_over(n, q) == over
    assert allowed_over(n - 1, q) == over - 1


def test_a_claim_is_wrong_as_rarely_as_it_says() -> None:
    truth = -math.log(0.01)
    wrong = 0
    rng = np.random.default_rng(4)
    for values in rng.exponential(size=(4000, 700)):
        wrong += claimable(np.sort(values), 0.99) < truth
    assert 0.002 <= wrong / 4000 <= 0.012
    assert math.isnan(claimable(np.arange(458.0), 0.99))
    assert claimable(np.arange(459.0), 0.99) == 458
    assert claimable(np.arange(662.0), 0.99) == 660
    assert math.isnan(claimable(np.arange(2000.0), 0.99, worth=400))


def test_what_makes_no_sense_is_refused() -> None:
    for bad in ({"q": 1.0}, {"over": -1}, {"confidence": 0.0}):
        with pytest.raises(InvalidRequest, match="between 0 and 1"):
            requests_needed(**bad)  # type: ignore[arg-type]


def point(n: int, **figures: float) -> Point:
    return Point(model="m", load=Load.closed(1), n=n, **figures)  # type: ignore[arg-type]


def test_a_points_claim_in_words() -> None:
    good = point(5000, p99_worth=5000.0, p99_ms=18.0, p99_low=17.0, p99_claimable_ms=19.0)
    assert good.claim(p99_ms=20)
    assert repr(good.claim(p99_ms=20)) == "p99 is at most 20 ms (99 % confidence, 5000 requests)"
    assert good.claim(p99_ms=18.5).verdict == "open"
    assert "too close to call" in good.claim(p99_ms=18.5).text
    assert good.claim(p99_ms=10).verdict == "broken"
    few = point(300, p99_worth=300.0, p99_ms=18.0, p99_low=17.0).claim(p99_ms=20)
    assert not few
    assert few.text == "p99 needs at least 459 requests, had 300"
    alike = point(5000, p99_worth=212.4, p99_ms=18.0, p99_low=17.0).claim(p99_ms=20)
    assert alike.text == (
        "p99 needs at least 459 requests, had 212 (5000, but their latencies are alike: worth 212 independent ones)"
    )
    assert (alike.needed, alike.had) == (459, 212)
