import itertools

import pytest
import torch
from torch import nn

from brigade.node.tied_weights import TiedWeights
from brigade.wire.errors import LocalProtocolError
from brigade.wire.plan import TiedParameter

TIED = (TiedParameter(owner="0.weight", followers=("10.weight", "2.weight", "3.weight")),)


def blocks(*indices, frozen=False):
    first = nn.Linear(2, 2, bias=False)
    first.weight.requires_grad_(not frozen)
    made = {index: nn.Linear(2, 2, bias=False) for index in indices}
    for each in made.values():
        each.weight = first.weight
    return made


def test_gradients_are_summed_in_the_order_of_blocks_whatever_the_order_of_arrival():
    """1e8 + 1 - 1e8 is 0 in float32, and 1 in another order."""
    here = blocks(0, 3)
    gradients = {"2.weight": 1.0, "10.weight": -1e8}
    for order in itertools.permutations(gradients):
        tied = TiedWeights(TIED, here)
        here[0].weight.grad = torch.full((2, 2), 1e8)
        here[3].weight.grad = torch.zeros(2, 2)
        for key in order:
            tied.add_gradient(key, torch.full((2, 2), gradients[key]))
        tied.sum_gradients()
        assert torch.equal(here[0].weight.grad, torch.zeros(2, 2))
        assert here[3].weight.grad is None


def test_copies_on_one_stage_share_memory_and_not_gradients():
    here = blocks(0, 2, 3)
    tied = TiedWeights(TIED, here)
    assert tied.copies == {"2.weight", "3.weight"}
    assert tied.awaited == {"10.weight"}
    assert len({id(block.weight) for block in here.values()}) == 3
    with torch.no_grad():
        here[0].weight.fill_(7.0)
    assert here[3].weight.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    (here[2](torch.ones(1, 2)) * 3).sum().backward()
    assert here[0].weight.grad is None
    assert float(here[2].weight.grad[0, 0]) == 3.0


def test_followers_send_gradients_and_take_weights():
    here = blocks(2, 10)
    tied = TiedWeights(TIED, here)
    here[2].weight.grad = torch.ones(2, 2)
    found = tied.gradients()
    assert {key: float(value.sum()) for key, value in found.items()} == {"2.weight": 4.0, "10.weight": 0.0}
    assert tied.weights() == {}
    for key in found:
        tied.set_weight(key, torch.full((2, 2), 5.0))
    assert here[10].weight.tolist() == [[5.0, 5.0], [5.0, 5.0]]


def test_owners_send_one_weight_to_each_follower_elsewhere():
    tied = TiedWeights(TIED, blocks(0, 2))
    assert set(tied.weights()) == {"3.weight", "10.weight"}
    assert tied.gradients() == {}


def test_a_frozen_owner_ignores_what_arrives():
    here = blocks(0, frozen=True)
    tied = TiedWeights(TIED, here)
    for key in tied.awaited:
        tied.add_gradient(key, torch.ones(2, 2))
    tied.sum_gradients()
    assert here[0].weight.grad is None


def test_missing_repeated_and_strange_gradients_are_our_own_bug():
    tied = TiedWeights(TIED, blocks(0))
    tied.add_gradient("2.weight", torch.ones(2, 2))
    with pytest.raises(LocalProtocolError, match=r"10\.weight has not arrived"):
        tied.sum_gradients()
    for key in ("2.weight", "4.weight", "0.weight"):
        with pytest.raises(LocalProtocolError, match="not awaited"):
            tied.add_gradient(key, torch.ones(2, 2))
    tied.drop()
    tied.add_gradient("2.weight", torch.ones(2, 2))


def test_a_parameter_under_two_names_in_one_block_stays_one():
    block = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    here = {0: nn.Linear(2, 2, bias=False), 1: block}
    block["a"].weight = block["b"].weight = here[0].weight
    TiedWeights((TiedParameter(owner="0.weight", followers=("1.a.weight",)),), here)
    assert block["a"].weight is block["b"].weight
    assert block["a"].weight is not here[0].weight
