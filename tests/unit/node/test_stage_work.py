"""What a stage's work is counted as: computing, coding, and waits for the step's end."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_a_step_is_divided_into_computing_and_waits(clock: Clock, pool: ThreadPoolExecutor) -> None:
    work = StageWork(pool, pool, Recorder(None))

    async def step() -> None:
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
            await run(label, clock.passes, takes_s)

    asyncio.run(step())
    told = work.step_over(StageSeconds(forward_s=2.0, backward_s=4.0, optimizer_s=1.5), tokens=64)
    assert told.wall_s == pytest.approx(12.25)
    assert told.wait_s == pytest.approx(4.75)
    assert told.gated_s == pytest.approx(3.0)
    assert (told.encode_s, told.decode_s, told.tokens) == (0.5, 0.25, 64)
    assert work.step_over(StageSeconds(0.0, 0.0, 0.0), tokens=0).gated_s == 0  # the next step is counted anew
