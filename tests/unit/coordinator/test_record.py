import pytest

from brigade.coordinator.record import stage_totals
from brigade.coordinator.run_events import Commit
from brigade.wire.message_parts import StageStatistics


def commit(step, generation, *statistics):
    return Commit(
        step=step,
        attempt=0,
        generation=generation,
        loss=1.0,
        gradient_norm=1.0,
        learning_rate=1e-3,
        gradient_scale=1.0,
        skipped=False,
        tokens=10,
        samples=(0,),
        nodes=len(statistics),
        duration_s=0.1,
        statistics=statistics,
    )


def test_totals_are_sums_over_the_steps_of_one_plan():
    commits = [
        commit(0, 0, StageStatistics(tokens=1000)),  # another plan, with another number of stages
        commit(
            1, 1, StageStatistics(forward_bytes=5, tokens=10, wait_s=0.25), StageStatistics(backward_bytes=7, tokens=10)
        ),
        commit(
            2, 1, StageStatistics(forward_bytes=6, tokens=10, wait_s=0.5), StageStatistics(backward_bytes=8, tokens=10)
        ),
    ]
    first, second = stage_totals(commits, 1)
    assert (first.forward_bytes, first.tokens) == (11, 20)
    assert first.wait_s == pytest.approx(0.75)
    assert (second.backward_bytes, second.tokens) == (15, 20)
