from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from workbench.clock import monotonic_ns
from workbench.engine.busy_poll import BusyPoll

uvloop = pytest.importorskip("uvloop")

MS = 1_000_000
LIMIT = 400 * MS
"""Far longer than in a server, so that waking is told from sleeping on a machine that is busy otherwise."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core only"
)


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = LOOPS[request.param]()
    yield loop
    loop.close()


def switches() -> int:
    """How often this thread has gone to sleep."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def sleeps_until(
    loop: asyncio.AbstractEventLoop,
    expected_ns: int,
    limit_ns: int,
    answer_s: float,
    begin: Callable[[BusyPoll], None] | None = None,
) -> tuple[int, float]:
    """How often the loop sleeps until something comes from elsewhere after ``answer_s``; and when it came, in ms."""
    poll = BusyPoll(loop, monotonic_ns, limit_ns)
    if begin is not None:
        begin(poll)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pid = os.fork()  # not a thread: that would want the interpreter's lock
    if not pid:
        select.select([], [], [], answer_s)
        theirs.send(b"x")
        os._exit(0)

    async def work() -> tuple[int, float]:
        await asyncio.sleep(0)
        before, begun = switches(), monotonic_ns()
        if begin is None:
            poll.expect(expected_ns)
        await asyncio.get_running_loop().sock_recv(ours, 1)
        return switches() - before, (monotonic_ns() - begun) / MS

    try:
        return loop.run_until_complete(asyncio.wait_for(work(), 20))
    finally:
        os.waitpid(pid, 0)
        ours.close()
        theirs.close()


def test_what_is_expected_soon_is_awaited_awake_and_taken_as_soon_as_it_comes(loop: asyncio.AbstractEventLoop) -> None:
    slept, took_ms = sleeps_until(loop, 0, LIMIT, 0.1)
    assert slept == 0
    assert took_ms < 350


def test_what_takes_long_is_slept_for(loop: asyncio.AbstractEventLoop) -> None:
    slept, _ = sleeps_until(loop, LIMIT, LIMIT, 0.1)
    assert slept > 0


def test_nothing_is_known_before_the_first_batch(loop: asyncio.AbstractEventLoop) -> None:
    slept, _ = sleeps_until(loop, -1, LIMIT, 0.05)
    assert slept > 0


def test_the_limit_ends_it(loop: asyncio.AbstractEventLoop) -> None:
    slept, took_ms = sleeps_until(loop, 0, 50 * MS, 0.3)
    assert slept > 0
    assert took_ms >= 290


def test_a_limit_of_nothing_switches_it_off(loop: asyncio.AbstractEventLoop) -> None:
    slept, _ = sleeps_until(loop, 0, 0, 0.05)
    assert slept > 0


def rests(*, before_s: float | None) -> Callable[[BusyPoll], None]:
    """All is answered, for the second time if the first rest ended with a request after ``before_s``."""

    def begin(poll: BusyPoll) -> None:
        if before_s is not None:
            poll.rest()
            assert poll.resting
            threading.Event().wait(before_s)
            poll.wake()
            assert not poll.resting
        poll.rest()

    return begin


def test_the_next_request_of_one_who_asks_at_once_is_awaited_awake(loop: asyncio.AbstractEventLoop) -> None:
    slept, _ = sleeps_until(loop, 0, LIMIT, 0.1, rests(before_s=0.001))
    assert slept == 0


@pytest.mark.parametrize("before_s", [None, 0.1])
def test_the_next_request_of_one_who_takes_time_is_slept_for(
    loop: asyncio.AbstractEventLoop, before_s: float | None
) -> None:
    slept, _ = sleeps_until(loop, 0, 50 * MS, 0.02, rests(before_s=before_s))
    assert slept > 0


def test_what_comes_ends_it(loop: asyncio.AbstractEventLoop) -> None:
    poll = BusyPoll(loop, monotonic_ns, 10_000 * MS)

    async def work() -> int:
        poll.expect(0)
        await asyncio.sleep(0)
        poll.came()
        await asyncio.sleep(0.01)
        before = switches()
        await asyncio.sleep(0.05)
        return switches() - before

    assert loop.run_until_complete(asyncio.wait_for(work(), 20)) > 0


def test_everything_else_goes_on_meanwhile(loop: asyncio.AbstractEventLoop) -> None:
    poll = BusyPoll(loop, monotonic_ns, 10_000 * MS)

    async def work() -> float:
        begun = monotonic_ns()
        poll.expect(0)
        await asyncio.gather(*(loop.run_in_executor(None, int) for _ in range(20)), asyncio.sleep(0.01))
        poll.came()
        return (monotonic_ns() - begun) / MS

    assert loop.run_until_complete(asyncio.wait_for(work(), 20)) < 5000
