"""The right spelling of a name that does not exist: what "did you mean" says."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, names: Iterable[str], *, cutoff: float = 0.7) -> str | None:
    """The name that was most likely meant, whatever its case and underscores; None where none is close.

    ``cutoff`` is the least likeness (0..1, that of ``difflib``).
    """
    known = list(names)
    bare = _bare(word)
    same = [name for name in known if _bare(name) == bare]
    if same:
        return same[0]
    lower = {name.lower(): name for name in reversed(known)}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[close[0]] if close else None


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")
