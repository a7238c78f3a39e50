import copy

import pytest
import torch
from torch import nn

from brigade.node.optimizer import StageOptimizer
from brigade.wire.errors import CheckpointError
from brigade.wire.run_spec import TrainingSpec


def parameters():
    torch.manual_seed(0)
    return {"0.weight": nn.Parameter(torch.randn(3, 2)), "0.bias": nn.Parameter(torch.randn(3))}


def training(**values):
    return TrainingSpec(max_steps=1, **values)


def set_gradients(named, value=1.0):
    for each in named.values():
        each.grad = torch.full_like(each, value)


def test_only_parameters_with_two_dimensions_decay():
    named = parameters()
    before = {name: each.detach().clone() for name, each in named.items()}
    optimizer = StageOptimizer(named, training(optim="SGD", weight_decay=0.5))
    set_gradients(named, 0.0)
    optimizer.step(0.1)
    torch.testing.assert_close(named["0.weight"].data, before["0.weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(named["0.bias"], before["0.bias"])


def test_no_decay_unless_the_run_file_says_so():
    """AdamW's own default is 0.01."""
    named = parameters()
    before = named["0.weight"].detach().clone()
    optimizer = StageOptimizer(named, training(optim="AdamW"))
    set_gradients(named, 0.0)
    optimizer.step(0.1)
    assert torch.equal(named["0.weight"], before)


def test_the_learning_rate_of_the_step_is_the_one_that_is_used():
    named = parameters()
    before = named["0.bias"].detach().clone()
    optimizer = StageOptimizer(named, training(optim="SGD", learning_rate=9.0))
    set_gradients(named)
    optimizer.step(0.25)
    torch.testing.assert_close(named["0.bias"].data, before - 0.25)
    assert optimizer.learning_rates() == [0.25, 0.25]


def test_a_parameter_without_a_gradient_is_left_alone():
    named = parameters()
    before = named["0.weight"].detach().clone()
    optimizer = StageOptimizer(named, training(optim="AdamW", weight_decay=0.5))
    named["0.bias"].grad = torch.ones(3)
    optimizer.step(0.1)
    assert torch.equal(named["0.weight"], before)
    assert set(optimizer.states()) == {"0.bias"}


@pytest.mark.parametrize("optim", ["AdamW", "SGD", "NAdam", "RMSprop", "Adafactor", "Adagrad", "Rprop"])
def test_state_by_name_moves_to_other_groups_and_orders(optim):
    arguments = {"momentum": 0.9} if optim == "SGD" else {}
    spec = training(optim=optim, optim_args=arguments)
    named, other = parameters(), dict(reversed(parameters().items()))
    first = StageOptimizer(named, spec)
    for value in (1.0, -0.5, 0.25):
        set_gradients(named, value)
        first.step(0.01)
    second = StageOptimizer(other, spec)
    with torch.no_grad():
        for name, each in other.items():
            each.copy_(named[name])
    second.load(copy.deepcopy(first.states()))
    for target, optimizer in ((named, first), (other, second)):
        set_gradients(target, 0.125)
        optimizer.step(0.02)
    assert all(torch.equal(named[name], other[name]) for name in named)


def test_a_state_of_a_parameter_that_is_not_trained_here_is_refused():
    with pytest.raises(CheckpointError, match=r"7\.weight"):
        StageOptimizer(parameters(), training()).load({"7.weight": {}})


def test_nothing_to_train():
    optimizer = StageOptimizer({}, training())
    optimizer.step(0.1)
    assert (optimizer.states(), optimizer.learning_rates()) == ({}, [])


def test_betas_and_epsilon_reach_the_optimizer():
    spec = training(optim="Adam", adam_beta2=0.5, adam_epsilon=1e-3)
    (optimizer,) = StageOptimizer(parameters(), spec)._optimizers
    (group, _) = optimizer.param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.5), 1e-3)
