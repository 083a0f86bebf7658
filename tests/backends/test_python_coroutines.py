"""Coroutines of a model that several of its threads wait for: one loop, each gets its own result."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.backends._child.coroutines import SharedLoop

THREADS = 4


async def give(value: int, pause_s: float) -> int:
    if pause_s:
        await asyncio.sleep(pause_s)
    return value


def test_each_thread_gets_its_own_results() -> None:
    shared = SharedLoop()

    def work(number: int) -> list[int]:
        return [shared.run(give(1000 * number + i, (0, 0, 0.0005, 0.001)[(i + number) % 4])) for i in range(150)]

    with ThreadPoolExecutor(THREADS) as pool:
        working = [pool.submit(work, number) for number in range(THREADS)]
        for number, each in enumerate(working):
            assert each.result(30) == [1000 * number + i for i in range(150)]
    shared.close()


def test_whoever_runs_the_loop_may_leave_while_another_one_waits() -> None:
    shared = SharedLoop()
    first_runs, let_first_go = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def first() -> str:
        loops.append(asyncio.get_running_loop())
        first_runs.set()
        while not let_first_go.is_set():
            await asyncio.sleep(0.001)
        return "first"

    async def second() -> str:
        loops.append(asyncio.get_running_loop())
        let_first_go.set()
        await asyncio.sleep(0.05)
        return "second"

    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(shared.run, first())
        assert first_runs.wait(10)
        assert pool.submit(shared.run, second()).result(10) == "second"
        assert begun.result(10) == "first"
    assert loops[0] is loops[1]
    shared.close()


def test_what_a_coroutine_raises_is_raised_where_it_is_waited_for() -> None:
    shared = SharedLoop()

    async def fail() -> None:
        raise KeyError("x")

    for _ in range(2):
        with pytest.raises(KeyError):
            shared.run(fail())
    assert shared.run(give(3, 0)) == 3
    shared.close()


def test_it_runs_where_the_loop_of_a_notebook_runs() -> None:
    shared = SharedLoop()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def cell() -> None:
        here, task = asyncio.get_running_loop(), asyncio.current_task()
        assert shared.run(give(5, 0.001)) == 5
        with pytest.raises(KeyError):
            shared.run(fail())
        assert asyncio.get_running_loop() is here
        assert asyncio.current_task() is task
        await asyncio.sleep(0)

    asyncio.run(cell())
    shared.close()
