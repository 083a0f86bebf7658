"""Clicks are answered while a cell runs.

JupyterLab sends a widget's messages to a subshell of the kernel, so that a busy cell does not hold them up. ipykernel
7.4 takes them back: it hands a message to the thread whose cell published on the widget last, and a panel's news, sent
from a thread of its own, count as the main one. Every click would then wait for the cell. Panels need no such order:
their callbacks only queue commands, under a lock, and are right on any thread.
"""

from __future__ import annotations

from typing import Any


def answer_while_busy(widget: Any) -> None:
    """Has the messages of a widget, and of all in it, handled where the page sent them.

    Does nothing with a kernel that does not reroute them.
    """
    comm = getattr(widget, "comm", None)
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = _as_sent  # type: ignore[union-attr]
    for child in getattr(widget, "children", ()):
        answer_while_busy(child)


def _as_sent(_data: Any, default: Any) -> Any:
    return default
