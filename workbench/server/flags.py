"""Kinds of command line flags, as tritonserver reads them."""

from __future__ import annotations

import argparse
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


def flag(group: Any, name: str, default: bool, text: str) -> None:
    """Adds a boolean flag; without a value it is true."""
    group.add_argument(f"--{name}", type=boolean, nargs="?", const=True, default=default, metavar="BOOL", help=text)
