"""Load generators on the nodes of a Ray cluster: the load of one point comes from other machines, the server is here.

Each generator is an item: it holds one of a node's resource (``Ray.resource``) for the measurement, so a node with one
``device`` has one generator, and none beside a sweep's worker. Nodes that are not this machine come first. A generator
is the process that is one on this machine, too (``profiling.generator``); an actor on its node starts it, hands on what
it is told and what it says, and tells its clock. When the actor ends, however that is, its process ends.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from workbench.clock import Clock, monotonic_ns
from workbench.distributed.ray_connection import (
    cause_of,
    connect,
    explained,
    import_ray,
    lacking,
    offers,
    options_on,
)
from workbench.distributed.worker import Surroundings
from workbench.errors import ConnectionFailed, InternalError, InvalidRequest, NotReady, WorkbenchError
from workbench.profiling.clocks import ClockMap, Fix, best_fix, moved, round_trips
from workbench.profiling.device import device_token
from workbench.profiling.driver import Frame, GeneratorProcess, Job, samples_in
from workbench.profiling.executing import text_of
from workbench.profiling.merging import Share
from workbench.profiling.samples import Samples

if TYPE_CHECKING:
    from workbench.distributed.ray_cluster import Ray

_LOOK_S = 0.2
_HEAR_S = 0.1
"""How long an actor waits for its process to say something, before it answers that there was nothing."""
_SILENT_NS = 20_000_000_000
_CLOCK_S = 10.0
_BEGIN_S = 60.0
_GONE = "gone"
"""The event of a generator that says nothing more; its text says why."""


class GeneratorOnNode:
    """What runs on a node. Its groups of calls run beside each other, the calls of one group in their order.

    Args:
        planned: how processes run on the machine that measures.
    """

    GROUPS: Mapping[str, int] = {"turns": 1, "clock": 1}
    """Beside the group of those that wait for the process."""

    def __init__(self, planned: Surroundings) -> None:
        self._planned = planned
        self._news = threading.Event()
        self._process = GeneratorProcess(news=self._news)

    def open(self) -> dict[str, Any]:
        """Starts the process; gives its ``pid``, the ``token`` of the machine, and a ``note`` on how it runs.

        Raises:
            Unsupported: another version of this package is here.
            InternalError: it does not come up.
        """
        self._planned.check()
        note = self._planned.take()
        self._process.start()
        return {"pid": self._process.pid, "token": device_token(), "note": note}

    def now(self) -> int:
        """The clock here."""
        return monotonic_ns()

    def begin(self, job: Job, share: Share) -> None:
        """Hands over its share of a run; it waits for its turns."""
        self._process.begin(job, share)

    def tell(self, head: dict[str, Any]) -> None:
        """Hands on a command; to a process that has ended it is not one any more."""
        with contextlib.suppress(InternalError):
            self._process.tell(head)

    def heard(self) -> list[Frame]:
        """What the process has said, after a moment in which it may say something; its end as an event."""
        self._news.wait(_HEAR_S)
        self._news.clear()
        frames: list[Frame] = []
        for frame in self._process.heard():
            if frame is not None:
                frames.append(frame)
                continue
            try:
                self._process.result(None, "")
            except InternalError as error:
                frames.append(_gone(error.message.removeprefix("the load generator ")))
        return frames


class RayGenerators:
    """Where the generators of load points run, for one measurement or sweep (``profiling.generators.Place``).

    Args:
        settings: the cluster, and which resource a generator holds one of.
        url: the server's address.
        count: how many generators there will be.
        clock: the clock here.
    """

    lead_ns = 250_000_000

    def __init__(self, settings: Ray, url: str, count: int, *, clock: Clock = monotonic_ns) -> None:
        self._settings = settings
        self._url = url
        self._count = count
        self._clock = clock
        self._ray: Any = None
        self._connected = False
        self._stop = threading.Event()
        self._made: list[_FarGenerator] = []

    @property
    def where(self) -> str:
        """Words for it."""
        return f"Ray cluster {self._settings.address}"

    @property
    def nodes(self) -> list[str]:
        """The nodes that generators are on, by the beginnings of Ray's ids."""
        return [each.node[:8] for each in self._made if each.actor is not None]

    @property
    def pids(self) -> list[int]:
        """Their process ids, each on its node."""
        return [each.pid for each in self._made if each.pid is not None]

    def open(self, stop: threading.Event) -> None:
        """Connects, and makes sure that there is room and that the server can be reached from there.

        Raises:
            Unsupported: Ray is not installed here, or no node offers the resource.
            ConnectionFailed: there is no cluster at the address.
            InvalidRequest: too few nodes offer it, or they are other machines and the address is this machine's own.
        """
        self._stop = stop
        self._ray = import_ray()
        self._connected = connect(self._ray, self._settings)
        found = self._offers()
        if not found:
            raise lacking(self._settings, self._ray)
        room, here = sum(found.values()), sum(count for (_, here), count in found.items() if here)
        if self._only_here and here < min(self._count, room):
            raise InvalidRequest(
                f"{self._url} is an address of this machine only: generators on other machines cannot reach it",
                where=f"{self.where}: {len(found)} nodes, this machine is {'one of them' if here else 'none of them'}",
                hint="bind the server to an address of the network, and measure at that one: "
                "workbench serve DIR --http-address 0.0.0.0, then wb.connect('http://THIS-MACHINE:8000')",
            )
        if room < self._count:
            raise InvalidRequest(
                f"{self._count} generators were asked for, but the cluster has room for {room}: each holds one "
                f"'{self._settings.resource}' of a node",
                where=self.where,
                hint="take fewer, or a resource that the nodes have more of: Ray(resource='CPU')",
            )

    @property
    def _only_here(self) -> bool:
        """Whether the server's address means this machine on every machine."""
        host = urlsplit(self._url).hostname or "localhost"
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")
        return address.is_loopback or address.is_unspecified

    def _offers(self) -> dict[tuple[str, bool], int]:
        """By node, and whether it is this machine, how many generators have room there."""
        own = self._ray.util.get_node_ip_address()
        return {
            (str(node["NodeID"]), node["NodeManagerAddress"] == own): count
            for node, count in offers(self._settings, self._ray)
        }

    def make(self) -> _FarGenerator:
        """One more generator; it takes its node when it is launched."""
        made = _FarGenerator(self, self._clock)
        self._made.append(made)
        return made

    def start(self) -> tuple[str, Any]:
        """Starts an actor where there is room: a node, and the actor on it.

        Raises:
            NotReady: there is none.
        """
        used = Counter(each.node for each in self._made if each.actor is not None)
        free = [
            (here, used[node], node)
            for (node, here), count in self._offers().items()
            if used[node] < count and (here or not self._only_here)
        ]
        if not free:
            raise NotReady(
                f"no node has room for another generator: each holds one '{self._settings.resource}'",
                where=f"{self.where}: {sum(used.values())} run",
            )
        node = min(free)[2]
        made = self._ray.remote(concurrency_groups=dict(GeneratorOnNode.GROUPS))(GeneratorOnNode)
        return node, made.options(**options_on(node, 1, self._settings)).remote(Surroundings.here())

    def opened(self, node: str, opening: Any) -> dict[str, Any]:
        """What ``GeneratorOnNode.open`` gives, once it is there.

        Raises:
            NotReady: its node was not free in time, or the measurement was stopped.
            WorkbenchError: why it cannot run there.
        """
        deadline = self._clock() + int(self._settings.start_s * 1e9)
        while self._clock() < deadline and not self._stop.is_set():
            if self._ray.wait([opening], timeout=_LOOK_S)[0]:
                try:
                    return dict(self._ray.get(opening))
                except Exception as error:
                    raise explained(cause_of(error), node, "starting a load generator") from error
        if self._stop.is_set():
            raise NotReady("stopped before the load generators ran", where=self.where)
        raise NotReady(
            f"the '{self._settings.resource}' of node {node[:8]} was not free within {self._settings.start_s:g} s",
            where=self.where,
            hint="a sweep may hold it; Ray(start_s=...) waits longer",
        )

    @property
    def ray(self) -> Any:
        """Ray, while it is connected."""
        return self._ray

    def close(self) -> None:
        """Ends the generators; disconnects where ``open`` has connected."""
        for each in self._made:
            each.close()
        if self._connected:
            self._connected = False
            self._ray.shutdown()


