"""How fast the simulator is: a large run within seconds of one core."""

import time

import pytest

from brigade.partition.closed_forms import capacity, minimal_warm_ups
from brigade.partition.line import Access, HopTime, Line, StageTime, connect
from brigade.partition.policy import alternation
from brigade.partition.simulation.run import simulate
from brigade.partition.simulation.stage import Work

STAGES = (StageTime(0.1, 0.2),) * 64
SEPARATE = Line(STAGES, (HopTime(0.05, 0.05, 0.02),) * 63)
SHARED = connect(STAGES, [Access(1e7, 1e7)] * 64, [1e6] * 63, [1e6] * 63, [0.02] * 63)


@pytest.mark.slow
@pytest.mark.parametrize("line", [SEPARATE, SHARED], ids=["separate hops", "shared ports"])
def test_ten_thousand_microbatches_over_sixty_four_stages(line: Line) -> None:
    best = capacity(line).period_s
    walks = alternation(minimal_warm_ups(line, 0.9 * best), 1)
    began = time.process_time()
    report = simulate(line, walks, Work(10_000, 500, versions=2))
    assert time.process_time() - began < 20
    assert report.period_s == pytest.approx(best, rel=0.001)
    assert len(report.commits_s) == 20
