"""Seconds of a step against closed forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.line import HopTime, Line, StageTime
from brigade.partition.schedule import SCHEDULES, build, parse_schedule
from brigade.partition.timeline import step_seconds
from brigade.wire.errors import PlanError

NO_HOP = HopTime(0.0, 0.0, 0.0)


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(1, 7),
    microbatches=st.integers(1, 12),
    forward=st.integers(1, 9),
    backward=st.integers(1, 9),
)
def test_equal_stages_without_hops(name: str, stages: int, microbatches: int, forward: int, backward: int) -> None:
    """The bubble of GPipe and of 1F1B is (S-1)/(m+S-1)."""
    times = [StageTime(float(forward), float(backward))] * stages
    found = step_seconds(build(name, stages, microbatches), Line((*times,), (NO_HOP,) * (stages - 1)))
    assert found == (microbatches + stages - 1) * (forward + backward)


@given(stages=st.integers(2, 6), hop=st.integers(0, 8), compute=st.integers(1, 6))
def test_1f1b_pays_the_round_trip_of_a_hop_for_nearly_every_microbatch(stages: int, hop: int, compute: int) -> None:
    """Period of plain 1F1B with equal stages: c + C (S-1)/S, over any S microbatches in steady state."""
    times = [StageTime(float(compute), 2.0 * compute)] * stages
    hops = [HopTime(0.0, 0.0, hop / 2)] * (stages - 1)

    def step(microbatches: int) -> float:
        return step_seconds(build("1f1b", stages, microbatches), Line((*times,), (*hops,)))

    assert step(9 * stages) - step(8 * stages) == pytest.approx(stages * (3 * compute + hop * (stages - 1) / stages))


def test_gpipe_pays_the_round_trip_once() -> None:
    times = [StageTime(1.0, 2.0)] * 3
    hops = [HopTime(0.0, 0.0, 10.0)] * 2
    assert step_seconds(build("gpipe", 3, 5), Line((*times,), (*hops,))) == (5 + 2) * 3 + 2 * 2 * 10


def test_a_link_carries_one_value_at_a_time() -> None:
    times = [StageTime(1.0, 1.0)] * 2
    hops = [HopTime(activation_s=5.0, gradient_s=0.0, one_way_s=100.0)]
    # F0 ends at 1; values leave every 5 s; the last arrives at 1 + 4 * 5 + 100; then F3, B0 to B3 there, 100 back, B3
    assert step_seconds(build("gpipe", 2, 4), Line((*times,), (*hops,))) == 1 + 4 * 5 + 100 + 1 + 4 + 100 + 1


def test_a_single_stage_works_without_pause() -> None:
    assert step_seconds(build("1f1b", 1, 7), Line((StageTime(2.0, 3.0),))) == 35.0


@given(slow=st.integers(0, 3), microbatches=st.integers(1, 9))
def test_the_slowest_stage_beats_the_time(slow: int, microbatches: int) -> None:
    times = [StageTime(1.0, 1.0)] * 4
    times[slow] = StageTime(50.0, 50.0)
    found = step_seconds(build("1f1b", 4, microbatches), Line((*times,), (NO_HOP,) * 3))
    assert microbatches * 100 <= found <= 3 * 2 + microbatches * 100
    if slow == 3:  # nothing of what the others do is hidden behind the last stage
        assert found == 3 * 2 + microbatches * 100


def test_a_schedule_that_cannot_end_is_refused() -> None:
    with pytest.raises(PlanError):
        step_seconds(parse_schedule("F0 B0 F1 B1\nF1 F0 B0 B1"), Line((StageTime(1.0, 1.0),) * 2, (NO_HOP,)))