class _FarGenerator:
    """One generator, led from here (``profiling.generators.Generator``): its stamps are moved to the clock here."""

    def __init__(self, place: RayGenerators, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self.node = ""
        self.actor: Any = None
        self._opening: Any = None
        self._about: dict[str, Any] = {}
        self._hearing: Any = None
        self._asked = 0
        self._clocks = ClockMap(Fix(0, 0, 0))

    @property
    def pid(self) -> int | None:
        """Its process id on its node, while it lives."""
        return self._about.get("pid") if self.actor is not None else None

    def launch(self) -> bool:
        """Starts it on a node, if it does not run; see ``Generator``."""
        if self.actor is not None:
            return False
        self._about, self._hearing = {}, None
        self.node, self.actor = self._place.start()
        self._opening = self.actor.open.remote()
        return True

    def greet(self) -> None:
        """Waits until it is there; errors as ``RayGenerators.opened``."""
        self._about = self._place.opened(self.node, self._opening)

    def begin(self, job: Job, share: Share) -> None:
        """Reads its clock and hands over its share of a run, which waits for its turns.

        Raises:
            InternalError: the node does not take it.
        """
        self._clocks = ClockMap(self._fix())
        begun = self.actor.begin.options(concurrency_group="turns").remote(job, share)
        try:
            self._place.ray.get(begun, timeout=_BEGIN_S)
        except Exception as error:
            text = text_of(cause_of(error)).strip().splitlines()[0]
            raise InternalError(f"node {self.node[:8]} does not take the load: {text}", where=job.url) from error
        if self._hearing is None:  # else what the run before has left asks still: it must not hear for nobody
            self._hear()
        self._asked = self._clock()

    def tell(self, head: dict[str, Any], blob: bytes = b"") -> None:
        """Sends a command, with its time by the clock there; if it does not arrive, ``heard`` says why."""
        assert not blob, "commands of a led run have none"
        if self.actor is None:
            raise InternalError("the load generator is closed")
        if "at" in head:
            head = {**head, "at": self._clocks.there(head["at"])}
        with contextlib.suppress(Exception):
            self.actor.tell.options(concurrency_group="turns").remote(head)

    def heard(self) -> list[Frame | None]:
        """What it has said since the last time, without waiting."""
        if self._hearing is None or self.actor is None:
            return []
        ray = self._place.ray
        try:
            if not ray.wait([self._hearing], timeout=0)[0]:
                if self._clock() - self._asked < _SILENT_NS:
                    return []
                return [_gone(f"has not been heard of for {_SILENT_NS / 1e9:g} s")]
            frames = ray.get(self._hearing)
        except Exception as error:
            return [_gone(f"was lost: {text_of(cause_of(error)).strip().splitlines()[0]}")]
        self._hear()
        return [self._moved(frame) for frame in frames]

    def result(self, frame: Frame | None, url: str) -> Samples | None:
        """The samples where a frame has them, by the clock here; errors as ``GeneratorProcess.result``."""
        assert frame is not None, "its end is an event"
        head, _ = frame
        on = f"on node {self.node[:8]}"
        if head["event"] == _GONE:
            self.close()
            raise InternalError(f"the load generator {on} {head['text']}", where=url)
        try:
            samples = samples_in(frame, url)
        except ConnectionFailed as error:
            error.where, error.hint = f"{url}, {on}", "the address must be one that this node reaches"
            raise
        if samples is None:
            return None
        try:
            self._clocks = replace(self._clocks, after=self._fix())
        except WorkbenchError as error:
            self.close()
            raise InternalError(f"the load generator {on} was lost at its end: {error.message}", where=url) from error
        place = {
            "node": self.node[:8],
            "here": self._about["token"] == device_token(),
            "uncertainty_ms": self._clocks.uncertainty_ns / 1e6,
            "note": f"node {self.node[:8]}: {self._about['note']}" if self._about["note"] else "",
        }
        own = moved(samples, self._clocks)
        return replace(own, extra={**own.extra, "place": place})

    def close(self) -> None:
        """Ends it; also in the middle of a run. May be called twice."""
        actor, self.actor = self.actor, None
        # After a shutdown most calls of Ray would start a cluster here; actors end with the connection.
        if actor is not None and self._place.ray.is_initialized():
            with contextlib.suppress(Exception):
                self._place.ray.kill(actor)

    def _hear(self) -> None:
        self._asked = self._clock()
        self._hearing = self.actor.heard.remote()

    def _fix(self) -> Fix:
        """One moment by both clocks.

        Raises:
            InternalError: the node does not answer.
        """
        now = self.actor.now.options(concurrency_group="clock")
        try:
            return best_fix(round_trips(lambda: int(self._place.ray.get(now.remote(), timeout=_CLOCK_S)), self._clock))
        except Exception as error:
            raise InternalError(
                f"the clock of node {self.node[:8]} cannot be read: {text_of(cause_of(error)).strip().splitlines()[0]}"
            ) from error

    def _moved(self, frame: Frame) -> Frame:
        head, blob = frame
        if head["event"] != "answers":
            return frame
        return head, self._clocks.here(np.frombuffer(blob, np.int64)).tobytes()


def _gone(text: str) -> Frame:
    return {"event": _GONE, "text": text}, b""
