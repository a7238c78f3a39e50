"""16-bit floats: exact rounding, no overflow, no leak between rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from brigade.compression.codec import build_codec

BF16, FP16 = build_codec("bf16"), build_codec("fp16")
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=FINITE)


def through(codec: object, tensor: torch.Tensor) -> torch.Tensor:
    frames = codec.encode(tensor)  # type: ignore[attr-defined]
    return codec.decode(frames, tensor.dtype, tensor.shape)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("codec", [BF16, FP16], ids=["bf16", "fp16"])
@given(array=ROWS)
def test_error_stays_within_its_bound(codec: object, array: np.ndarray) -> None:  # type: ignore[type-arg]
    tensor = torch.from_numpy(array)
    again = through(codec, tensor)
    assert torch.isfinite(again).all()
    assert ((again.double() - tensor.double()).abs() <= codec.error_bound(tensor)).all()  # type: ignore[attr-defined]
    assert (again[tensor == 0] == 0).all()


def test_bf16_rounds_as_torch_does() -> None:
    tensor = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    assert torch.equal(through(BF16, tensor), tensor.bfloat16().float())


def test_fp16_rounds_to_eleven_bits_at_every_magnitude() -> None:
    tensor = torch.randn(61, 64) * torch.logspace(-30, 30, 61)[:, None]
    relative = ((through(FP16, tensor) - tensor).abs() / tensor.abs())[
        tensor.abs() > tensor.abs().amax(1, keepdim=True) / 1e4
    ]
    assert float(relative.max()) <= 2.0**-11


@pytest.mark.parametrize("magnitude", [1e5, 3.4028234e38, 1e-8, 1e-38, 1e-45])
def test_fp16_carries_what_half_precision_alone_would_lose(magnitude: float) -> None:
    tensor = torch.tensor([[magnitude, -magnitude / 2, 0.0]])
    again = through(FP16, tensor)
    assert again[0, 2] == 0
    assert ((again - tensor).abs() <= tensor.abs() * 2.0**-11 + 1.5e-45).all()


@pytest.mark.parametrize("codec", [BF16, FP16], ids=["bf16", "fp16"])
def test_what_is_not_finite_stays_itself_and_stays_alone(codec: object) -> None:
    tensor = torch.randn(4, 70)
    clean = through(codec, tensor)
    tensor[1, 3], tensor[1, 4], tensor[2, 5] = math.inf, -math.inf, math.nan
    again = through(codec, tensor)
    assert again[1, 3] == math.inf
    assert again[1, 4] == -math.inf
    assert math.isnan(again[2, 5])
    finite = torch.isfinite(tensor)
    assert torch.isfinite(again[finite]).all()
    assert torch.equal(again[[0, 3]], clean[[0, 3]])
    assert ((again - tensor).abs()[finite] <= codec.error_bound(tensor)[finite]).all()  # type: ignore[attr-defined]


def test_large_finite_values_beside_infinity_stay_finite_in_bf16() -> None:
    tensor = torch.tensor([3.4028234e38, -3.4028234e38, math.inf])
    again = through(BF16, tensor)
    assert torch.isfinite(again[:2]).all()
    assert again[2] == math.inf


def test_a_row_longer_than_a_chunk() -> None:
    tensor = torch.randn(2, 300_000)
    assert ((through(FP16, tensor) - tensor).abs() <= FP16.error_bound(tensor)).all()


def test_any_shift_from_outside_is_decodable() -> None:
    for shift in (0x80, 0x7F, 0xFF):
        again = FP16.decode([bytes([shift]), b"\x00\x3c"], torch.float32, (1,))
        assert torch.isfinite(again).all()
