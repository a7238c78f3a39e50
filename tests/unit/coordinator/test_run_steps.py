"""What is decided about a step, who may say what about it, and what the owner hears."""

import pytest


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
