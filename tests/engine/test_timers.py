from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from workbench.clock import monotonic_ns
from workbench.engine.timers import Timers, has_timerfd, set_timer_slack

uvloop = pytest.importorskip("uvloop")

US = 1_000
MS = 1_000_000

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = LOOPS[request.param]()
    yield loop
    loop.close()


@pytest.fixture(params=["timerfd", "thread"])
def timers(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Iterator[Timers]:
    if request.param == "timerfd" and not has_timerfd():
        pytest.skip("no timerfd on this system")
    timers = Timers(loop, use_thread=request.param == "thread")
    yield timers
    timers.close()


def run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(asyncio.wait_for(work, 20))


async def fired_at(timers: Timers, delay_ns: int) -> tuple[int, int]:
    """(asked, got) of one timer."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asked = monotonic_ns() + delay_ns
    timers.call_at(asked, lambda: done.set_result(monotonic_ns()))
    return asked, await done


def test_never_early_and_close_to_what_was_asked(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    late: list[int] = []
    medians: list[int] = []

    async def work() -> None:
        for _ in range(10):  # a machine under load may be late for a while
            begun = len(late)
            for delay in [50 * US, 100 * US, 300 * US, 700 * US, 1500 * US] * 8:
                asked, got = await fired_at(timers, delay)
                late.append(got - asked)
            medians.append(sorted(late[begun:])[20])
            if medians[-1] < 1 * MS:
                return

    run(loop, work())
    assert min(late) >= 0
    assert min(medians) < 1 * MS  # a loop by itself is wrong by more; the benchmark has the real bound
    kept = timers.lateness()
    assert kept.count == len(late)
    assert 0 <= kept.median_ns <= kept.p99_ns <= kept.max_ns <= max(late)


def test_many_deadlines_fire_once_each_in_their_order(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    chance = random.Random(7)
    got: list[int] = []

    async def work() -> None:
        done = asyncio.get_running_loop().create_future()
        start = monotonic_ns() + 5 * MS
        deadlines = [start + chance.randrange(0, 20) * MS for _ in range(300)]
        for deadline in deadlines:
            timers.call_at(deadline, lambda deadline=deadline: got.append(deadline))
        timers.call_at(max(deadlines) + MS, lambda: done.set_result(None))
        assert len(timers) == 301
        await done
        assert got == sorted(deadlines)
        assert len(timers) == 0

    run(loop, work())


def test_an_earlier_deadline_overtakes_the_armed_one(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    async def work() -> None:
        timers.call_at(monotonic_ns() + 10_000 * MS, lambda: pytest.fail("far away"))
        asked, got = await fired_at(timers, 200 * US)
        assert 0 <= got - asked < 1_000 * MS

    run(loop, work())


def test_a_deadline_beyond_all_time_is_none(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    async def work() -> None:
        timers.call_at(monotonic_ns() + 2**64 * 1000, lambda: pytest.fail("it fired"))  # an uint64 of microseconds
        await asyncio.sleep(0.05)
        asked, got = await fired_at(timers, 200 * US)
        assert 0 <= got - asked < 1_000 * MS
        assert len(timers) == 1

    run(loop, work())


def test_a_deadline_in_the_past_fires_at_once_but_not_inside_the_call(
    loop: asyncio.AbstractEventLoop, timers: Timers
) -> None:
    async def work() -> None:
        for deadline in (monotonic_ns() - 5_000 * MS, 0, -1):
            done = asyncio.get_running_loop().create_future()
            timers.call_at(deadline, lambda done=done: done.set_result(None))
            assert not done.done()
            await done

    run(loop, work())
    assert timers.lateness().max_ns < 5_000 * MS  # counted from when it was asked for


def test_cancelled_ones_do_not_fire_and_leave_no_heap_behind(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    async def work() -> None:
        soon = monotonic_ns() + 2 * MS
        handles = [timers.call_at(soon, lambda: pytest.fail("cancelled")) for _ in range(1000)]
        for handle in handles:
            assert handle.pending
            handle.cancel()
            handle.cancel()
            assert not handle.pending
        assert len(timers) == 0
        asked, got = await fired_at(timers, 4 * MS)
        assert got >= asked
        assert timers.lateness().count == 1

    run(loop, work())


def test_a_callback_may_cancel_another_that_is_due_in_the_same_round(
    loop: asyncio.AbstractEventLoop, timers: Timers
) -> None:
    async def work() -> None:
        past = monotonic_ns() - MS
        done = asyncio.get_running_loop().create_future()
        timers.call_at(past, lambda: other.cancel())
        other = timers.call_at(past, lambda: pytest.fail("cancelled"))
        timers.call_at(past, lambda: done.set_result(None))
        await done
        assert len(timers) == 0

    run(loop, work())
    assert timers.lateness().count == 2


def test_a_callback_may_ask_for_the_next_one(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    async def work() -> None:
        done = asyncio.get_running_loop().create_future()
        left = 50

        def again() -> None:
            nonlocal left
            left -= 1
            if left:
                timers.call_at(monotonic_ns() + 20 * US, again)
            else:
                done.set_result(None)

        again()
        await done

    run(loop, work())
    assert timers.lateness().count == 49


def test_a_failing_callback_is_reported_and_stops_no_other(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    seen: list[Any] = []
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))

    async def work() -> None:
        past = monotonic_ns() - MS
        timers.call_at(past, lambda: 1 // 0)
        await fired_at(timers, 0)

    run(loop, work())
    assert [type(error) for error in seen] == [ZeroDivisionError]


def test_after_close_nothing_fires_and_nothing_can_be_asked(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    async def work() -> None:
        handle = timers.call_at(monotonic_ns() + MS, lambda: pytest.fail("closed"))
        timers.close()
        timers.close()
        assert not handle.pending
        with pytest.raises(RuntimeError, match="closed"):
            timers.call_at(0, lambda: None)
        await asyncio.sleep(0.005)

    run(loop, work())


def test_closing_after_the_loop_is_no_error(loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
    timers.call_at(monotonic_ns(), lambda: None)
    loop.close()
    timers.close()


def test_a_waker_that_comes_too_early_is_sent_back(loop: asyncio.AbstractEventLoop) -> None:
    """A clock that lags makes every wake-up early; the callback still waits for its time."""
    lag = 3 * MS
    timers = Timers(loop, clock=lambda: monotonic_ns() - lag)

    async def work() -> None:
        done = asyncio.get_running_loop().create_future()
        asked = monotonic_ns() + MS
        timers.call_at(asked, lambda: done.set_result(monotonic_ns()))
        assert await done - asked >= lag

    try:
        run(loop, work())
    finally:
        timers.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="timer slack is Linux's")
def test_timer_slack_is_set_for_the_calling_thread() -> None:
    import ctypes
    import threading

    got: list[int] = []

    def thread() -> None:
        assert set_timer_slack(1_000)
        got.append(ctypes.CDLL(None).prctl(30, 0, 0, 0, 0))  # PR_GET_TIMERSLACK

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    assert got == [1_000]
