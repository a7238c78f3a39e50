"""How much is in flight, and what a mode costs: against closed forms, the simulator and the worked example."""

import random

import pytest
from msgspec.structs import replace
from tests.unit.partition.line_cases import even_line
from tests.unit.partition.planning_cases import even_fleet

from brigade.partition.closed_forms import capacity, minimal_warm_ups, passage_s
from brigade.partition.course import set_course
from brigade.partition.line import HopTime, Line, StageTime
from brigade.partition.memory import needed_bytes
from brigade.partition.policy import alternation
from brigade.partition.simulation.run import UpdateRound, simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.sizing import (
    Sizing,
    ceaseless_period_s,
    enough_per_update,
    enough_versions,
    size_in_flight,
)
from brigade.partition.solve import plan
from brigade.wire.errors import PlanError
from brigade.wire.run_spec import PipelineSpec

PLENTY = 1 << 20


def random_line(seed: int) -> Line:
    chance = random.Random(seed)
    count = chance.randint(2, 6)
    stages = tuple(StageTime(chance.uniform(0.1, 0.3), chance.uniform(0.2, 0.6)) for _ in range(count))
    hops = (HopTime(chance.uniform(0, 0.1), chance.uniform(0, 0.1), chance.uniform(0.01, 0.5)) for _ in stages[1:])
    return Line(stages, tuple(hops))


def test_far_stages_keep_more_in_flight_than_near_ones():
    near, far = even_line(4, 0.3, 0.0), even_line(4, 0.3, 0.1)
    assert size_in_flight(near, [PLENTY] * 4, PLENTY) == Sizing(minimal_warm_ups(near, 0.9 * 0.3), 1)
    assert size_in_flight(far, [PLENTY] * 4, PLENTY) == Sizing(minimal_warm_ups(far, 0.8 * 0.3), 2)


@pytest.mark.parametrize("seed", range(20))
def test_memory_and_batches_bound_what_is_in_flight(seed):
    line, chance = random_line(seed), random.Random(seed)
    most = [chance.randint(1, 12) for _ in line.stages]
    sizing = size_in_flight(line, most, 5)
    assert all(cap <= limit for cap, limit in zip(sizing.caps, most, strict=True))
    assert max(sizing.warm_ups) <= 5
    assert sorted(sizing.warm_ups, reverse=True) == list(sizing.warm_ups)


@pytest.mark.parametrize("seed", range(12))
def test_the_predicted_period_is_that_of_the_simulator(seed):
    line, chance = random_line(seed), random.Random(seed)
    per_update, versions, way_s = chance.randint(2, 12), chance.randint(2, 3), chance.choice([0.0, 0.05])
    sizing = size_in_flight(line, [PLENTY] * len(line.stages), (versions - 1) * per_update)
    work = Work(40 * per_update, per_update, versions)
    ways = UpdateRound(coordinator_way_s=(way_s,) * len(line.stages))
    seen = simulate(line, alternation(sizing.warm_ups, sizing.slack), work, update_round=ways)
    predicted = per_update * ceaseless_period_s(line, sizing, per_update, versions, 2 * way_s)
    assert seen.step_s == pytest.approx(predicted, rel=0.12)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_said_to_be_enough_is_enough(seed):
    line, round_s = random_line(seed), 0.1
    best = capacity(line).period_s
    for versions in (2, 3):
        enough = enough_per_update(line, versions, round_s)
        gated = lambda k, v=versions: (passage_s(line) + round_s) / ((v - 1) * k + 1)  # noqa: E731
        assert gated(enough) <= best * (1 + 1e-9)
        assert enough == 1 or gated(enough - 1) > best
        assert enough_versions(line, enough, round_s) <= versions


@pytest.mark.parametrize(
    ("pipeline", "microbatches", "expected"),
    [
        (PipelineSpec(mode="async"), 40, ("async", 2, 1.0)),
        (PipelineSpec(mode="lowmem"), 40, ("lowmem", 2, 1.0)),
        (PipelineSpec(mode="stash"), 1, ("async", 14, 1.0)),
        (PipelineSpec(mode="async"), 4, ("async", 2, 1 / 3)),
        (PipelineSpec(mode="exact", schedule="ls-1f1b"), 40, ("exact", 1, 40 / 54)),
    ],
)
def test_courses_of_the_worked_line(pipeline, microbatches, expected):
    line = Line((StageTime(0.1, 0.2),) * 8, (HopTime(0.0, 0.0, 0.1285714285714286),) * 7)  # R_0 is 4.2 s, 14 periods
    course = set_course(line, UpdateRound(), pipeline, microbatches, [PLENTY] * 8, 2)
    mode, versions, efficiency = expected
    assert (course.mode, course.versions, course.schedule) == (mode, versions, "ls-1f1b")
    assert course.efficiency == pytest.approx(efficiency, rel=0.08)
    too_few = mode == "async" and microbatches == 4
    assert course.remark.endswith("raise training.microbatches to 13 or pipeline.versions to 5") is too_few


def make_plan(fleet, **pipeline):
    spec = fleet.spec()
    spec = replace(spec, pipeline=replace(spec.pipeline, **pipeline))
    measured = fleet.contacts(), fleet.devices(), fleet.chains(), fleet.links()
    return plan("r", 0, *measured, spec, 64, 8)


def test_auto_stays_exact_where_that_is_good_enough_and_says_why():
    near = make_plan(even_fleet(2, 4, microbatches=32), mode="auto", stages=2)
    assert (near.mode, near.versions, near.schedule) == ("exact", 1, "ls-1f1b")
    assert "exact, which reaches 9" in near.reason
    far = even_fleet(2, 4, microbatches=8, rtt_s={(0, 1): 20.0, (1, 0): 20.0})
    apart = make_plan(far, mode="auto", stages=2)
    assert (apart.mode, apart.versions) == ("async", 2)
    assert "; async, because exact reaches only " in apart.reason
    assert sorted(apart.warm_ups, reverse=True) == list(apart.warm_ups)
    assert apart.period_s < make_plan(far, mode="exact", stages=2).period_s


def test_where_steps_overlap_far_nodes_are_worth_it():
    pairs = {(a, b): 40.0 for a in range(3) for b in range(3) if a != b}
    far = even_fleet(3, 6, microbatches=8, rtt_s=pairs)
    assert len(make_plan(far, mode="exact").stages) == 1
    apart = make_plan(far, mode="async", versions=3)
    assert len(apart.stages) == 3
    assert apart.period_s == pytest.approx(6.0, rel=0.1)  # two blocks of 3 s


def test_a_second_copy_needs_memory_and_a_plan_without_room_is_refused():
    fleet = even_fleet(2, 4, persistent_bytes=[1000] * 4, memory_bytes=[2800] * 2, microbatches=4)
    assert make_plan(fleet, mode="exact", stages=2).versions == 1
    assert make_plan(fleet, mode="lowmem", stages=2).mode == "lowmem"
    with pytest.raises(PlanError, match="fits no split"):
        make_plan(fleet, mode="async", stages=2)
    roomy = make_plan(even_fleet(2, 4, persistent_bytes=[1000] * 4, memory_bytes=[4700] * 2), mode="async", stages=2)
    blocks = even_fleet(2, 4, persistent_bytes=[1000] * 4).chains()["id0"].blocks
    for stage, warm_up in zip(roomy.stages, roomy.warm_ups, strict=True):
        assert warm_up + 1 + roomy.slack <= stage.most_in_flight
        needed = needed_bytes(blocks, stage.most_in_flight, 2, overlapping=True)[stage.first_block, stage.end_block]
        assert needed <= 0.9 * 4700
