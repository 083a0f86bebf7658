"""Carrying out the actions of ensembles one after the other, however deep they are nested.

An action of one ensemble may begin a request of another one, or answer it. Were that carried out within it, ensembles
nested a hundred deep would end Python's stack; so it waits until the action that it follows from is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


class ActionQueue:
    """The actions that wait to be carried out, of all ensembles of an engine; on the loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._acting = False

    def add(self, do: Callable[[Any], None], actions: Iterable[Any]) -> None:
        """Puts actions behind those that wait; ``do`` carries one out, and raises nothing."""
        self._waiting.extend((do, action) for action in actions)

    def work(self) -> None:
        """Carries out all that waits and what follows from it; nothing where that is under way already."""
        if self._acting:
            return
        self._acting = True
        waiting = self._waiting
        try:
            while waiting:
                do, action = waiting.popleft()
                do(action)
        finally:
            self._acting = False
