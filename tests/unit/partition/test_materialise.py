"""Initial weights are those of the plain model, for every split and every kind of module."""

import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from brigade.partition.chain import build_chain, plain_model
from brigade.partition.materialise import seeded
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import CnnSpec, FactorySpec, GptSpec, MlpSpec


def toy(name, **arguments):
    return FactorySpec(factory=f"tests.unit.partition.toy_models:{name}", arguments=arguments)


SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "dropout": 0.1}
SPECS = {
    "gpt": GptSpec(**SMALL),
    "tied": GptSpec(**SMALL, tie_word_embeddings=True),
    "learned": GptSpec(**SMALL, position_embedding="learned"),
    "mlp": MlpSpec(input_size=12, hidden_sizes=(8,) * 5, batch_norm=True),
    "cnn": CnnSpec(hidden_channels=(4,) * 5, image_size=64),
    "conventional": toy("conventional"),
    "raw": toy("raw"),
    "mixed": toy("mixed"),
    "tied_within": toy("tied"),
    "tied_raw": toy("tied_thrice_raw"),
    "attention": toy("attention"),
    "numpy": toy("drawn_afterwards", how="numpy"),
}


def tensors(blocks, first):
    return {
        f"{index}.{name}": tensor
        for index, block in enumerate(blocks, first)
        for name, tensor in (*block.named_parameters(remove_duplicate=False), *block.named_buffers())
    }


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_every_split_starts_from_the_weights_of_the_plain_model(name, stages):
    spec = SPECS[name]
    expected = tensors(plain_model(spec, 7), 0)  # buffers that are not in the state count too
    chain = build_chain(spec)
    stages = min(stages, len(chain.blocks))
    cuts = [round(i * len(chain.blocks) / stages) for i in range(stages + 1)]
    found = {}
    for first, end in pairwise(cuts):
        torch.manual_seed(first)  # whatever happened before on this node
        np.random.seed(first)
        found |= tensors(chain.materialise(first, end, 7, "cpu"), first)
    assert found.keys() == expected.keys()
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize("name", SPECS)
def test_another_seed_gives_other_weights_and_the_same_seed_the_same(name):
    one, again, other = (plain_model(SPECS[name], seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["gpt", "learned", "mlp", "cnn", "conventional", "raw", "mixed"])
def test_no_two_random_weights_of_one_shape_are_equal(name):
    model = plain_model(SPECS[name], 7)
    random = [p for p in model.parameters() if p.unique().numel() > 1]  # constants (norms, zero biases) are alike
    assert len(random) >= 4
    for i, left in enumerate(random):
        for right in random[:i]:
            assert left.shape != right.shape or not torch.equal(left, right)
            # nor do they begin alike
            assert left.flatten()[0] != right.flatten()[0]


def test_a_tie_on_one_stage_is_one_object_and_a_copy_elsewhere():
    chain = build_chain(SPECS["tied"])
    whole = chain.materialise(0, 6, 3, "cpu")
    assert whole[0].tokens.weight is whole[5].projection.weight
    (head,) = chain.materialise(5, 6, 3, "cpu")
    (embedding,) = chain.materialise(0, 1, 3, "cpu")
    assert torch.equal(head.projection.weight, embedding.tokens.weight)
    both = build_chain(toy("tied_thrice_raw")).materialise(1, 3, 3, "cpu")  # two followers without their owner
    assert both[0].weight is both[1].weight


def test_ties_within_a_block_stay_together():
    chain = build_chain(toy("tied"))
    (middle,) = chain.materialise(1, 2, 3, "cpu")
    assert middle[0].weight is middle[1].weight


@pytest.mark.parametrize("how", ["init", "data", "item", "assign", "data_set", "multiply"])
def test_weights_drawn_after_construction_are_not_lost(how):
    chain = build_chain(toy("drawn_afterwards", how=how))
    assert all(chain.obstacles)
    (block,) = chain.materialise(1, 2, 3, "cpu")
    if how == "multiply":
        assert 0.5 < block.weight.abs().max() / (0.25 / 6**0.5) <= 1
    else:
        assert torch.equal(block.weight, torch.full((6, 6), 0.25))


def test_buffers_have_their_values():
    chain = build_chain(toy("mixed"))
    raw, scale = chain.materialise(1, 3, 0, "cpu")
    assert torch.equal(raw.mask, torch.tril(torch.ones(6, 6)))
    assert raw.count == 3
    assert torch.equal(scale.ramp, torch.arange(6.0))
    assert scale.steps == 0
    norm = build_chain(SPECS["mlp"]).materialise(0, 1, 0, "cpu")[0].norm
    assert torch.equal(norm.running_mean, torch.zeros(8))
    assert torch.equal(norm.running_var, torch.ones(8))
    assert norm.num_batches_tracked == 0


def test_tensors_that_are_plain_attributes_have_their_values():
    chain = build_chain(toy("attribute"))
    assert chain.obstacles[0]
    assert not chain.obstacles[1]
    (block,) = chain.materialise(0, 1, 0, "cpu")
    assert torch.equal(block.table, torch.arange(4.0))


def test_torch_modules_can_be_made_alone():
    for name in ("gpt", "tied", "learned", "mlp", "cnn", "conventional", "attention"):
        assert not any(build_chain(SPECS[name]).obstacles), name


def test_statistics_of_torch_initialisation_are_kept():
    (layer,) = build_chain(toy("attention", size=64)).materialise(2, 3, 0, "cpu")
    weight, attention = layer.linear1.weight, layer.self_attn
    assert weight.abs().max() <= 1 / 64**0.5  # kaiming_uniform(a=sqrt(5))
    assert weight.std().item() == pytest.approx(1 / 64**0.5 / 3**0.5, rel=0.05)
    assert attention.in_proj_weight.abs().max() <= (6 / (64 * 4)) ** 0.5  # xavier
    assert not attention.out_proj.bias.any()


def test_the_whole_model_is_built_only_where_needed_and_it_is_logged(caplog):
    caplog.set_level(logging.INFO)
    chain = build_chain(toy("mixed"))
    assert [bool(each) for each in chain.obstacles] == [False, True, False, False, True, False]
    chain.materialise(2, 4, 0, "cpu")
    assert not caplog.records
    chain.materialise(3, 6, 0, "cpu")
    text = caplog.text
    assert "block 4 cannot be made alone: weight of Raw is set by no reset_parameters" in text
    assert "MiB" in text
    assert text.count("whole model") == 1


def test_a_factory_that_changes_its_mind_is_refused():
    chain = build_chain(toy("fickle"))
    with pytest.raises(ConfigError, match="different shapes"):
        chain.materialise(0, 1, 0, "cpu")


def test_blocks_are_independent_copies():
    chain = build_chain(SPECS["gpt"])
    one, two = chain.materialise(1, 2, 0, "cpu")[0], chain.materialise(1, 2, 0, "cpu")[0]
    with torch.no_grad():
        one.attention.qkv.weight.zero_()
    assert two.attention.qkv.weight.any()
    assert all(p.is_meta for p in chain.blocks[1].parameters())


@pytest.mark.parametrize(("first", "end"), [(-1, 2), (2, 2), (3, 2), (0, 7)])
def test_blocks_outside_the_chain(first, end):
    with pytest.raises(ValueError, match="chain of 6"):
        build_chain(SPECS["gpt"]).materialise(first, end, 0, "cpu")


def test_seeded_puts_all_generators_back():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError), seeded(5):
        nn.init.normal_(torch.empty(3), std=1 / 0)
    assert torch.equal(torch.rand(1), expected)
