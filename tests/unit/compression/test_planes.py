"""Byte planes against numpy's transpose."""

import numpy as np
import pytest
import torch

from brigade.compression.planes import CHUNK, join_planes, split_planes


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 1000, CHUNK, 2 * CHUNK + 17])
def test_planes_are_the_transpose_of_the_bytes(width: int, count: int) -> None:
    payload = np.random.default_rng(count).integers(0, 256, count * width, dtype=np.uint8)
    planes = split_planes(torch.from_numpy(payload), width)
    assert np.array_equal(planes.numpy(), payload.reshape(count, width).T.reshape(-1))
    assert np.array_equal(join_planes(planes, width).numpy(), payload)


def test_joining_leaves_the_planes_alone() -> None:
    planes = torch.arange(64, dtype=torch.uint8)
    before = planes.clone()
    join_planes(planes, 4)
    assert torch.equal(planes, before)
