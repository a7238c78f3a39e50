"""Weights and dropout are functions of the run's seed: no split, no recompute and no schedule changes a bit."""

import pytest
from tests.numerics.comparison import assert_same_bits, run_spec, warm_up
from tests.numerics.models import tokens
from tests.numerics.pipeline import Pipeline, even_splits

from brigade.partition.chain import plain_model
from brigade.partition.schedule import SCHEDULES
from brigade.wire.run_spec import GptSpec


def model(dropout=0.2, tied=False):
    return GptSpec(
        vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, max_position_embeddings=16,
        dropout=dropout, tie_word_embeddings=tied,
    )  # fmt: skip


def train(spec, cuts, steps=4):
    pipeline = Pipeline(spec, tokens(), cuts, learning_rate=warm_up(1e-2))
    return pipeline.run(range(steps)), pipeline.state()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_initial_weights_and_the_first_loss_do_not_depend_on_the_split(tied):
    spec = run_spec(model(tied=tied))
    expected = plain_model(spec.model, spec.seed).state_dict()
    losses = set()
    for stages in (1, 2, 3, 6):
        pipeline = Pipeline(spec, tokens(), even_splits(6, stages), learning_rate=warm_up(1e-2))
        assert_same_bits(pipeline.state(), expected)
        losses.add(pipeline.step(0).loss)
    assert len(losses) == 1


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_no_split_changes_a_bit_of_the_training(tied):
    spec = run_spec(model(tied=tied))
    rows, state = train(spec, [0, 6])
    for cuts in ([0, 1, 6], [0, 2, 4, 6], [0, 1, 2, 3, 4, 5, 6]):
        other_rows, other_state = train(spec, cuts)
        assert [row.loss for row in other_rows] == [row.loss for row in rows]
        assert_same_bits(other_state, state)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recompute_changes_no_bit(schedule, tied, bf16):
    results = [
        train(run_spec(model(tied=tied), schedule=schedule, gradient_checkpointing=on, bf16=bf16), [0, 2, 4, 6])
        for on in (False, True)
    ]
    assert results[0][0] == results[1][0]
    assert_same_bits(results[0][1], results[1][1])


def test_schedules_change_no_bit():
    first, *others = [train(run_spec(model(), schedule=schedule), [0, 2, 4, 6]) for schedule in SCHEDULES]
    for rows, state in others:
        assert rows == first[0]
        assert_same_bits(state, first[1])


def test_dropout_is_on_and_another_seed_gives_other_masks():
    spec = run_spec(model(), seed=7)
    without = Pipeline(run_spec(model(dropout=0.0), seed=7), tokens(), [0, 6], learning_rate=warm_up(0))
    pipeline = Pipeline(spec, tokens(), [0, 3, 6], learning_rate=warm_up(0))
    losses = [pipeline.step(step).loss for step in (0, 3)]  # 3 steps make an epoch; weights stay as they are
    assert losses[0] != losses[1]
    assert without.step(0).loss not in losses


def test_microbatches_change_nothing_but_roundings():
    """Mean over all valid targets of the step, whatever the number and size of microbatches."""
    results = [
        train(run_spec(model(dropout=0.0), microbatches=count, optim="SGD"), [0, 3, 6], steps=3)[0]
        for count in (1, 2, 4, 16)
    ]
    for rows in results[1:]:
        for row, expected in zip(rows, results[0], strict=True):
            assert (row.loss, row.grad_norm) == pytest.approx((expected.loss, expected.grad_norm), rel=1e-5)
