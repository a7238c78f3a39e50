"""The simulator against closed forms, the worked table and accounts that must add up."""

import dataclasses
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.partition.line_cases import WORKED, even_line, lines

from brigade.partition.closed_forms import (
    capacity,
    delay,
    gate_is_free,
    least_per_update,
    makespan_bound_s,
    minimal_warm_ups,
    passage_s,
    period_s,
    plain_warm_ups,
)
from brigade.partition.line import HopTime, Line, Server, StageTime
from brigade.partition.policy import alternation
from brigade.partition.schedule import build
from brigade.partition.simulation.disturbances import Noise
from brigade.partition.simulation.run import Tie, UpdateRound, simulate
from brigade.partition.simulation.stage import HeldOut, Work
from brigade.partition.simulation.walks import in_order, strict_alternation
from brigade.wire.errors import PlanError


def random_line(seed: int) -> Line:
    """Two to nine stages of speeds 1 to 8, hops from LAN to ocean, some with a split backward and coding."""
    chance = random.Random(seed)
    count = chance.randint(2, 9)
    split = chance.random() < 0.3
    stages = []
    for _ in range(count):
        forward, backward = chance.uniform(0.05, 0.4), chance.uniform(0.1, 0.8)
        stages.append(
            StageTime(
                forward,
                backward,
                weights_s=backward * chance.uniform(0.2, 0.6) if split else 0.0,
                encode_s=chance.choice([0.0, 0.02]),
                decode_s=chance.choice([0.0, 0.02]),
            )
        )
    hops = [
        HopTime(chance.uniform(0, 0.7), chance.uniform(0, 0.7), chance.uniform(0, 0.4), chance.uniform(0, 0.4))
        for _ in range(count - 1)
    ]
    return Line(tuple(stages), tuple(hops))


