"""Which of the requests that wait leave together, and why: the decision of Triton's ``GetDynamicBatch``.

The pass goes through the queue in order, never skips a request and never splits one. It stops at the first that
would not fit into ``max_batch_size``, or has other shapes or another set of optional inputs; on its way it remembers
the largest preferred size that it could reach. Then:

1. a preferred size was reached (or the next request would go beyond the largest one) and the delay of the oldest is not
   over: exactly that much leaves; the rest waits;
2. the pass was stopped, or the largest preferred size is reached: all that it gathered leaves;
3. the delay is over, or none is set: all that it gathered leaves;
4. otherwise nothing leaves before the oldest has waited for ``max_queue_delay_microseconds``.

Source: ``dynamic_batch_scheduler.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.scheduling.interface import Item, Reason
from workbench.scheduling.settings import BatcherSettings


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that the decision needs: sizes in rows, the delay in ns."""

    max_rows: int
    preferred: frozenset[int]
    max_preferred: int
    delay: int

    @classmethod
    def of(cls, settings: BatcherSettings) -> Rules:
        """The rules that follow from a model's settings."""
        preferred = frozenset(settings.effective_preferred_sizes)
        delay = settings.max_queue_delay_microseconds * 1000
        return cls(settings.max_rows, preferred, max(preferred, default=0), delay)


@dataclass(slots=True)
class Cut:
    """What was decided: ``items`` leave for ``reason``, or, if ``hold`` is set, nothing leaves before then (ns).

    ``until`` is the last time (ns) at which the decision would be the same, whatever comes behind what waits now; 0
    where an arrival could change it.
    """

    items: list[Item]
    rows: int
    reason: Reason
    hold: int | None = None
    until: int = 0


ALWAYS = 2**63 - 1
"""A decision's ``until`` that no time ends."""


def decide(items: Iterator[Item], rules: Rules, now: int, *, oldest_first: bool, draining: bool) -> Cut:
    """Passes over what waits and decides what leaves.

    Args:
        items: what waits, in order; at least one.
        rules: the settings in force.
        now: in ns.
        oldest_first: the first item is the one that waits longest; the pass may then end sooner.
        draining: nothing is held.
    """
    preferred, max_preferred, max_rows, delay = rules.preferred, rules.max_preferred, rules.max_rows, rules.delay
    first = next(items)
    pending, rows, oldest = [first], first.rows, first.enqueued
    shape, inputs = first.shape_key, first.input_set
    best, best_rows = (1, rows) if rows in preferred else (0, 0)
    stop: Reason | None = None
    closed = False
    # Beyond the largest preferred size nothing can change any more if the delay is known not to be over.
    only_best = oldest_first and not (delay and now - oldest >= delay)
    for item in items:
        total = rows + item.rows
        if total > max_preferred:
            if not best:
                best, best_rows = len(pending), rows
            if only_best:
                closed = True
                break
        if total > max_rows:
            stop = "full"
            break
        if item.input_set != inputs:
            stop = "inputs"
            break
        if item.shape_key != shape:
            stop = "shapes"
            break
        pending.append(item)
        rows = total
        if item.enqueued < oldest:
            oldest = item.enqueued
        if rows in preferred:
            best, best_rows = len(pending), rows
    exceeded = bool(delay) and now - oldest >= delay
    whole = rows >= max_rows
    closed = closed or whole or stop is not None
    if best and not exceeded:
        reason: Reason = "preferred" if best_rows in preferred and best_rows < max_preferred else "full"
        same = not delay or (whole and best == len(pending) and reason == "full")
        ends = ALWAYS if same else oldest + delay - 1
        return Cut(pending[:best], best_rows, reason, until=ends if closed or rows >= max_preferred else 0)
    cut = Cut(pending, rows, stop or "full", until=ALWAYS if closed else 0)
    if stop is None and not (rows >= max_rows or (rows >= max_preferred and not best)):
        if exceeded:
            cut.reason = "delay"
        elif not delay:
            cut.reason = "no_delay"
        elif draining:
            cut.reason = "drain"
        else:
            cut.hold = oldest + delay
    return cut
