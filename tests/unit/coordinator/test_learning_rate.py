"""Closed forms, and the schedulers of torch that users would have used."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.coordinator.learning_rate import learning_rate
from brigade.wire.run_spec import TrainingSpec


def spec(**settings):
    return TrainingSpec(**{"max_steps": 100, "learning_rate": 2.0, "batch_size": 4} | settings)


def test_constant_is_constant():
    assert {learning_rate(spec(), step) for step in range(100)} == {2.0}


def test_warm_up_is_linear_from_zero():
    training = spec(warmup_steps=10)
    assert [learning_rate(training, step) for step in (0, 1, 5, 9, 10, 99)] == [0.0, 0.2, 1.0, 1.8, 2.0, 2.0]


def test_cosine_in_closed_form():
    training = spec(warmup_steps=20, lr_scheduler_type="cosine")
    for step in range(20, 100):
        assert learning_rate(training, step) == pytest.approx(1.0 + math.cos(math.pi * (step - 20) / 80), rel=1e-12)
    assert learning_rate(training, 60) == pytest.approx(1.0)


def test_cosine_ends_at_its_floor():
    training = spec(lr_scheduler_type="cosine", min_lr_ratio=0.25)
    assert learning_rate(training, 100) == pytest.approx(0.5)
    assert learning_rate(training, 50) == pytest.approx(2.0 * (0.25 + 0.75 * 0.5))


def test_wsd_warms_up_stays_and_decays():
    training = spec(warmup_steps=10, decay_steps=20, lr_scheduler_type="wsd", min_lr_ratio=0.1)
    assert learning_rate(training, 5) == pytest.approx(1.0)
    assert {learning_rate(training, step) for step in range(10, 81)} == {2.0}
    assert learning_rate(training, 90) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert learning_rate(training, 100) == pytest.approx(0.2)


def test_wsd_without_decay_is_constant():
    training = spec(lr_scheduler_type="wsd")
    assert {learning_rate(training, step) for step in range(100)} == {2.0}


@pytest.mark.parametrize("warmup_steps", [0, 10])
def test_cosine_equals_torch_s_own(warmup_steps):
    import torch

    training = spec(warmup_steps=warmup_steps, lr_scheduler_type="cosine")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100 - warmup_steps)
    for step in range(warmup_steps, 100):
        assert learning_rate(training, step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        optimizer.step()
        cosine.step()


@given(
    kind=st.sampled_from(["constant", "cosine", "wsd"]),
    warmup=st.integers(0, 50),
    decay=st.integers(0, 50),
    floor=st.floats(0, 1),
    step=st.integers(0, 200),
)
def test_never_outside_its_bounds(kind, warmup, decay, floor, step):
    training = spec(warmup_steps=warmup, decay_steps=decay, lr_scheduler_type=kind, min_lr_ratio=floor)
    rate = learning_rate(training, step)
    assert 0.0 <= rate <= 2.0 * (1 + 1e-12)
    if step >= warmup:
        assert rate >= 2.0 * floor * (1 - 1e-12)
