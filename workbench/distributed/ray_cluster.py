"""A sweep on a Ray cluster: a worker a device, one measurement at a time on each machine, none lost with a node.

What each node needs, and how it gets there: this package in the same version (installed there, or by ``runtime_env``),
and the model repository at the same path (or at ``repository``), with the same files. Both are checked before anything
is measured. A node takes part where it offers the custom resource that stands for its device::

    ray start --address=HEAD:6379 --resources='{"device": 1}'

or, with ``resource="GPU"``, GPUs (Ray hides them from who asks for none), or, with ``resource="CPU"``, processors. One
worker holds all that its node offers for the whole sweep, so two sweeps wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.clock import monotonic_ns
from workbench.distributed.ray_connection import (
    cause_of,
    connect,
    explained,
    import_ray,
    lacking,
    offers,
    options_on,
)
from workbench.distributed.serving import InputFile, Serving
from workbench.distributed.worker import Surroundings, Worker
from workbench.errors import InvalidRequest, NotReady, WorkbenchError
from workbench.profiling.executing import Deliver, Item, Outcome, Work, text_of
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.measuring import failed_point

TRIES = 3
"""How often an item is given to a worker that does not live to measure it."""

_SLACK_S = 120.0
_STOP_S = 20.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Ray:
    """Measures on a Ray cluster: ``server.sweep(..., executor=wb.Ray())``, or ``executor="ray"``; or has the load of a
    point come from its nodes: ``server.profile(..., generators=4, executor=wb.Ray())``.

    ``address`` is the cluster's, as ``ray.init`` takes it; where this process is connected already, that is taken.
    ``resource`` is what a node offers for each device that may be measured. ``device`` is the kind to measure on, where
    nodes have several (a part of its name will do); by default the one that most of them have. ``repository`` is where
    the model repository lies on the nodes, if not at the same path as here. ``runtime_env`` is Ray's (it needs
    ``ray[default]``). Serving the model on a node may take ``start_s`` seconds.
    """

    address: str = "auto"
    resource: str = "device"
    device: str = ""
    repository: str | Sequence[str] = ()
    runtime_env: Mapping[str, Any] | None = None
    start_s: float = 180.0

    def bind(self, serving: Serving) -> RayExecutor:
        """The executor of one sweep."""
        if self.repository:
            paths = [self.repository] if isinstance(self.repository, str) else self.repository
            serving = serving.at(paths)
        return RayExecutor(self, serving)


@dataclass(slots=True, eq=False)
class _Member:
    """A worker on a node, and what it is at."""

    node: str
    actor: Any
    opening: Any = None
    kind: str = ""
    token: str = ""
    settings: Mapping[str, Any] | None = None
    item: Item | None = None
    running: Any = None
    deadline: int = 0
    idle_since: int = 0


@dataclass(slots=True)
class _Books:
    """What is left to do: items in order, how often each was given out in vain, and what was said of lost workers."""

    pending: deque[Item] = field(default_factory=deque)
    tries: Counter[int] = field(default_factory=Counter)
    lost: dict[int, list[str]] = field(default_factory=dict)


class RayExecutor:
    """One sweep on a Ray cluster (``profiling.executing.Executor``)."""

    def __init__(self, settings: Ray, serving: Serving) -> None:
        self._settings = settings
        self._serving = serving
        self._work: Work | None = None
        self._file: InputFile | None = None
        self._stop = threading.Event()
        self._ray: Any = None
        self._connected = False
        self._known: Any = None
        self._members: list[_Member] = []
        self._kind = ""
        self._last_loss = ""
        self._remarks: list[str] = []

    @property
    def where(self) -> str:
        """Words for it."""
        return f"Ray cluster {self._settings.address}"

    @property
    def nodes(self) -> list[str]:
        """The nodes that measure, by the beginnings of Ray's ids."""
        return [member.node[:8] for member in self._members]

    @property
    def measuring(self) -> list[str]:
        """Those that measure at this moment."""
        return [member.node[:8] for member in tuple(self._members) if member.running is not None]

    # -- life -----------------------------------------------------------------------------------------------------

    def open(self, work: Work, stop: threading.Event) -> None:
        """Connects to the cluster and has a worker serve on each node that can measure.

        Raises:
            Unsupported: Ray is not installed here, no node offers the resource, or none has this package.
            ConnectionFailed: there is no cluster at the address.
            NotFound: there is no such file of inputs, or no node has the model.
            InvalidRequest: the nodes' repository holds other files.
            NotReady: no device is free.
        """
        self._stop = stop
        self._file = InputFile.of(work.inputs)
        self._work = replace(work, inputs=None) if self._file is not None else work
        self._ray = import_ray()
        self._connected = connect(self._ray, self._settings)
        if not self._offers():
            raise lacking(self._settings, self._ray)
        self._recruit()

    def close(self) -> str:
        """Ends the workers and their servers; disconnects where ``open`` has connected."""
        ray = self._ray
        if ray is None or not ray.is_initialized():  # most calls of Ray would start a cluster here
            return ""
        closing = []
        for member in self._members:
            with contextlib.suppress(Exception):  # a node that is gone does not answer
                closing.append(member.actor.close.remote())
        if closing:
            with contextlib.suppress(Exception):
                ray.wait(closing, timeout=_STOP_S, num_returns=len(closing))
        for member in self._members:
            self._kill(member)
        self._members = []
        if self._connected:
            self._connected = False
            ray.shutdown()
        return ""

    def _kill(self, member: _Member) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)

    # -- workers --------------------------------------------------------------------------------------------------

    def _offers(self) -> list[tuple[str, int]]:
        """The nodes that are alive, each with how many devices it offers."""
        return [(node["NodeID"], count) for node, count in offers(self._settings, self._ray)]

    def _recruit(self) -> None:
        """Has a worker serve on each node.

        Raises:
            WorkbenchError: none could; what the first of them could not do.
        """
        ray, settings = self._ray, self._settings
        self._members = [_Member(node, self._actor(node, count)) for node, count in self._offers()]
        if not self._members:
            raise NotReady(f"no node offers '{settings.resource}' any more", where=self.where)
        for member in self._members:
            member.opening = member.actor.open.remote()
        waiting = {member.opening: member for member in self._members}
        deadline = monotonic_ns() + int(settings.start_s * 1e9)
        errors: dict[str, Exception] = {}
        while waiting and monotonic_ns() < deadline and not self._stop.is_set():
            ready, _ = ray.wait(list(waiting), timeout=_LOOK_S)
            for reference in ready:
                member = waiting.pop(reference)
                try:
                    about = ray.get(reference)
                    member.kind, member.token = about["kind"], about["token"]
                    if about["note"]:
                        self._remarks.append(f"node {member.node[:8]}: {about['note']}")
                    member.idle_since = monotonic_ns()
                except Exception as error:
                    errors[member.node] = cause_of(error)
                    self._drop(member)
        for member in waiting.values():
            errors[member.node] = NotReady(
                f"the device of node {member.node[:8]} was not free, or its model not served, within "
                f"{settings.start_s:g} s",
                hint="another sweep may hold it; Ray(start_s=...) waits longer",
            )
            self._drop(member)
        doing = f"serving {', '.join(self._serving.repositories)}"
        reasons = [explained(error, node, doing) for node, error in errors.items()]
        if not self._members and reasons and not self._stop.is_set():
            raise reasons[0]
        self._remarks += [f"a node takes no part: {error.message} ({error.where})" for error in reasons]
        if self._members:
            self._one_kind()

    def _actor(self, node: str, count: int) -> Any:
        made = self._ray.remote(Worker).options(max_concurrency=2, **options_on(node, count, self._settings))
        return made.remote(self._serving, self._work, self._file, Surroundings.here(), node[:8])

    def _one_kind(self) -> None:
        """Keeps the workers of one kind of device: figures of several are not compared.

        Raises:
            InvalidRequest: the kind that was named is not there, or it is not clear which is meant.
            NotReady: no node of the kind is left.
        """
        kinds = Counter(member.kind for member in self._members)
        if self._settings.device and not self._kind:
            fitting = [kind for kind in kinds if self._settings.device in kind]
            if len(fitting) != 1:
                raise InvalidRequest(
                    f"{len(fitting)} kinds of device fit '{self._settings.device}'",
                    where=f"the nodes have: {'; '.join(kinds)}",
                )
            self._kind = fitting[0]
        self._kind = self._kind or kinds.most_common(1)[0][0]
        for member in [each for each in self._members if each.kind != self._kind]:
            self._remarks.append(f"node {member.node[:8]} takes no part: its device is another one, {member.kind}")
            self._drop(member)
        if not self._members:
            raise NotReady(f"no node with the device '{self._kind}' is left", where=self.where)

    def _drop(self, member: _Member) -> None:
        self._members.remove(member)
        self._kill(member)

    # -- work -----------------------------------------------------------------------------------------------------

    def run(self, items: Sequence[Item], known: Collection[str], deliver: Deliver) -> str:
        """Gives the items to the workers, one at a time on each machine, until all are delivered; see ``Executor``.

        An item whose worker or node is lost goes to another worker; one that outlives no worker, to none after
        ``TRIES``, and is a failed point then. Where no worker is left, new ones are looked for.
        """
        self._known = self._ray.put(frozenset(known))
        books = _Books(deque(items))
        with interrupt_stops(self._stop):
            while not self._stop.is_set() and (books.pending or self._running()):
                if not self._members:
                    try:
                        self._recruit()
                    except WorkbenchError as error:
                        return f"{error.message}; {self._last_loss}: {len(books.pending)} points were not measured"
                self._give_out(books)
                self._collect(books, deliver)
            self._end(books, deliver)
        return ""

    def _running(self) -> dict[Any, _Member]:
        return {member.running: member for member in self._members if member.running is not None}

    def _give_out(self, books: _Books) -> None:
        """Items for whoever is free, longest idle first; a machine that measures has no second one measure beside."""
        busy = {member.token for member in self._running().values()}
        for member in sorted(self._members, key=lambda each: each.idle_since):
            if not books.pending or member.running is not None or member.token in busy:
                continue
            item = next((each for each in books.pending if each.settings == member.settings), books.pending[0])
            books.pending.remove(item)
            books.tries[item.number] += 1
            member.item, member.settings = item, item.settings
            member.running = member.actor.measure.remote(item, self._known)
            member.deadline = monotonic_ns() + int(self._longest_s(item) * 1e9)
            busy.add(member.token)

    def _longest_s(self, item: Item) -> float:
        load, attempts = item.load, self._work.attempts if self._work is not None else 1
        return attempts * (load.longest_warmup_s + load.longest_s + load.drain_s + _SLACK_S)

    def _collect(self, books: _Books, deliver: Deliver) -> None:
        running = self._running()
        if not running:
            return
        ready, _ = self._ray.wait(list(running), timeout=_LOOK_S)
        for reference in ready:
            self._received(running[reference], books, deliver)
        now = monotonic_ns()
        for member in list(self._members):
            if member.running is not None and now > member.deadline:
                self._lost(member, f"node {member.node[:8]} did not answer", books, deliver)

    def _received(self, member: _Member, books: _Books, deliver: Deliver) -> None:
        item = member.item
        assert item is not None, "it was given one"
        try:
            outcome, broken = self._ray.get(member.running)
        except Exception as error:
            why = f"node {member.node[:8]} was lost: {text_of(cause_of(error)).strip().splitlines()[0]}"
            self._lost(member, why, books, deliver)
            return
        if broken or outcome is None:
            self._lost(member, f"the server on node {member.node[:8]} was lost: {broken}", books, deliver)
            return
        member.running = member.item = None
        member.idle_since = monotonic_ns()
        self._deliver(outcome, books.lost.get(item.number, []), deliver)

    def _lost(self, member: _Member, why: str, books: _Books, deliver: Deliver) -> None:
        """A worker that is gone: what it was at is measured elsewhere, and says so."""
        item = member.item
        self._last_loss = why
        self._drop(member)
        if item is None:
            return
        books.lost.setdefault(item.number, []).append(why)
        if books.tries[item.number] < TRIES:
            books.pending.appendleft(item)
            return
        text = f"no worker lived to measure it, {TRIES} times: {why}"
        deliver(Outcome(item, failed_point(self._serving.models[0], item.load, item.settings, text)))

    def _end(self, books: _Books, deliver: Deliver) -> None:
        """After a stop: what is being measured ends at once and is delivered as far as it came."""
        running = self._running()
        if not running:
            return
        for member in running.values():
            with contextlib.suppress(Exception):
                member.actor.stop.remote()
        ready, _ = self._ray.wait(list(running), num_returns=len(running), timeout=_STOP_S)
        for reference in ready:
            with contextlib.suppress(Exception):  # it was lost at the same moment: there is nothing of it
                outcome, _broken = self._ray.get(reference)
                if outcome is not None:
                    self._deliver(outcome, [], deliver)

    def _deliver(self, outcome: Outcome, losses: Sequence[str], deliver: Deliver) -> None:
        """With what is to be known of it; the first point says what is to be known of the nodes."""
        notes = [f"given out again: {why}" for why in losses]
        if outcome.point is not None:
            notes, self._remarks = [*notes, *self._remarks], []
            point = replace(outcome.point, notes=(*outcome.point.notes, *notes))
            outcome = replace(outcome, point=point)
        deliver(outcome)
