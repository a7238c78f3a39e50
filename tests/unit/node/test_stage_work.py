"""What a stage's work is counted as: computing, coding, and waits for the step's end."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from brigade.node import stage_work
from brigade.node.stage_compute import StageSeconds
from brigade.node.stage_work import StageWork
from brigade.node.timeline import Label
from brigade.node.timeline_file import Recorder


class Clock:
    """Time that passes only when a job says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stage_work, "time", clock)
    return clock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def result_of(run: Callable[[Callable[[Any], None]], None]) -> Any:
    """Wait for what a job's result is given to."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    run(told.set_result)
    return await told


def test_a_step_is_divided_into_computing_and_waits(clock: Clock, pool: ThreadPoolExecutor) -> None:
    async def step() -> StageWork:
        work = StageWork(pool, pool, Recorder(None), pytest.fail)
        jobs: list[tuple[Callable[..., Any], Label, float, float]] = [
            (work.compute, Label("forward", 3, 0), 0.0, 2.0),
            (work.encode, Label("encode_activation", 3, 0), 0.0, 0.5),
            (work.decode, Label("decode_gradient", 3, 0), 1.0, 0.25),
            (work.compute, Label("backward", 3, 0), 0.0, 4.0),
            (work.compute, Label("sum", 3), 0.0, 0.5),
            (work.compute, Label("optimizer", 3), 3.0, 1.0),  # the others are not ready yet
        ]
        for run, label, wait_s, takes_s in jobs:
            clock.passes(wait_s)
            await result_of(partial(run, label, partial(clock.passes, takes_s)))
        return work

    work = asyncio.run(step())
    told = work.step_over(StageSeconds(forward_s=2.0, backward_s=4.0, optimizer_s=1.5), tokens=64)
    assert told.wall_s == pytest.approx(12.25)
    assert told.wait_s == pytest.approx(4.75)
    assert told.gated_s == pytest.approx(3.0)
    assert (told.encode_s, told.decode_s, told.tokens) == (0.5, 0.25, 64)
    assert work.step_over(StageSeconds(0.0, 0.0, 0.0), tokens=0).gated_s == 0  # the next step is counted anew


def test_a_job_that_costs_less_than_a_thread_is_done_at_once(pool: ThreadPoolExecutor) -> None:
    async def live() -> None:
        work = StageWork(pool, pool, Recorder(None), pytest.fail)
        results: list[int] = []
        work.encode(Label("encode_gradient", 0, 0), threading.get_ident, results.append, here=True)
        assert results == [threading.get_ident()]
        assert await result_of(partial(work.encode, Label("encode_gradient", 0, 0), threading.get_ident)) != results[0]

    asyncio.run(live())


@pytest.mark.parametrize("here", [True, False])
def test_whatever_goes_wrong_is_told_once(pool: ThreadPoolExecutor, here: bool) -> None:
    async def live() -> None:
        errors: asyncio.Queue[BaseException] = asyncio.Queue()
        work = StageWork(pool, pool, Recorder(None), errors.put_nowait)
        work.decode(Label("decode_gradient", 0, 0), lambda: 1 // 0, pytest.fail, here=here)
        assert isinstance(await errors.get(), ZeroDivisionError)
        work.decode(Label("decode_gradient", 0, 0), dict, lambda empty: empty["what its result leads to"], here=here)
        assert isinstance(await errors.get(), KeyError)
        assert errors.empty()

    asyncio.run(live())


def test_nothing_follows_once_it_is_closed(pool: ThreadPoolExecutor) -> None:
    async def live() -> None:
        work = StageWork(pool, pool, Recorder(None), pytest.fail)
        work.compute(Label("forward", 0, 0), int, pytest.fail)
        work.compute(Label("forward", 0, 1), lambda: 1 // 0, pytest.fail)
        work.close()
        await asyncio.get_running_loop().run_in_executor(pool, int)  # behind both
        await asyncio.sleep(0)

    asyncio.run(live())
