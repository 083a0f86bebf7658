"""Models held for a sweep: taken at the server under a lease, kept by signs of life, put back at the end.

The server puts a configuration back by itself when the signs of life stop, so that a sweep that is killed leaves
nothing behind; two sweeps of one model are kept apart wherever they run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from workbench.errors import ConnectionFailed, NotReady, WorkbenchError
from workbench.records.holder import Holder

TTL_S = 15.0
"""A lease ends this long after the last sign of life."""


class Desk(Protocol):
    """Where models are taken: an engine in this kernel, a control plane, or what stands in for one."""

    def lease(self, name: str, holder: Mapping[str, Any], ttl_s: float, /) -> str:
        """Takes a model and gives the lease's id.

        Raises:
            NotReady: somebody has it.
        """

    def renew_lease(self, name: str, lease: str, /) -> None:
        """A sign of life.

        Raises:
            NotReady: the lease is over.
        """

    def release_lease(self, name: str, lease: str, /) -> str | None:
        """Puts the configuration back and lets go; says why what is loaded is another one, if it is."""

    def configure(self, name: str, edits: Sequence[Any], /, *, lease: str) -> Any:
        """Applies edits of the holder's."""


class Hold:
    """The models that one sweep holds. Thread-safe.

    Args:
        desk: where they are taken.
        ttl_s: how long a lease lasts without a sign of life; one is given four times as often.
        read: what is loaded of a model, to be compared; None where the desk itself looks at that.
    """

    def __init__(self, desk: Desk, *, ttl_s: float = TTL_S, read: Callable[[str], Any] | None = None) -> None:
        self._desk = desk
        self._ttl_s = ttl_s
        self._read = read
        self._before: dict[str, Any] = {}
        self._leases: dict[str, str] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = ""
        """Why a model is not held any more, though it was not given back; empty while all is well."""

    def take(self, models: Sequence[str], doing: str = "") -> None:
        """Takes models, all or none; those that are held are kept.

        Raises:
            NotReady: somebody else has one of them.
        """
        holder = Holder.this_process(doing).to_json()
        taken: list[str] = []
        if not self._leases:
            self.lost = ""  # what was lost was another sweep's
        try:
            for model in sorted(set(models) - self._leases.keys()):  # in one order: two sweeps cannot take half each
                lease = self._desk.lease(model, holder, self._ttl_s)
                with self._lock:
                    self._leases[model] = lease
                taken.append(model)
                if self._read is not None:
                    self._before[model] = self._read(model)
        except BaseException:
            for model in taken:
                self.release(model)
            raise
        with self._lock:
            if self._leases and self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(target=self._beat, args=(self._wake,), name="sweep-lease", daemon=True)
                self._thread.start()

    def configure(self, model: str, edits: Sequence[Any], doing: str = "") -> Any:
        """Applies edits to a model, which is taken first where it is not held.

        Raises:
            NotReady: somebody else has it, or the lease is over.
        """
        self.take([model], doing)
        return self._desk.configure(model, edits, lease=self._leases[model])

    def release(self, model: str) -> None:
        """Has the configuration put back and lets go of the model; nothing where it is not held.

        Raises:
            WorkbenchError: it cannot be put back; the model is held on, so that it can be tried again.
            NotReady: somebody else has changed it meanwhile; it is let go.
        """
        lease = self._leases.get(model)
        if lease is None:
            return
        complaint = self._desk.release_lease(model, lease)
        before = self._before.pop(model, None)
        with self._lock:
            self._leases.pop(model, None)
            if not self._leases:
                self._wake.set()
                self._thread = None
        if not complaint and self._read is not None and before is not None:
            complaint = self._changed(model, before, self._read)
        if complaint:
            raise NotReady(complaint)

    @staticmethod
    def _changed(model: str, before: Any, read: Callable[[str], Any]) -> str:
        """Whether something else is loaded than there was: a lease that was lost, or a load, lets others in."""
        try:
            if read(model) == before:
                return ""
        except ConnectionFailed:
            raise
        except WorkbenchError as error:
            return f"somebody else has unloaded it meanwhile ({error.message})"
        return "what is loaded is not what was there: somebody else has changed it, and that stays"

    def let_go(self) -> None:
        """Gives no more signs of life: what could not be put back the server puts back by itself, when a lease ends.

        Where leases do not end by themselves, the desk leaves it to whoever comes next (``leave(name, lease)``).
        """
        with self._lock:
            self._wake.set()
            self._thread = None
            leases = dict(self._leases)
        leave = getattr(self._desk, "leave", None)
        if leave is not None:
            for model, lease in leases.items():
                leave(model, lease)

    def check(self) -> str:
        """Why a model is not held any more, though it was not given back; empty while all is well.

        Where the server cannot tell, the desk looks whether somebody else has changed it (``changed(name, lease)``).
        """
        look = getattr(self._desk, "changed", None)
        if look is not None and not self.lost:
            with self._lock:
                leases = dict(self._leases)
            with contextlib.suppress(WorkbenchError):  # a server that is gone is found by whoever measures
                self.lost = next(filter(None, (look(model, lease) for model, lease in leases.items())), "")
        return self.lost

    def _beat(self, wake: threading.Event) -> None:
        while not wake.wait(self._ttl_s / 4):
            with self._lock:
                leases = dict(self._leases)
            for model, lease in leases.items():
                try:
                    self._desk.renew_lease(model, lease)
                except ConnectionFailed:
                    continue  # a server that is gone is found by whoever measures; one that comes back answers
                except WorkbenchError as error:
                    if self._leases.get(model) == lease:  # not given back meanwhile
                        self.lost = error.message
