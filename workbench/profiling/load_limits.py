"""What the numbers of a load may be, so that none of them hangs a generator or fills the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.errors import InvalidRequest

MAX_CONCURRENCY = 16384
"""Clients of a closed loop, each with a connection of its own: ports and descriptors end not far above."""

MAX_GENERATORS = 64
"""Processes that send one load."""

MAX_REQUESTS = 50_000_000
"""Of one load point: their stamps take a few GB."""

WEEK_S = 604_800.0
"""The longest that anything of a load may last."""

MAX_SHARE = 1e9
"""Of a class of a load."""

SHORTEST_S = 1e-6
"""The shortest window."""

_WHOLE: dict[str, tuple[int, int]] = {
    "concurrency": (1, MAX_CONCURRENCY),
    "batch_size": (1, 2**31 - 1),
    "seed": (0, 2**63 - 1),
    "min_requests": (0, MAX_REQUESTS),
    "requests": (0, MAX_REQUESTS),
    "max_in_flight": (1, MAX_REQUESTS),
    "generators": (1, MAX_GENERATORS),
    "priority": (0, 2**32 - 1),
    "sequence_length": (0, 1_000_000),
    "sequences": (1, MAX_CONCURRENCY),
    "output_bytes": (1, 2**40),
}
_REAL: dict[str, tuple[float, float]] = {
    "rate": (0, 1e9),
    "duration_s": (SHORTEST_S, WEEK_S),
    "warmup_s": (0, WEEK_S),
    "max_duration_s": (0, WEEK_S),
    "max_warmup_s": (0, WEEK_S),
    "drain_s": (0, WEEK_S),
    "timeout_s": (0, WEEK_S),
    "cv": (1e-6, 1e6),
    "burst_factor": (1, 1e6),
    "burst_s": (1e-6, WEEK_S),
    "factor": (1e-9, 1e9),
    "sequence_length_variation": (0, 1),
}

NUMBERS = (*_WHOLE, *_REAL)
"""The fields that ``check_numbers`` looks at."""


def check_numbers(values: Mapping[str, Any]) -> dict[str, int | float]:
    """Makes sure that a load's numbers are numbers within their limits; gives them as Python's own (numpy's are taken).

    Raises:
        InvalidRequest: one is not: not a number, NaN, infinite, a fraction where a whole number is asked for, outside.
    """
    checked: dict[str, int | float] = {}
    for name, (low, high) in _WHOLE.items():
        value = values[name]
        whole = isinstance(value, int | np.integer) or (isinstance(value, float | np.floating) and value.is_integer())
        if not whole or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, got {value!r:.80}")
        checked[name] = int(value)
    for name, (least, most) in _REAL.items():
        value = values[name]
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not number or not least <= value <= most:  # NaN lies nowhere
            raise InvalidRequest(f"{name} must be a number from {least:g} to {most:g}, got {value!r:.80}")
        checked[name] = value if isinstance(value, int) else float(value)
    return checked


def check_parameters(parameters: Any) -> None:
    """Makes sure that a request can carry these parameters.

    Raises:
        InvalidRequest: they are no values by name, or one is neither true or false nor a text nor a number of 64 bits.
    """
    if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
        raise InvalidRequest(f"parameters must be values by name, got {parameters!r:.80}")
    for name, value in parameters.items():
        number = isinstance(value, int) and -(2**63) <= value < 2**64
        number = number or (isinstance(value, float) and math.isfinite(value))  # JSON has no others
        if not number and not isinstance(value, str):
            raise InvalidRequest(
                f"parameter '{name}' must be true or false, a text or a number of 64 bits, got {value!r:.80}"
            )


def check_factor(factor: Any) -> None:
    """Times as fast as a trace came.

    Raises:
        InvalidRequest: it is no number above 0.
    """
    if isinstance(factor, bool) or not isinstance(factor, int | float | np.integer | np.floating) or not factor > 0:
        raise InvalidRequest(f"factor must be above 0, got {factor!r:.80}")


def check_share(name: str, share: Any) -> float:
    """A class's share of a load.

    Raises:
        InvalidRequest: it is no number above 0, or a huge one.
    """
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= MAX_SHARE:
        raise InvalidRequest(f"the share of class '{name}' must be a number above 0, up to 1e9, got {share!r:.80}")
    return float(share)