def random_warm_ups(line: Line, seed: int) -> tuple[int, ...]:
    """Between plain 1F1B and what the capacity takes, never rising along the line."""
    chance = random.Random(-seed - 1)
    minimal = minimal_warm_ups(line, capacity(line).period_s * chance.choice([1.0, 1.1, 1.5, 2.0]))
    return chance.choice([minimal, plain_warm_ups(len(line.stages)), tuple(w // 2 for w in minimal)])


def steady_period_s(line: Line, warm_ups, microbatches: int = 250) -> float:
    return simulate(line, strict_alternation(warm_ups, microbatches), Work(microbatches, microbatches)).period_s


def test_three_hundred_random_lines_have_the_period_of_the_closed_form() -> None:
    errors = []
    for seed in range(300):
        line = random_line(seed)
        warm_ups = random_warm_ups(line, seed)
        errors.append(steady_period_s(line, warm_ups) / period_s(line, warm_ups) - 1)
    assert max(map(abs, errors)) < 0.01, (min(errors), max(errors))


@pytest.mark.parametrize("case", WORKED, ids=lambda case: case.name)
def test_the_worked_table(case) -> None:
    line = case.line
    assert steady_period_s(line, minimal_warm_ups(line, case.period_s)) == pytest.approx(case.period_s, rel=0.001)
    plain = steady_period_s(line, plain_warm_ups(case.stages))
    assert abs(100 * case.period_s / plain - case.plain_percent) <= 1
    if case.flush_microbatches is not None:
        m = case.flush_microbatches
        step = simulate(line, strict_alternation(minimal_warm_ups(line, case.period_s), m), Work(m, m))
        assert m * case.period_s / step.makespan_s == pytest.approx(0.9, abs=0.01)


@given(line=lines(), microbatches=st.integers(1, 40))
def test_the_flush_bound_holds(line: Line, microbatches: int) -> None:
    warm_ups = minimal_warm_ups(line, capacity(line).period_s)
    report = simulate(line, strict_alternation(warm_ups, microbatches), Work(microbatches, microbatches))
    bound = makespan_bound_s(line, warm_ups, microbatches)
    assert report.makespan_s <= bound * (1 + 1e-9)
    assert report.makespan_s >= max(passage_s(line), microbatches * capacity(line).period_s) * (1 - 1e-9)
    if microbatches == 1:
        assert report.makespan_s == pytest.approx(passage_s(line))


def test_gpipe_equals_latency_sized_1f1b_and_plain_1f1b_is_slower() -> None:
    line = even_line(8, 0.3, 0.06)
    m = 32
    warm_ups = minimal_warm_ups(line, 0.3)
    sized = simulate(line, strict_alternation(warm_ups, m), Work(m, m)).makespan_s
    gpipe = simulate(line, in_order(build("gpipe", 8, m)), Work(m, m)).makespan_s
    plain = simulate(line, in_order(build("1f1b", 8, m)), Work(m, m)).makespan_s
    assert sized == pytest.approx(gpipe, rel=0.02)
    assert plain > 1.2 * gpipe


@given(line=lines(), per_update=st.integers(1, 9), data=st.data())
def test_updates_crossed_between_forward_and_backward(line: Line, per_update: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 4), min_size=len(line.stages) - 1, max_size=len(line.stages) - 1))
    warm_ups = [sum(steps[k:]) for k in range(len(line.stages))]
    total = 12 * per_update + 2 * warm_ups[0]
    report = simulate(line, strict_alternation(warm_ups, total), Work(total, per_update, versions=None))
    assert [max(stage.delays) for stage in report.stages] == [delay(w, per_update) for w in warm_ups]
    assert all(sum(stage.delays.values()) == total for stage in report.stages)


@given(
    line=lines(),
    kind=st.sampled_from(["gpipe", "1f1b", "alternation"]),
    steps=st.integers(1, 4),
    per_update=st.integers(1, 9),
    versions=st.integers(1, 3),
    optimizer=st.floats(0, 1),
    way=st.none() | st.floats(0, 1),
    noise=st.sampled_from([Noise(), Noise(compute_cv=0.3, transfer_cv=0.3, way_jitter_s=0.2, loss=0.1)]),
)
def test_the_times_of_a_stage_add_up(line, kind, steps, per_update, versions, optimizer, way, noise) -> None:
    count = len(line.stages)
    line = Line(tuple(dataclasses.replace(stage, optimizer_s=optimizer) for stage in line.stages), line.hops)
    if kind == "alternation":
        walks = alternation(plain_warm_ups(count), 1)
    else:
        walks, versions = in_order(build(kind, count, per_update)), 1
    update_round = UpdateRound() if way is None else UpdateRound((way,) * count, 0.01)
    work = Work(steps * per_update, per_update, versions)
    report = simulate(line, walks, work, update_round=update_round, noise=noise, seed=4)
    assert len(report.finishes_s) == work.microbatches
    assert len(report.commits_s) == len(report.batch_ends_s) == steps
    assert report.commits_s[-1] == report.wall_s
    for k, (time, stage) in enumerate(zip(line.stages, report.stages, strict=True)):
        assert stage.wall_s == pytest.approx(report.wall_s)
        assert min(dataclasses.astuple(stage)[:8]) >= 0
        assert stage.optimizer_s == pytest.approx(steps * optimizer)
        if noise == Noise():
            assert stage.forward_s == pytest.approx(work.microbatches * time.forward_s)
            assert stage.backward_s == pytest.approx(work.microbatches * time.backward_s)
            loads = line.loads()
            assert report.busy_s[Server("compute", k)] == pytest.approx(stage.computing_s)
            for server, seconds in report.busy_s.items():
                extra = steps * optimizer if server.kind == "compute" else 0
                assert seconds == pytest.approx(work.microbatches * loads[server] + extra)


@given(
    line=lines(5),
    warm_ups=st.lists(st.integers(0, 6), min_size=5, max_size=5),
    slack=st.integers(0, 2),
    per_update=st.integers(1, 7),
    versions=st.integers(1, 3),
)
def test_the_policy_never_deadlocks(line: Line, warm_ups, slack, per_update, versions) -> None:
    walks = alternation(warm_ups[: len(line.stages)], slack)
    report = simulate(line, walks, Work(5 * per_update - 1, per_update, versions))
    assert len(report.finishes_s) == 5 * per_update - 1
    for stage, warm_up in zip(report.stages, warm_ups, strict=False):
        assert stage.peak_in_flight <= warm_up + 1 + slack
        assert max(stage.delays) <= versions


def test_a_gate_that_is_free_changes_nothing_on_random_lines() -> None:
    slower = 0
    for seed in range(60):
        line = random_line(seed)
        best = capacity(line).period_s
        warm_ups = minimal_warm_ups(line, best)
        versions, update_s = 2 + seed % 2, (0.0, 3.3 * best)[seed // 2 % 2]
        least = least_per_update(warm_ups[0], versions, update_s, best)
        assert gate_is_free(warm_ups, least, versions, update_s, best)
        for per_update in {least, max(least - 1, 1)}:
            total = per_update * (200 // per_update + 1)
            work = Work(total, per_update, versions)
            walks = strict_alternation(warm_ups, total)
            try:
                period = simulate(line, walks, work, update_round=UpdateRound(lag_s=update_s)).period_s
            except PlanError:
                assert per_update < least
                slower += 1
                continue
            if per_update == least:
                assert period == pytest.approx(best, rel=0.01), seed
            else:
                slower += period > best * 1.001
    assert slower > 30, "one microbatch less is often too few"


def test_a_strict_order_behind_a_gate_deadlocks_and_says_who_waits() -> None:
    line = even_line(3, 1.0, 0.1)
    with pytest.raises(PlanError, match=r"deadlock at .* stage 0 is gated after 3 forwards and 0 backwards"):
        simulate(line, strict_alternation([4, 2, 0], 30), Work(30, 3, versions=1))


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    line = random_line(3)
    noise = Noise(compute_cv=0.2, transfer_cv=0.2, way_jitter_s=0.05, loss=0.02)

    def run(seed: int):
        walks = alternation(minimal_warm_ups(line, capacity(line).period_s), 1)
        return simulate(line, walks, Work(60, 20, 2), noise=noise, seed=seed)

    first, again, other = run(1), run(1), run(2)
    assert np.array_equal(first.finishes_s, again.finishes_s)
    assert first.stages == again.stages
    assert not np.array_equal(first.finishes_s, other.finishes_s)


def test_noise_has_the_mean_that_it_replaces() -> None:
    line = Line((StageTime(1.0, 2.0),))
    report = simulate(line, alternation([0]), Work(4000, 4000), noise=Noise(compute_cv=0.5), seed=0)
    assert report.wall_s == pytest.approx(4000 * 3.0, rel=0.02)
    assert report.period_p90_s > report.period_s


def test_a_step_of_one_microbatch_by_hand() -> None:
    line = Line(
        (StageTime(1.0, 2.0, optimizer_s=0.5, encode_s=0.1, decode_s=0.2), StageTime(3.0, 4.0, 0.0, 0.25, 0.3, 0.4)),
        (HopTime(5.0, 6.0, 7.0, 8.0),),
    )
    report = simulate(line, alternation([1, 0]), Work(1, 1), update_round=UpdateRound((10.0, 20.0)))
    there = 1 + 0.1 + 5 + 7 + 0.4
    far = there + 3 + 4
    back = far + 0.3 + 6 + 8 + 0.2
    assert report.fill_s == pytest.approx(there)
    assert report.finishes_s[0] == report.makespan_s == pytest.approx(back + 2) == pytest.approx(passage_s(line))
    assert report.commits_s[0] == report.step_s == pytest.approx(back + 2 + 10 + max(10 + 0.5, 20 + 0.25))
    near, last = report.stages
    assert near.starved_s == pytest.approx(back - 1)
    assert near.gated_s == pytest.approx(20)
    assert near.finished_s == pytest.approx(10 + 0.25 - 0.5)
    assert last.starved_s + last.gated_s == pytest.approx(there + (back + 2 - far) + 10 + 20)
    assert report.utilisation[Server("gradients", 0)] == pytest.approx(6 / report.wall_s)
    assert near.peak_bytes(1000, 100, 10, 1) == 1000 + 100 + 1


def test_a_run_can_be_cut_short() -> None:
    line = even_line(3, 1.0, 0.1)
    report = simulate(line, alternation([2, 1, 0]), Work(100, 10, 2), until_s=45.0)
    assert report.wall_s == 45.0
    assert 30 < len(report.finishes_s) < 45
    assert len(report.commits_s) == len(report.finishes_s) // 10
    assert all(stage.wall_s == pytest.approx(45.0) for stage in report.stages)


@pytest.mark.parametrize("work", [Work(0, 1), Work(1, 0), Work(1, 1, 0)])
def test_nothing_to_simulate_is_refused(work: Work) -> None:
    with pytest.raises(PlanError):
        simulate(even_line(1, 1.0, 0.0), alternation([0]), work)


def test_walks_must_match_the_line() -> None:
    with pytest.raises(PlanError):
        simulate(even_line(2, 1.0, 0.0), alternation([0]), Work(1, 1))
    assert math.isinf(simulate(even_line(2, 1.0, 5.0), alternation([1, 0]), Work(9, 9), until_s=1.0).fill_s)


@settings(max_examples=20)
@given(steps=st.integers(2, 5), microbatches=st.integers(1, 12), stages=st.integers(1, 5))
def test_steps_with_a_flush_are_equally_long(steps: int, microbatches: int, stages: int) -> None:
    line = even_line(stages, 1.0, 0.2)
    whole = simulate(line, in_order(build("1f1b", stages, microbatches)), Work(steps * microbatches, microbatches))
    one = simulate(line, in_order(build("1f1b", stages, microbatches)), Work(microbatches, microbatches))
    assert whole.step_s >= one.makespan_s - 2 * sum(1.0 + 0.4 for _ in range(stages))
    assert whole.period_s == pytest.approx(whole.step_s / microbatches)


def test_a_tied_parameter_by_hand() -> None:
    """The owner waits for the gradient before the round, the follower for the new value before the next step."""
    line = Line(
        (StageTime(1.0, 2.0, optimizer_s=0.5), StageTime(3.0, 4.0, optimizer_s=0.25)), (HopTime(0.0, 0.0, 5.0),)
    )
    tie = Tie(owner=0, follower=1, gradient_s=30.0, weight_s=40.0)
    report = simulate(line, alternation([0, 0]), Work(2, 1), update_round=UpdateRound((1.0, 1.0), ties=(tie,)))
    follower_done = 1 + 5 + 7
    summed = follower_done + 30  # after the owner's own backward, at 20
    owner_updates = summed + 2 + 0.5
    follower_goes_on = owner_updates + 40
    assert report.commits_s[0] == pytest.approx(follower_goes_on)
    # the owner goes on at once: its next activation waits for the follower
    assert report.finishes_s[1] == pytest.approx(follower_goes_on + 7 + 5 + 2)
    with pytest.raises(PlanError, match="cannot share"):
        simulate(line, alternation([0, 0]), Work(1, 1), update_round=UpdateRound(ties=(Tie(0, 2, 0.0, 0.0),)))


def test_held_out_microbatches_by_hand() -> None:
    line = Line((StageTime(1.0, 2.0), StageTime(3.0, 4.0)), (HopTime(0.0, 0.0, 5.0),))
    report = simulate(line, alternation([0, 0]), Work(2, 1, held_out=HeldOut(2, after=[0])))
    step = 1 + 5 + 7 + 5 + 2
    assert report.commits_s[0] == pytest.approx(step)
    # two forwards at the first stage, then its own forward of the next step; the last stage has 3 s each behind them
    evaluated = step + 1 + 5 + 3 + 3
    assert report.commits_s[1] == pytest.approx(evaluated + 7 + 5 + 2)
    assert [stage.evaluation_s for stage in report.stages] == pytest.approx([2, 6])
    assert all(stage.wall_s == pytest.approx(report.wall_s) for stage in report.stages)
    assert report.stages[0].forward_s == pytest.approx(2)


def test_whoever_watches_sees_everything_once() -> None:
    line = Line((StageTime(1.0, 2.0, 0.0, 0.5, 0.25, 0.25),) * 2, (HopTime(0.5, 0.5, 1.0),))
    seen: list[tuple[str, int, int, float, float]] = []
    report = simulate(line, alternation([1, 0]), Work(3, 3), watch=lambda *what: seen.append(what))
    kinds = Counter((kind, stage) for kind, stage, *_ in seen)
    both = ["forward", "backward", "optimizer"]
    first = ["encode_activation", "sent_activation", "arrived_gradient", "decode_gradient"]
    last = ["arrived_activation", "decode_activation", "encode_gradient", "sent_gradient"]
    assert kinds == {
        **{(kind, stage): 1 if kind == "optimizer" else 3 for kind in both for stage in (0, 1)},
        **{(kind, 0): 3 for kind in first},
        **{(kind, 1): 3 for kind in last},
    }
    for k, stage in enumerate(report.stages):
        spent = sum(end - begin for kind, at, _, begin, end in seen if at == k and kind in both)
        assert spent == pytest.approx(stage.computing_s)
