"""A model is a list of blocks, whole or in parts, with one set of names and ties."""

import pytest
import torch

from brigade.partition.chain import build_chain, plain_model
from brigade.wire.errors import ConfigError
from brigade.wire.plan import TiedParameter
from brigade.wire.run_spec import CnnSpec, FactorySpec, GptSpec, MlpSpec

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
GPT = GptSpec(**SMALL)
TIED = GptSpec(**SMALL, tie_word_embeddings=True, position_embedding="learned", max_position_embeddings=32)
MLP = MlpSpec(input_size=12, hidden_sizes=(8, 8, 8), batch_norm=True)
CNN = CnnSpec()


def toy(name, **arguments):
    return FactorySpec(factory=f"tests.unit.partition.toy_models:{name}", arguments=arguments)


ALL = [GPT, TIED, MLP, CNN, toy("mixed"), toy("tied"), toy("tied_thrice_raw"), toy("same_block_twice")]


@pytest.mark.parametrize("spec", ALL)
def test_a_chain_has_no_values_and_a_plain_model_has_them_all(spec):
    chain = build_chain(spec)
    assert all(t.is_meta for block in chain.blocks for t in (*block.parameters(), *block.buffers()))
    model = plain_model(spec, 3)
    assert len(model) == len(chain.blocks)
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("spec", ALL)
def test_state_of_one_model_loads_strictly_into_another(spec):
    source, target = plain_model(spec, 1), plain_model(spec, 2)
    state = source.state_dict()
    assert {name.partition(".")[0] for name in state} <= {str(i) for i in range(len(source))}
    target.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, strict=True)
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("spec", ALL)
def test_names_within_blocks_do_not_depend_on_the_split(spec):
    chain = build_chain(spec)
    names = {
        f"{index}.{name}"
        for index in range(len(chain.blocks))
        for name in chain.materialise(index, index + 1, 0, "cpu")[0].state_dict()
    }
    assert names == set(plain_model(spec, 0).state_dict())


def test_ties_are_found_by_identity_and_owned_by_the_first_block():
    assert build_chain(GPT).tied == ()
    assert build_chain(TIED).tied == (TiedParameter(owner="0.tokens.weight", followers=("5.projection.weight",)),)
    # a parameter shared within block 1 concerns nobody else
    assert build_chain(toy("tied")).tied == (TiedParameter(owner="0.weight", followers=("2.0.weight",)),)
    assert build_chain(toy("tied_thrice_raw")).tied == (
        TiedParameter(owner="0.weight", followers=("1.weight", "2.weight")),
    )
    assert build_chain(toy("same_block_twice")).tied == (
        TiedParameter(owner="0.weight", followers=("2.weight",)),
        TiedParameter(owner="0.bias", followers=("2.bias",)),
    )


def test_tied_parameters_of_the_plain_model_are_one_object():
    model = plain_model(TIED, 0)
    assert model[0].tokens.weight is model[5].projection.weight
    assert len(list(model.parameters())) == len(model.state_dict()) - 1
    model = plain_model(toy("tied"), 0)
    assert model[0].weight is model[2][0].weight
    assert model[1][0].weight is model[1][1].weight
    model = plain_model(toy("tied_thrice_raw"), 0)
    assert model[0].weight is model[1].weight is model[2].weight


def test_the_plain_model_runs_its_blocks_in_order():
    model = plain_model(toy("conventional"), 5)
    x = torch.randn(3, 6)
    expected = x
    for block in model:
        expected = block(expected)
    assert torch.equal(model(x), expected)
    nested = plain_model(toy("nested"), 5)
    x = torch.randn(3, 4) * 3
    assert torch.equal(nested(x), nested[3](x * (x > 0) + x.long() * 3))


def test_building_leaves_the_global_generators_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    for spec in (TIED, toy("mixed")):
        plain_model(spec, 2)
    assert torch.equal(torch.rand(3), expected)


def test_the_fingerprint_tells_models_apart():
    variants = [
        GPT, TIED, MLP, CNN, GptSpec(**SMALL | {"num_hidden_layers": 3}), GptSpec(**SMALL | {"vocab_size": 51}),
        GptSpec(**SMALL, tie_word_embeddings=True), toy("conventional"), toy("raw"), toy("tied"), toy("mixed"),
    ]  # fmt: skip
    prints = [build_chain(spec).fingerprint for spec in variants]
    assert len(set(prints)) == len(prints)
    assert prints == [build_chain(spec).fingerprint for spec in variants]


def test_models_that_are_no_chains_are_refused():
    with pytest.raises(ConfigError, match=r"block 0 .LazyLinear.: weight is lazy"):
        build_chain(toy("lazy"))
    with pytest.raises(ConfigError, match="blocks 0 and 2 share the buffer running_mean"):
        build_chain(toy("shared_norm"))
