"""The built-in classifiers compute what their documentation says."""

import pytest
import torch
from torch.nn import functional

from brigade.partition import classifiers
from brigade.partition.chain import build_chain, plain_model
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import CnnSpec, MlpSpec


def test_the_mlp_equals_its_formula():
    net = plain_model(MlpSpec(input_size=12, hidden_sizes=(8, 6), num_labels=3), 1)
    x = torch.randn(5, 3, 4)
    h = x.flatten(1)
    for block in list(net)[:2]:
        h = functional.linear(h, block.linear.weight, block.linear.bias).clamp(min=0)
    assert torch.equal(net(x), functional.linear(h, net[2].linear.weight, net[2].linear.bias))
    assert len(net) == 3
    assert len(plain_model(MlpSpec(input_size=12, hidden_sizes=()), 1)) == 1


@pytest.mark.parametrize("side", [28, 29])
def test_the_cnn_equals_its_formula(side):
    net = plain_model(
        CnnSpec(num_channels=2, image_size=side, hidden_channels=(4, 6), num_labels=3, batch_norm=False), 1
    )
    x = torch.randn(5, 2, side, side)
    h = x
    for block in list(net)[:2]:
        h = functional.max_pool2d(
            functional.conv2d(h, block.convolution.weight, block.convolution.bias, padding=1).relu(), 2
        )
    assert h.shape == (5, 6, 7, 7)
    torch.testing.assert_close(net(x), functional.linear(h.flatten(1), net[2].linear.weight, net[2].linear.bias))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(MlpSpec(input_size=12, batch_norm=True), (16, 12)), (CnnSpec(image_size=8), (16, 1, 8, 8))],
)
def test_batch_norm_counts_each_forward_once_and_rests_in_evaluation(spec, shape):
    net = plain_model(spec, 1)
    assert all(block.norm is not None for block in list(net)[:-1])
    net(torch.randn(shape))
    assert net[0].norm.num_batches_tracked == 1
    net.eval()
    net(torch.randn(shape))
    assert net[0].norm.num_batches_tracked == 1
    names = set(net.state_dict())
    assert {"0.norm.running_mean", "0.norm.running_var", "0.norm.num_batches_tracked"} <= names


def test_images_of_bytes_are_taken_as_numbers():
    images = torch.randint(0, 255, (4, 1, 8, 8), dtype=torch.uint8)
    net = plain_model(CnnSpec(image_size=8), 1).eval()
    assert torch.equal(net(images), net(images.float()))
    mlp = plain_model(MlpSpec(input_size=64), 1)
    assert torch.equal(mlp(images), mlp(images.float()))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(MlpSpec(input_size=64, dropout=0.5), (8, 64)), (CnnSpec(image_size=8, dropout=0.5), (8, 1, 8, 8))],
)
def test_dropout_is_decided_by_the_global_generator_alone(spec, shape):
    net, x = plain_model(spec, 1), torch.randn(shape)
    torch.manual_seed(3)
    one = net(x)
    torch.manual_seed(3)
    assert torch.equal(net(x), one)
    assert not torch.equal(net(x), one)
    net.eval()
    assert torch.equal(net(x), net(x))


def test_too_many_halvings_are_refused():
    with pytest.raises(ConfigError, match=r"model.hidden_channels: 5 convolutions .* at most 4"):
        classifiers.build_cnn(CnnSpec(hidden_channels=(4,) * 5))
    assert len(build_chain(CnnSpec(hidden_channels=(4,) * 4)).blocks) == 5
