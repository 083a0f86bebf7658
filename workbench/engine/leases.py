"""Leases: a model taken for a sweep, kept apart from other sweeps and edits, and put back when the holder is gone.

The engine keeps the configuration as it was when the model was taken. It comes back, to the byte, when the holder gives
the model back, when it has given no sign of life for as long as it said, or, on this machine, when its process is found
dead. So a sweep that is killed leaves nothing behind that outlives its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.config import ConfigDocument, Edit
from workbench.engine.configure import Configurator
from workbench.engine.core import EngineCore
from workbench.engine.options import ConfigureResult
from workbench.errors import InvalidRequest, NotReady, WorkbenchError
from workbench.records.holder import Holder

SHORTEST_S, LONGEST_S = 0.05, 600.0
"""How long a lease may last without a sign of life."""


@dataclass(slots=True)
class _Lease:
    """One model in somebody's hands. ``applied`` is what the holder applied last; None before the first edit."""

    id: str
    model: str
    holder: Holder
    ttl_s: float
    original: ConfigDocument
    applied: bytes | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None
    over: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "holder": self.holder.to_json(), "ttl_s": self.ttl_s}


class Leases:
    """The leases of an engine; on the loop."""

    def __init__(self, core: EngineCore, configurator: Configurator) -> None:
        self._core = core
        self._configurator = configurator
        self._held: dict[str, _Lease] = {}

    def to_json(self) -> list[dict[str, Any]]:
        """Who holds which model."""
        return [lease.to_json() for _, lease in sorted(self._held.items())]

    async def take(self, model: str, holder: Mapping[str, Any], ttl_s: float) -> str:
        """Takes a model; gives the lease's id, which its edits and its signs of life name.

        Args:
            model: its name; it must have a configuration.
            holder: a ``Holder`` as JSON.
            ttl_s: the lease ends this long after the last sign of life, from 0.05 s to 600 s.

        Raises:
            InvalidRequest: a time that makes no sense, or no holder.
            NotFound, NotReady: there is no such model, or it is not loaded.
            NotReady: somebody has it; the text names the holder.
        """
        if not SHORTEST_S <= ttl_s <= LONGEST_S:
            raise InvalidRequest(f"a lease lasts from {SHORTEST_S:g} to {LONGEST_S:g} s, got {ttl_s:g}")
        try:
            taker = Holder.from_json(holder)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"'holder' must say pid, created and place: {error!r}") from error
        while (held := self._held.get(model)) is not None:
            if not held.over and not held.holder.gone:
                raise _refusal(model, held)
            await self._end(held, f"{held.holder} is gone")
        document = self._configurator.document(model)
        lease = self._held[model] = _Lease(secrets.token_hex(8), model, taker, ttl_s, document)
        self._arm(lease)
        self._tell(model, f"'{model}' is taken by {taker}")
        return lease.id

    def renew(self, model: str, id: str) -> None:
        """A sign of life.

        Raises:
            NotReady: the lease is over.
        """
        self._arm(self._mine(model, id))

    async def release(self, model: str, id: str) -> None:
        """Puts the configuration back and gives the model back. A lease that is over is no error: that was done then.

        Raises:
            WorkbenchError: the configuration cannot be put back; the lease goes on, so that it can be tried again.
        """
        lease = self._held.get(model)
        if lease is not None and lease.id == id:
            await self._end(lease, "")

    async def configure(self, model: str, edits: Sequence[Edit], id: str) -> ConfigureResult:
        """As ``Configurator.configure``, for the holder of the model.

        Raises:
            NotReady: the lease is over.
        """
        lease = self._mine(model, id)
        async with lease.lock:
            before = self._configurator.document(model)
            if before.data != lease.applied:
                lease.original = before  # the first edit, or it was loaded anew by somebody else: that is to come back
            try:
                return await self._configurator.configure(model, edits)
            finally:
                with contextlib.suppress(WorkbenchError):  # unloaded meanwhile: nothing to come back to
                    lease.applied = self._configurator.document(model).data

    def check(self, model: str) -> None:
        """For whoever wants to change a model without a lease.

        Raises:
            NotReady: somebody has it; what were changed now would be lost when it is put back.
        """
        lease = self._held.get(model)
        if lease is not None:
            if lease.holder.gone and not lease.over:
                self._core.spawn(self._expire(lease))
            raise _refusal(model, lease)

    def _mine(self, model: str, id: str) -> _Lease:
        lease = self._held.get(model)
        if lease is None or lease.id != id or lease.over:
            raise NotReady(
                f"'{model}' is not yours any more: there was no sign of life for too long, and its configuration was "
                "put back",
                hint="start again; a sweep resumes with resume=True",
            )
        return lease

    def _arm(self, lease: _Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        lease.timer = self._core.loop.call_later(lease.ttl_s, lambda: self._core.spawn(self._expire(lease)))

    async def _expire(self, lease: _Lease) -> None:
        try:
            await self._end(lease, f"no sign of life for {lease.ttl_s:g} s from {lease.holder}")
        except WorkbenchError as error:
            self._tell(
                lease.model, f"the configuration of '{lease.model}' cannot be put back: {error.message}", "error"
            )

    async def _end(self, lease: _Lease, why: str) -> None:
        """Ends a lease once; whoever comes meanwhile waits for that."""
        if lease.timer is not None:
            lease.timer.cancel()
        lease.over = True
        async with lease.lock:
            if self._held.get(lease.model) is not lease:
                return
            try:
                changed = await self._put_back(lease)
            except BaseException:
                if why:
                    del self._held[lease.model]
                else:
                    lease.over = False
                    self._arm(lease)
                raise
            del self._held[lease.model]
        done = "its configuration is put back" if changed else "its configuration is as it was"
        self._tell(lease.model, f"'{lease.model}' is free again, {done}" + (f": {why}" if why else ""))

    async def _put_back(self, lease: _Lease) -> bool:
        if lease.applied is None or lease.applied == lease.original.data:
            return False
        try:
            now = self._configurator.document(lease.model)
        except WorkbenchError:
            return False  # it was unloaded: the next load takes the file
        if now.data != lease.applied:
            return False  # somebody has loaded it anew: that stays
        await self._configurator.put_back(lease.model, lease.original)
        return True

    def _tell(self, model: str, text: str, level: str = "info") -> None:
        self._core.events.append("lease", model, text, level=level)


def _refusal(model: str, lease: _Lease) -> NotReady:
    return NotReady(
        f"'{model}' is being swept by {lease.holder}: its configuration is put back at the end",
        hint=f"wait for it or stop it; if it is dead its lease ends within {lease.ttl_s:g} s",
    )
