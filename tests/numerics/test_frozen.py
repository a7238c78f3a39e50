"""Frozen parameters keep every bit, and gradients flow through them."""

import pytest
import torch
from tests.numerics.comparison import assert_equal_training, run_spec, warm_up
from tests.numerics.models import tokens, vectors
from tests.numerics.pipeline import Pipeline
from tests.numerics.reference import Reference

from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import FactorySpec, GptSpec

GPT = GptSpec(vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, max_position_embeddings=16)

CASES = {
    "middle stage": ("[23].*",),
    "first stage": ("[01].*",),
    "last stage": ("[45].*",),
    "all but biases": ("*.weight",),
    "one parameter": ("2.attention.qkv.weight",),
}


@pytest.mark.parametrize("patterns", CASES.values(), ids=CASES)
def test_equals_one_machine(patterns):
    spec = run_spec(GPT, freeze=patterns, weight_decay=0.1, max_grad_norm=1.0)
    pipeline = Pipeline(spec, tokens(), [0, 2, 4, 6], learning_rate=warm_up(1e-2))
    reference = Reference(spec, tokens(), learning_rate=warm_up(1e-2))
    frozen = {name for name, p in reference.model.named_parameters() if not p.requires_grad}
    before = pipeline.state()
    assert_equal_training(pipeline, reference, steps=6)
    after = pipeline.state()
    assert {key for key in before if torch.equal(before[key], after[key])} == frozen != set()


def test_a_tied_parameter_is_frozen_under_any_of_its_names():
    model = GptSpec(**{**{f: getattr(GPT, f) for f in GPT.__struct_fields__}, "tie_word_embeddings": True})
    spec = run_spec(model, freeze=("5.projection.*",))
    pipeline = Pipeline(spec, tokens(), [0, 2, 4, 6], learning_rate=warm_up(1e-2))
    before = pipeline.state()["0.tokens.weight"]
    pipeline.run(range(3))
    after = pipeline.state()
    assert torch.equal(after["0.tokens.weight"], before)
    assert torch.equal(after["5.projection.weight"], before)


def test_nothing_to_train_is_no_failure():
    spec = run_spec(FactorySpec(factory="tests.numerics.models:without_parameters"), freeze=("*",))
    pipeline = Pipeline(spec, vectors(), [0, 2, 4, 6], learning_rate=warm_up(1e-2))
    rows = pipeline.run(range(2))
    assert [row.grad_norm for row in rows] == [0.0, 0.0]


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"training.freeze: '9\.\*' matches no parameter; names look like 0\.tokens"):
        Pipeline(run_spec(GPT, freeze=("9.*",)), tokens(), [0, 6], learning_rate=warm_up(1e-2))
