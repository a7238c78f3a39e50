"""bf16 autocast on all stages, and links with lossy codecs: near the same training, never another kind of value."""

import pytest
import torch
from tests.numerics.comparison import run_spec, warm_up
from tests.numerics.models import tokens
from tests.numerics.pipeline import Pipeline
from tests.numerics.reference import Reference

from brigade.wire.run_spec import GptSpec

GPT = GptSpec(vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, max_position_embeddings=16)


def test_bf16_autocast_equals_one_machine_within_bf16():
    spec = run_spec(GPT, bf16=True, max_grad_norm=1.0)
    pipeline = Pipeline(spec, tokens(), [0, 2, 4, 6], learning_rate=warm_up(3e-3))
    reference = Reference(spec, tokens(), learning_rate=warm_up(3e-3))
    full = Reference(run_spec(GPT, max_grad_norm=1.0), tokens(), learning_rate=warm_up(3e-3))
    for step in range(10):
        row, (loss, norm) = pipeline.step(step), reference.step(step)
        assert row.loss == pytest.approx(loss, rel=2e-3)
        assert row.grad_norm == pytest.approx(norm, rel=2e-2)
        full.step(step)
    assert row.loss != full.step(10)[0]  # autocast is on
    assert {value.dtype for value in pipeline.state().values()} == {torch.float32}  # weights and moments are full


@pytest.fixture(scope="module")
def plain():
    spec = run_spec(GPT, optim="AdamW")
    return Pipeline(spec, tokens(padded=False), [0, 2, 4, 6], learning_rate=warm_up(6e-3)).run(range(9))


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8:block=64,rounding=stochastic", "raw+zstd"])
def test_codecs_on_every_link_reach_the_same_loss(codec, plain):
    spec = run_spec(GPT, optim="AdamW")
    coded = Pipeline(spec, tokens(padded=False), [0, 2, 4, 6], learning_rate=warm_up(6e-3), codec=codec).run(range(9))
    assert plain[-1].loss < 0.95 * plain[0].loss
    assert coded[-1].loss == pytest.approx(plain[-1].loss, rel=1e-12 if codec == "raw+zstd" else 2e-2)


def test_a_step_that_is_not_finite_is_skipped_everywhere():
    spec = run_spec(GPT, max_grad_norm=1.0)
    pipeline = Pipeline(spec, tokens(), [0, 2, 4, 6], learning_rate=warm_up(3e-3))
    plain = Pipeline(spec, tokens(), [0, 2, 4, 6], learning_rate=warm_up(3e-3))
    assert pipeline.run(range(2)) == plain.run(range(2))
    before = pipeline.state()

    def poison(step, stage):
        if step == 2 and stage is pipeline.stages[1]:
            next(iter(stage._parameters.values())).grad.view(-1)[0] = float("nan")

    pipeline.poison = poison
    row = pipeline.step(2)
    assert row.skipped
    assert not row.grad_norm < float("inf")
    for key, value in pipeline.state().items():
        assert torch.equal(value, before[key]), key
    # The next steps are those of a run that never saw the skipped one.
    assert [r.loss for r in pipeline.run(range(3, 6))] == [r.loss for r in plain.run(range(3, 6))]
