"""One thing that Triton refuses about a configuration."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """What is wrong: the path of the place and Triton's text."""

    path: str
    message: str
