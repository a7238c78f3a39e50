"""Noise of stochastic rounding: range, mean, reproducibility."""

import pytest
import torch

from brigade.compression.noise import LEVELS, Noise

CPU = torch.device("cpu")


def draw(seed: int, *shape: int) -> torch.Tensor:
    return Noise(seed, CPU).add_to(torch.zeros(shape))


def test_noise_lies_strictly_inside_half_a_step() -> None:
    noise = draw(1, 1000, 100)
    assert float(noise.abs().max()) < 0.5
    assert torch.equal(noise.round(), torch.zeros_like(noise))
    assert float(noise.min()) < -0.499
    assert float(noise.max()) > 0.499


def test_noise_is_uniform() -> None:
    noise = draw(2, 1 << 20)
    assert abs(float(noise.double().mean())) < 4.5 * (1 / 12 / 2**20) ** 0.5
    counts = torch.histc(noise, bins=64, min=-0.5, max=0.5).double()
    expected = 2**20 / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 63 + 4.5 * (2 * 63) ** 0.5
    assert LEVELS == 65536


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**64 + 5, -3])
def test_noise_is_a_function_of_the_seed(seed: int) -> None:
    assert torch.equal(draw(seed, 7, 5), draw(seed, 7, 5))
    assert not torch.equal(draw(seed, 7, 5), draw(seed + 1, 7, 5))


def test_the_stream_goes_on() -> None:
    noise = Noise(3, CPU)
    first, second = noise.add_to(torch.zeros(9)), noise.add_to(torch.zeros(9))
    assert not torch.equal(first, second)
