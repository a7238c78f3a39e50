"""The rounds of a step: the decision depends on what the stages report, not on who reports first."""

import math

import pytest

from brigade.coordinator.run_steps import StepRounds
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import StageStatistics
from brigade.wire.messages import GradientsReady, StepApplied
from brigade.wire.plan import NodeContact, Plan, StagePlan
from brigade.wire.run_spec import TrainingSpec

SQUARES = (1.0, 1e-16, 1e16, 0.1, 3e-9)  # their sum depends on the order in which they are added


def make_rounds():
    contact = NodeContact(node_id="n", name="n", public_key="k", endpoint="tcp://h:1")
    stages = tuple(StagePlan(contact=contact, first_block=i, end_block=i + 1) for i in range(len(SQUARES)))
    plan = Plan(
        run_id="run-1",
        generation=0,
        stages=stages,
        schedule="1f1b",
        microbatches=1,
        train_samples=2,
        validation_samples=0,
        boundaries=(),
    )
    training = TrainingSpec(max_steps=2, batch_size=2, microbatches=1, max_grad_norm=0.5)
    return StepRounds(training, plan, attempt=1, first_step=0, sample_ids=lambda step: [0, 1])


@pytest.mark.parametrize("first", range(len(SQUARES)))
def test_the_decision_does_not_depend_on_which_stage_reports_first(first):
    rounds = make_rounds()
    for stage in [*range(first, len(SQUARES)), *range(first)]:
        report = GradientsReady(
            generation=0,
            step=0,
            stage=stage,
            squared_norm=SQUARES[stage],
            finite=True,
            loss_sum=1.0,
            target_count=2,
            samples=(0, 1) if stage == len(SQUARES) - 1 else (),
        )
        decision = rounds.take_gradients(report)
    assert decision is not None
    assert decision.gradient_scale == 0.5 / (math.sqrt(sum(SQUARES)) + 1e-6)


def test_a_skipped_step_has_no_norm():
    rounds = make_rounds()
    last = len(SQUARES) - 1
    for stage in range(last + 1):
        samples = (0, 1) if stage == last else ()
        rounds.take_gradients(
            GradientsReady(generation=0, step=0, stage=stage, squared_norm=1.0, finite=stage != 1, samples=samples)
        )
    updates = [
        StepApplied(generation=0, step=0, stage=stage, statistics=StageStatistics()) for stage in range(last + 1)
    ]
    *_, commit = [rounds.take_update(update, 1.0) for update in updates]
    assert commit.skipped
    assert commit.gradient_norm is None


def make_overlapping(versions=2, stages=2, steps=6):
    contact = NodeContact(node_id="n", name="n", public_key="k", endpoint="tcp://h:1")
    plan = Plan(
        run_id="run-1",
        generation=0,
        stages=tuple(StagePlan(contact=contact, first_block=i, end_block=i + 1) for i in range(stages)),
        schedule="ls-1f1b",
        microbatches=1,
        train_samples=2,
        validation_samples=0,
        boundaries=(),
        mode="async",
        versions=versions,
    )
    training = TrainingSpec(max_steps=steps, batch_size=2, microbatches=1)
    return StepRounds(training, plan, attempt=1, first_step=0, sample_ids=lambda step: [0, 1])


def through(rounds, step, stages=2):
    """All stages are through with a step; return the decision."""
    reports = [
        GradientsReady(
            generation=0,
            step=step,
            stage=stage,
            squared_norm=1.0,
            finite=True,
            samples=(0, 1) if stage == stages - 1 else (),
        )
        for stage in range(stages)
    ]
    *_, decision = [rounds.take_gradients(report) for report in reports]
    return decision


def applied(rounds, step, stages=2):
    updates = [
        StepApplied(generation=0, step=step, stage=stage, statistics=StageStatistics()) for stage in range(stages)
    ]
    *_, commit = [rounds.take_update(update, float(step)) for update in updates]
    return commit


def test_a_step_is_decided_before_the_one_before_is_applied_and_rows_are_stored_in_order():
    rounds = make_overlapping()
    assert through(rounds, 0).step == 0
    assert through(rounds, 1).step == 1, "nobody has applied step 0"
    first = applied(rounds, 0)
    assert first.step == 0
    assert applied(rounds, 1) is None, "step 0 is not safe on disk"
    decision, commit = rounds.stored(0)
    assert (decision, commit.step) == (None, 1)
    assert rounds.stored(1) == (None, None)
    assert rounds.step == 2


def test_decisions_do_not_run_away_from_the_ledger():
    rounds = make_overlapping(steps=20)
    for step in range(5):
        assert through(rounds, step).step == step
        applied(rounds, step)
    assert through(rounds, 5) is None
    decision, commit = rounds.stored(0)
    assert (decision.step, commit.step) == (5, 1)


def test_what_was_begun_beyond_the_last_step_is_ignored():
    rounds = make_overlapping()
    rounds.closing = True
    assert through(rounds, 0).last
    assert through(rounds, 1) is None
    assert applied(rounds, 0).step == 0


def test_no_stage_can_be_further_ahead_than_its_versions_allow():
    rounds = make_overlapping(versions=2)
    rounds.take_gradients(GradientsReady(generation=0, step=3, stage=0, squared_norm=1.0, finite=True))
    with pytest.raises(RemoteProtocolError, match="step 4 is not open; step 0 is"):
        rounds.take_gradients(GradientsReady(generation=0, step=4, stage=0, squared_norm=1.0, finite=True))
