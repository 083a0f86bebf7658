"""Reasons put together: what was left out, and why, in a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def gathered(said: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Reasons that differ in their numbers only as one, in the words of the first; with what each is about."""
    found: dict[str, tuple[str, list[str]]] = {}
    for reason, place in said:
        found.setdefault(re.sub(r"\d+(\.\d+)?", "#", reason), (reason, []))[1].append(place)
    return list(found.values())


def left_out(whys: Sequence[Sequence[str]], count: int) -> str:
    """How many of ``count`` blocks were left out and why, the most frequent reason first; empty where none was.

    Args:
        whys: for each of them its reasons.
        count: of all blocks.
    """
    if not whys:
        return ""
    reasons = sorted(gathered((why, "") for each in whys for why in each), key=lambda found: -len(found[1]))
    were = "was" if len(whys) == 1 else "were"
    told = "; ".join(f"{len(places)} × {why}" for why, places in reasons)
    return f"{len(whys)} of {count} blocks {were} left out" + (f": {told}" if told else "")
