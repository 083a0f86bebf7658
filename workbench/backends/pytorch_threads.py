"""How many threads torch takes: one setting for the whole process, as in Triton, where the first model decides.

``INTRA_OP_THREAD_COUNT`` and ``INTER_OP_THREAD_COUNT`` of the model that was loaded first are in force for all of them;
others that say something else are ignored (real Triton: without a word). Here a model that is unloaded no longer
counts, so that a changed setting takes effect when its model is loaded again.
"""

from __future__ import annotations

import threading

import torch


class ThreadCounts:
    """What the loaded models ask for, in the order in which they were loaded. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: dict[object, tuple[str, int]] = {}
        self._own = threading.local()
        self._inter_op = ""
        self.intra_op = 0
        """What is in force; 0: nobody has asked, torch decides."""

    def add(self, owner: object, model: str, count: int) -> str:
        """A model asks for a number of threads within operators; the answer is a warning where another one came first.

        ``owner`` takes the wish back by ``remove``.
        """
        with self._lock:
            self._wishes[owner] = model, count
            first, self.intra_op = next(iter(self._wishes.values()))
        if self.intra_op == count or first == model:  # its old self goes, and with it what that asked for
            return ""
        return (
            f"INTRA_OP_THREAD_COUNT {count} of '{model}' is not heeded: torch has one setting for all models, and "
            f"'{first}', which was loaded before, says {self.intra_op}"
        )

    def remove(self, owner: object) -> None:
        """A model is unloaded."""
        with self._lock:
            self._wishes.pop(owner, None)
            self.intra_op = next(iter(self._wishes.values()), ("", 0))[1]

    def set_inter_op(self, model: str, count: int) -> str:
        """The threads between operators: torch takes the first number that it is told, before its first work."""
        with self._lock:
            if count == torch.get_num_interop_threads():
                return ""
            try:
                torch.set_num_interop_threads(count)
            except RuntimeError:
                first = f", and '{self._inter_op}' has set it" if self._inter_op else ""
                return (
                    f"INTER_OP_THREAD_COUNT {count} of '{model}' is not heeded: torch takes one setting, before its "
                    f"first work{first}; it is {torch.get_num_interop_threads()} until the server is started again"
                )
            self._inter_op = model
            return ""

    def apply(self) -> None:
        """Puts the setting in force on the calling thread (torch keeps it for each), or back what was before it."""
        wanted, now = self.intra_op, torch.get_num_threads()
        before = getattr(self._own, "before", 0)
        if wanted and now != wanted:
            self._own.before = before or now
            torch.set_num_threads(wanted)
        elif not wanted and before:
            self._own.before = 0
            torch.set_num_threads(before)


THREADS = ThreadCounts()
"""Those of this process."""
