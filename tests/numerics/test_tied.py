"""One shared parameter, several blocks, any placement: bit-equal copies after every step, one set of moments."""

import pytest
import torch
from tests.numerics.comparison import assert_equal_training, run_spec, warm_up
from tests.numerics.models import tokens, vectors
from tests.numerics.pipeline import Pipeline
from tests.numerics.reference import Reference

from brigade.partition.chain import plain_model
from brigade.wire.run_spec import FactorySpec, GptSpec

GPT = GptSpec(
    vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, max_position_embeddings=16,
    tie_word_embeddings=True,
)  # fmt: skip
COPIES = {"0.tokens.weight", "5.projection.weight"}


@pytest.mark.parametrize("cuts", [[0, 6], [0, 2, 4, 6], [0, 5, 6]], ids=str)
def test_copies_are_bit_equal_after_every_step(cuts):
    spec = run_spec(GPT, weight_decay=0.1, max_grad_norm=0.5)
    pipeline = Pipeline(spec, tokens(), cuts, learning_rate=warm_up(1e-2))
    values = []
    for step in range(5):
        pipeline.step(step)
        state = pipeline.state()
        assert torch.equal(*(state[key] for key in sorted(COPIES)))
        values.append(state["0.tokens.weight"])
    assert not torch.equal(values[0], values[1])  # it is trained
    files = {name: file for stage in pipeline.stages for name, file in stage.snapshot().items()}
    with_moments = {
        f"{file.facts['block']}.{name}"
        for each, file in files.items()
        if ".optimizer" in each
        for name in file.facts["values"]
    }
    assert with_moments & COPIES == {"0.tokens.weight"}
    plain_model(GPT, 1).load_state_dict(pipeline.state(), strict=True)


@pytest.mark.parametrize("cuts", [[0, 6], [0, 2, 4, 6], [0, 1, 4, 6], [0, 1, 2, 3, 4, 5, 6]], ids=str)
def test_four_blocks_that_share_one_weight_equal_one_machine(cuts):
    spec = run_spec(FactorySpec(factory="tests.numerics.models:shared_by_four"), weight_decay=0.1, max_grad_norm=1.0)
    pipeline = Pipeline(spec, vectors(), cuts, learning_rate=warm_up(1e-2), interleaving=2)
    assert_equal_training(pipeline, Reference(spec, vectors(), learning_rate=warm_up(1e-2)))
    state = pipeline.state()
    for key in ("2.linear.weight", "4.linear.weight", "4.again.weight", "5.linear.weight"):
        assert torch.equal(state[key], state["1.linear.weight"])
    parameters = sum(p.numel() for p in plain_model(spec.model, 0).parameters())
    assert sum(stage.parameter_count for stage in pipeline.stages) == parameters
