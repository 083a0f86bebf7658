"""Kinds of command line flags, as tritonserver reads them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any


def boolean(text: str) -> bool:
    """A boolean as tritonserver reads it."""
    lowered = text.lower()
    if lowered in ("true", "1"):
        return True
    if lowered in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}")


def port(text: str) -> int:
    """A port; 0 is a free one."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port: 0 (a free one) to 65535")
    return value


def count(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    """A whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            end = f" to {high}" if high < 2**63 - 1 else " on"
            raise argparse.ArgumentTypeError(f"'{text}' is no number from {low}{end}")
        return value

    return read


def seconds(text: str) -> float:
    """A time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return value


def flag(group: Any, name: str, default: bool, text: str) -> None:
    """Adds a boolean flag; without a value it is true."""
    group.add_argument(f"--{name}", type=boolean, nargs="?", const=True, default=default, metavar="BOOL", help=text)
