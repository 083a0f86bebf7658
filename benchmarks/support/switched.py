"""Something that costs little, switched on and off in one server under one load that does not stop.

The server's own event loop cuts the load into short blocks, on and off in the order ABBA, and reads its clocks between
two of them: what drifts, and what else the machine does for longer than a block, hits both alike, and what a block
loses to a disturbance is one pair of hundreds.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.paired import interval, stolen_s, undisturbed
from workbench.clock import monotonic_ns
from workbench.engine import InferenceEngine

_TO_BEGIN_S, _BEGUN = 0.05, 500


@dataclass(frozen=True, slots=True)
class Block:
    """One block: whether it was on, its requests, and what they took: ns of the clock and of the loop's CPU time.

    ``stolen_s`` is what a hypervisor took of the processors meanwhile.
    """

    on: bool
    requests: int
    wall_ns: int
    cpu_ns: int
    stolen_s: float


class Alternation:
    """Blocks on an engine's loop.

    Args:
        engine: whose loop it is.
        switch: called on the loop with what the next block is to be: on or off.
        count: how many requests there have been so far; called on the loop.
        pairs: how many blocks of each kind.
        block_s: how long a block is.
    """

    def __init__(
        self, engine: InferenceEngine, switch: Callable[[bool], None], count: Callable[[], int], pairs: int,
        block_s: float,
    ) -> None:  # fmt: skip
        self._loop = engine.loop
        self._switch, self._count, self._block_s = switch, count, block_s
        self._order = [on for pair in range(pairs) for on in ((True, False) if pair % 2 else (False, True))]
        self._at = (0, 0, 0)
        self._stolen_s = 0.0
        self.blocks: list[Block] = []
        self.over = threading.Event()
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        """The load has to be there first."""
        if self._count() < _BEGUN:
            self._loop.call_later(_TO_BEGIN_S, self._begin)
            return
        self._next()

    def _next(self) -> None:
        self._switch(self._order[len(self.blocks)])
        self._stolen_s = stolen_s()
        self._at = (self._count(), monotonic_ns(), time.thread_time_ns())
        self._loop.call_later(self._block_s, self._end)

    def _end(self) -> None:
        cpu, wall, count = time.thread_time_ns(), monotonic_ns(), self._count()
        on = self._order[len(self.blocks)]
        stolen = stolen_s() - self._stolen_s
        self.blocks.append(Block(on, count - self._at[0], wall - self._at[1], cpu - self._at[2], stolen))
        if len(self.blocks) < len(self._order):
            self._next()
        else:
            self._switch(True)
            self.over.set()

    def result(self) -> Switched:
        """What the pairs say.

        Raises:
            RuntimeError: a block had no request: the load ended too early, or stood still.
        """
        if not self.over.is_set() or not all(block.requests for block in self.blocks):
            raise RuntimeError("the load did not last for every block")
        return Switched(self.blocks)


class Switched:
    """Pairs of neighbouring blocks: ``rate`` and ``cpu`` (a request) with it on divided by those with it off.

    Only those that the hypervisor took least from are kept (``undisturbed``).
    """

    def __init__(self, blocks: list[Block]) -> None:
        every = list(zip(*([block for block in blocks if block.on is on] for on in (True, False)), strict=True))
        pairs = [every[kept] for kept in undisturbed([on.stolen_s + off.stolen_s for on, off in every])]
        self._off = [off for _, off in pairs]
        self.rate = [on.requests / on.wall_ns / (off.requests / off.wall_ns) for on, off in pairs]
        self.cpu = [on.cpu_ns / on.requests / (off.cpu_ns / off.requests) for on, off in pairs]
        self._cpu_us = [(on.cpu_ns / on.requests - off.cpu_ns / off.requests) / 1e3 for on, off in pairs]
        self._wall_us = [(on.wall_ns / on.requests - off.wall_ns / off.requests) / 1e3 for on, off in pairs]

    def cost_rows(self, name: str) -> list[dict[str, Any]]:
        """What it costs a request in µs, of the loop's CPU and of the clock, beside what a request takes without it."""
        rows = []
        for what, values, of in (
            ("CPU", self._cpu_us, [block.cpu_ns / block.requests / 1e3 for block in self._off]),
            ("time", self._wall_us, [block.wall_ns / block.requests / 1e3 for block in self._off]),
        ):
            value, low, high = interval(values)
            rows.append(
                {
                    "name": f"{name}: {what} of one",
                    "value": round(value, 2),
                    "unit": f"µs, of {statistics.median(of):.1f} µs",
                    "goal": None,
                    "met": None,
                    "n": len(values),
                    "spread": {"low": round(low, 2), "high": round(high, 2)},
                }
            )
        return rows
