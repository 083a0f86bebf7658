"""The clock of another machine: what its stamps are by this machine's clock, and how well that is known.

Every machine counts CLOCK_MONOTONIC from a moment of its own. Round trips tell the difference: the other clock was read
after the question had left here and before the answer was here, so half the length of the round trip bounds the error,
however unequal the ways are (as in NTP, RFC 5905). The shortest of several round trips bounds it best. Read before and
after a run, the difference between is taken to change evenly; where it does, the larger of the two bounds holds for
every moment between, because the error there is a mean of the errors at the ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workbench.clock import Clock
from workbench.profiling.samples import Samples

TRIPS = 30
"""How many round trips are made each time, unless they take longer than ``LONGEST_NS``."""
LONGEST_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Trip:
    """One round trip, in ns: when it began and ended by the clock here, and what the other clock said in between."""

    begin: int
    there: int
    end: int


@dataclass(frozen=True, slots=True)
class Fix:
    """One moment by both clocks; its time ``here`` is at most ``uncertainty`` (ns) off."""

    here: int
    there: int
    uncertainty: int


def round_trips(read: Callable[[], int], clock: Clock, count: int = TRIPS) -> list[Trip]:
    """Reads another clock several times; at least once, and for no longer than a second.

    Args:
        read: asks the other machine for its time.
        clock: the clock here.
        count: how often.
    """
    trips: list[Trip] = []
    while not trips or (len(trips) < count and trips[-1].end - trips[0].begin < LONGEST_NS):
        begin = clock()
        there = read()
        trips.append(Trip(begin, there, clock()))
    return trips


def best_fix(trips: Sequence[Trip]) -> Fix:
    """What the shortest of some round trips tells."""
    trip = min(trips, key=lambda each: each.end - each.begin)
    length = trip.end - trip.begin
    return Fix(trip.begin + length // 2, trip.there, (length + 1) // 2)


@dataclass(frozen=True, slots=True)
class ClockMap:
    """From one clock to the other: by the fix before a run, and once it is there by the one after it, too."""

    before: Fix
    after: Fix | None = None

    @property
    def uncertainty_ns(self) -> int:
        """How far off a time from between the fixes is at most; after the only one, what drifts comes on top."""
        return max(fix.uncertainty for fix in (self.before, self.after) if fix is not None)

    @property
    def drift(self) -> float:
        """How much faster the clock here is than the one there: seconds a second."""
        before, after = self.before, self.after
        if after is None or after.there <= before.there:
            return 0.0
        return (after.here - before.here) / (after.there - before.there) - 1

    def here(self, there: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the other clock, int64 ns, by the clock here."""
        since = there - self.before.there
        # The drift is added to whole nanoseconds: times as floats would lose some after a few weeks.
        mapped: NDArray[np.int64] = self.before.here + since + np.rint(since * self.drift).astype(np.int64)
        return mapped

    def there(self, here: int) -> int:
        """A time of the clock here by the other clock."""
        since = here - self.before.here
        return self.before.there + since - round(since * self.drift / (1 + self.drift))


def moved(samples: Samples, clocks: ClockMap) -> Samples:
    """Samples of another machine with stamps of the clock here.

    Each request is moved as a whole, by when it was scheduled: what its generator has measured between its stamps
    stays as measured. Stamps of 0 (never) stay 0.
    """
    scheduled = clocks.here(samples.scheduled)
    by = scheduled - samples.scheduled
    begin, end = clocks.here(np.array(samples.window, np.int64)).tolist()
    return replace(
        samples,
        scheduled=scheduled,
        sent=np.where(samples.sent > 0, samples.sent + by, 0),
        done=np.where(samples.done > 0, samples.done + by, 0),
        response_at=samples.response_at + by[samples.response_of],
        window=(begin, end),
    )
