"""int8 by blocks against a scalar reference, its bounds, its bias, and what must never happen."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from brigade.compression.block_int import round_up_to_bf16
from brigade.compression.codec import Codec, build_codec
from brigade.wire.errors import RemoteProtocolError

TEXTS = ["int8", "int8:block=8", "int8:scale=fp32", "int8:rounding=stochastic", "int8:block=16,rounding=stochastic"]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 150)), elements=FINITE)


def through(codec: Codec, tensor: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return codec.decode(codec.encode(tensor, seed), tensor.dtype, tensor.shape)


def scalar_round_up(value: float) -> np.float32:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if bits & 0xFFFF:
        bits = (bits | 0xFFFF) + 1
    return np.float32(struct.unpack("<f", struct.pack("<I", bits))[0])


def scalar_int8(row: list[float], block: int) -> tuple[list[np.float32], list[int]]:
    """The definition, one number at a time."""
    scales, codes = [], []
    for start in range(0, len(row), block):
        part = [np.float32(v) for v in row[start : start + block]]
        largest = max(abs(v) for v in part)
        scale = scalar_round_up(float(max(np.float32(largest / np.float32(127)), np.float32(2.0**-126))))
        scales.append(scale)
        inverse = np.float32(1) / scale
        codes.extend(round(float(v * inverse)) for v in part)  # half to even, as torch
    return scales, codes


@pytest.mark.parametrize("row_size", [1, 7, 8, 20, 64, 65, 130])
def test_equals_the_scalar_reference(row_size: int) -> None:
    tensor = torch.randn(3, row_size) * torch.tensor([[1e-3], [1.0], [1e4]])
    scale_frame, code_frame = build_codec("int8:block=8").encode(tensor)
    expected = [scalar_int8(row, 8) for row in tensor.tolist()]
    scales = torch.frombuffer(bytearray(scale_frame), dtype=torch.bfloat16).float().tolist()
    assert scales == [float(s) for row, _ in expected for s in row]
    assert np.frombuffer(code_frame, np.int8).tolist() == [c for _, codes in expected for c in codes]


@pytest.mark.parametrize("text", TEXTS)
@given(array=ROWS)
def test_error_stays_within_its_bound(text: str, array: np.ndarray) -> None:  # type: ignore[type-arg]
    codec, tensor = build_codec(text), torch.from_numpy(array)
    again = through(codec, tensor, seed=5)
    assert torch.isfinite(again).all()
    assert ((again.double() - tensor.double()).abs() <= codec.error_bound(tensor)).all()
    assert (again[tensor == 0] == 0).all()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_last_finite_values_do_not_overflow(text: str, dtype: torch.dtype) -> None:
    """The scale is rounded up, so 127 times it may lie beyond what the dtype holds."""
    codec, largest = build_codec(text), torch.finfo(dtype).max
    tensor = torch.tensor([largest, -largest, largest / 3, 0.0, torch.finfo(dtype).tiny], dtype=dtype)
    again = through(codec, tensor)
    assert torch.isfinite(again).all()
    assert ((again.double() - tensor.double()).abs() <= codec.error_bound(tensor)).all()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((3, 100), 1e5),
        torch.full((3, 100), 1e-8),
        torch.full((3, 100), 1e-45),
        torch.zeros(3, 100),
        torch.cat([torch.randn(3, 99), torch.full((3, 1), 1e30)], dim=1),
        torch.full((3, 100), -7.25),
    ],
    ids=["large", "small", "denormal", "zeros", "outlier", "constant"],
)
def test_gradients_of_b40(text: str, tensor: torch.Tensor) -> None:
    codec = build_codec(text)
    again = through(codec, tensor)
    assert torch.isfinite(again).all()
    assert ((again.double() - tensor.double()).abs() <= codec.error_bound(tensor)).all()
    assert (again[tensor == 0] == 0).all()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_block_that_is_not_finite_is_lost_alone(text: str, bad: float) -> None:
    codec, tensor = build_codec(text), torch.randn(3, 200)
    clean = through(codec, tensor)
    tensor[1, 70] = bad
    again = through(codec, tensor)
    block = codec.spec.values.block  # type: ignore[union-attr]
    lost = torch.zeros(3, 200, dtype=torch.bool)
    lost[1, 70 // block * block : (70 // block + 1) * block] = True
    assert torch.isnan(again[lost]).all()
    assert torch.equal(again[~lost], clean[~lost])
    assert torch.isinf(codec.error_bound(tensor)[lost]).all()


def test_stochastic_rounding_is_unbiased() -> None:
    """Mean of n roundings of v has variance f(1 - f)/n in steps, f the fraction of v: 4.5 sigma over 127 values."""
    codec, count = build_codec("int8:block=128,rounding=stochastic,scale=fp32"), 1 << 14
    row = torch.cat([torch.tensor([127.0]), torch.linspace(-126.9, 126.9, 127)])  # scale exactly one
    decoded = through(codec, row.expand(count, -1), seed=11).double()
    fraction = row.double() - row.double().floor()
    sigma = (fraction * (1 - fraction) / count).sqrt()
    assert ((decoded.mean(0) - row.double()).abs() <= 4.5 * sigma + 2.0**-16).all()
    nearest = through(build_codec("int8:block=128,scale=fp32"), row[None]).double()
    assert not ((nearest[0] - row.double()).abs() <= 4.5 * sigma + 2.0**-16).all()


def test_stochastic_rounding_takes_one_of_the_two_neighbours() -> None:
    codec = build_codec("int8:block=128,rounding=stochastic,scale=fp32")
    row = torch.cat([torch.tensor([127.0]), torch.linspace(-126.9, 126.9, 127)]).expand(500, -1)
    decoded = through(codec, row)
    assert ((decoded == row.floor()) | (decoded == row.ceil())).all()


def test_stochastic_rounding_is_a_function_of_the_seed() -> None:
    codec, tensor = build_codec("int8:rounding=stochastic"), torch.randn(50, 100)
    assert torch.equal(through(codec, tensor, 1), through(codec, tensor, 1))
    assert not torch.equal(through(codec, tensor, 1), through(codec, tensor, 2))


@pytest.mark.parametrize("text", ["int8", "int8:block=100", "fp16", "bf16", "int8+zstd"])
def test_no_row_learns_of_another(text: str) -> None:
    """Scales shared across positions would tell the past about the future (causality)."""
    codec, tensor = build_codec(text), torch.randn(2, 16, 130)
    before = through(codec, tensor)
    tensor[:, 9:] *= 1e4
    assert torch.equal(through(codec, tensor)[:, :9], before[:, :9])


@pytest.mark.parametrize("row_size", [64, 65, 1 << 19, (1 << 19) + 3])
def test_chunks_change_nothing(row_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(3, row_size)
    whole = [bytes(frame) for frame in build_codec("int8").encode(tensor)]
    monkeypatch.setattr("brigade.compression.chunking.CHUNK", 1 << 13)
    assert [bytes(frame) for frame in build_codec("int8").encode(tensor)] == whole


@given(st.floats(min_value=2.0**-126, max_value=2.0**121, width=32))
def test_round_up_to_bf16(value: float) -> None:
    (rounded,) = round_up_to_bf16(torch.tensor([value])).float().tolist()
    assert rounded == float(scalar_round_up(value))
    assert value <= rounded <= value * (1 + 2.0**-7)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, -math.inf])
def test_scales_that_nobody_sends_are_refused(scale: float) -> None:
    frames = [torch.tensor([scale], dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes(), bytes(8)]
    with pytest.raises(RemoteProtocolError, match="scale"):
        build_codec("int8").decode(frames, torch.float32, (8,))


def test_default_dtype_of_torch_does_not_matter() -> None:
    tensor = torch.randn(4, 64)
    expected = through(build_codec("int8"), tensor)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(through(build_codec("int8"), tensor), expected)
    finally:
        torch.set_default_dtype(torch.float32)
