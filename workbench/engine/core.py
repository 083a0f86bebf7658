"""What all parts of one engine share: loop, clock, timers, records, events, loader threads, numbering."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from workbench.backends.custom_metrics import CustomMetrics
from workbench.backends.imports import freezing_imports
from workbench.clock import Clock
from workbench.engine.busy_poll import BusyPoll
from workbench.engine.capture import Captures
from workbench.engine.captured import CapturedRequests
from workbench.engine.devices import Placement
from workbench.engine.inbox import Inbox
from workbench.engine.inline import InlineCalls
from workbench.engine.nested import NestedCalls
from workbench.engine.options import EngineOptions
from workbench.engine.timers import Timers
from workbench.engine.turns import Turns
from workbench.records import EventLog, LogSettings, RecordRing

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one, else asyncio's own."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class EngineCore:
    """One engine's shared parts; made on the engine's loop thread."""

    def __init__(
        self,
        options: EngineOptions,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        records: RecordRing,
        events: EventLog,
        captured: CapturedRequests,
        custom_metrics: CustomMetrics,
        log_settings: LogSettings,
    ) -> None:
        self.options = options
        self.loop = loop
        self.clock = clock
        self.records = records
        self.events = events
        self.captured = captured
        self.log_settings = log_settings
        self.inbox = Inbox(loop)
        self.inbox.adopt_thread()
        self.custom_metrics = custom_metrics
        self.timers = Timers(loop, clock=clock)
        self.busy_poll = BusyPoll(loop, clock, int(options.busy_poll_us * 1000))
        self.loaders = ThreadPoolExecutor(max(1, options.load_threads), thread_name_prefix="workbench-loader")
        self.closers = ThreadPoolExecutor(4, thread_name_prefix="workbench-closer")
        limited = options.rate_limit == "execution_count"
        self.turns = Turns(options.rate_limit_resources, clock) if limited else None
        limiter = self.turns.limiter if self.turns is not None else None
        self.nested = NestedCalls(clock, self.timers, events, int(options.nested_wait_report_s * 1e9), limiter)
        if self.turns is not None:
            self.turns.nested = self.nested
        self.placement = Placement(options.gpus, options.min_compute_capability, options.host_policies)
        self.inline = InlineCalls(clock, enabled=options.inline)
        self.captures = Captures(loop, clock, events)
        self.next_seq = itertools.count().__next__
        self.next_generation = itertools.count(1).__next__
        self.tasks: set[asyncio.Task[Any]] = set()

    async def on_loader(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a blocking function on a loader thread; frameworks are imported there and nowhere else."""
        if self.options.freeze_imports:
            return await self.loop.run_in_executor(self.loaders, freezing_imports, function, *args)
        return await self.loop.run_in_executor(self.loaders, function, *args)

    async def on_closer(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a blocking function that ends something on a thread of its own pool, so that loads cannot hold it up."""
        return await self.loop.run_in_executor(self.closers, function, *args)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Runs a coroutine beside the others; an error in it becomes an event."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def protect(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits work that goes on to its end even if whoever waits for it is cancelled (a client that left)."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.events.append("log", "", f"background work failed: {error!r}", level="error")

    def close(self) -> None:
        """Frees timers and threads; called on the loop, when no model is left."""
        self.captures.close()
        self.timers.close()
        self.loaders.shutdown(wait=False, cancel_futures=True)
        self.closers.shutdown(wait=False)

    def join_threads(self) -> None:
        """Waits for the threads to end; not on the loop."""
        self.loaders.shutdown(wait=True)
        self.closers.shutdown(wait=True)
