"""Progress bars: in a notebook a widget, in a terminal text, elsewhere nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from workbench.profiling.ab_result import Block, usable_pairs

if TYPE_CHECKING:
    from workbench.profiling import Progress
    from workbench.tuning.comparing import Step


@contextmanager
def progress_bar(wanted: bool, title: str) -> Iterator[Callable[[Progress], None]]:
    """A bar of the points of a sweep, with the time left."""

    def told(progress: Progress) -> None:
        if bar is None:
            return
        bar.total = progress.total
        bar.n = progress.done
        if progress.point is not None:
            bar.set_postfix_str(f"{progress.point.throughput:.0f} infer/s, about {progress.eta_s:.0f} s left")
        bar.refresh()

    with _bar(wanted, title, "point") as bar:
        yield told


@contextmanager
def step_bar(wanted: bool) -> Iterator[Callable[[Step], None]]:
    """A bar of each kind of step of a comparison, in turn."""
    what = ""

    def told(step: Step) -> None:
        nonlocal what
        if bar is None:
            return
        if what != step.what:
            what = step.what
            bar.reset(step.total)  # a time left of its own for each kind of step
            bar.set_description(step.what, refresh=False)
        bar.n = step.done
        bar.refresh()

    with _bar(wanted, "compare", "step") as bar:
        yield told


@contextmanager
def pair_bar(wanted: bool, looks: Sequence[int]) -> Iterator[Callable[[Block], None]]:
    """A bar of the pairs of blocks of an A/B, up to the next of its looks (numbers of pairs): it may end there."""
    blocks: list[Block] = []

    def told(block: Block) -> None:
        blocks.append(block)
        if bar is None:
            return
        pairs, left_out = len(usable_pairs(blocks)), sum(not each.usable for each in blocks)
        bar.total = next((look for look in looks if look >= pairs), pairs)
        bar.n = pairs
        bar.set_postfix_str(f"{left_out} blocks left out" if left_out else "")

    with _bar(wanted, "ab", "pair") as bar:
        if bar is not None:
            bar.reset(looks[0])
        yield told


@contextmanager
def _bar(wanted: bool, title: str, unit: str) -> Iterator[Any]:
    if not wanted:
        yield None
        return
    from tqdm.auto import tqdm

    bar = tqdm(total=0, desc=title, unit=unit, leave=False, disable=None)
    try:
        yield bar
    finally:
        bar.close()
