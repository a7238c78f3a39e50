import pytest
import torch

from brigade.node.loss import build_loss
from brigade.wire.errors import ConfigError

HERE = "tests.unit.node.losses"


def test_cross_entropy_sums_over_targets_that_are_not_padding():
    loss = build_loss("cross_entropy")
    logits = torch.zeros(2, 3, 4)
    targets = torch.tensor([[0, 1, -100], [-100, -100, 3]])
    assert loss.count(targets) == 3
    torch.testing.assert_close(loss.total(logits, targets), 3 * torch.tensor(4.0).log())


def test_cross_entropy_of_half_precision_is_computed_in_full():
    logits = torch.randn(5, 7).bfloat16()
    total = build_loss("cross_entropy").total(logits, torch.arange(5).int())
    assert total.dtype == torch.float32
    expected = -logits.float().log_softmax(-1)[torch.arange(5), torch.arange(5)].sum()
    torch.testing.assert_close(total, expected)


def test_only_padding_has_a_loss_of_zero():
    loss = build_loss("cross_entropy")
    targets = torch.full((2,), -100)
    assert (loss.count(targets), float(loss.total(torch.randn(2, 3), targets))) == (0, 0.0)


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_without_a_class_is_named(label):
    targets = torch.tensor([0, label, -100])
    with pytest.raises(ConfigError, match=rf"found the label {label}, but labels must be below the number of classes"):
        build_loss("cross_entropy").total(torch.zeros(3, 3), targets)


def test_squared_error_sums_over_elements():
    loss = build_loss("mse")
    targets = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert loss.count(targets) == 4
    assert float(loss.total(torch.zeros(2, 2), targets)) == 1 + 4 + 9 + 16


def test_a_mean_of_a_users_function_weighs_by_samples():
    loss = build_loss(f"{HERE}:mean_error")
    targets = torch.arange(6.0).view(3, 2)
    assert loss.count(targets) == 3
    torch.testing.assert_close(loss.total(torch.zeros(3, 2), targets), 3 * targets.mean())


def test_a_sum_of_a_users_function_weighs_by_its_own_count():
    loss = build_loss(f"{HERE}:summed_error")
    targets = torch.arange(6.0).view(3, 2)
    assert loss.count(targets) == 6
    assert float(loss.total(torch.zeros(3, 2), targets)) == 15.0


@pytest.mark.parametrize(
    ("name", "output", "targets", "message"),
    [
        (
            "cross_entropy",
            torch.zeros(2, 3),
            torch.zeros(3, dtype=torch.long),
            r"needs targets of shape \(2,\), found \(3,\)",
        ),
        ("cross_entropy", (torch.zeros(2, 3),), torch.zeros(2), "needs one tensor of output, found a tuple"),
        ("mse", torch.zeros(2, 1), torch.zeros(2), r"needs targets of the same shape, found \(2,\)"),
        (f"{HERE}:no_scalar", torch.zeros(2), torch.zeros(2), r"returned a tensor of shape \(2,\), expected a scalar"),
        (f"{HERE}:no_tensor", torch.zeros(2), torch.zeros(2), "returned a float, expected a scalar"),
    ],
)
def test_what_does_not_fit_is_named(name, output, targets, message):
    with pytest.raises(ConfigError, match=f"training.loss: .*{message}"):
        build_loss(name).total(output, targets)


def test_a_function_that_is_not_there():
    with pytest.raises(ConfigError, match=r"training\.loss"):
        build_loss(f"{HERE}:nowhere")
