"""Lossless tensors: integers as narrow as they go, bools as bits, floats untouched."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brigade.compression.codec import build_codec
from brigade.compression.raw import narrowest
from brigade.wire.errors import RemoteProtocolError

RAW = build_codec("raw")
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def brute_force_narrowest(low: int, high: int, own: str) -> int:
    fits = [n for n in INTEGERS if np.iinfo(n).min <= low and high <= np.iinfo(n).max and np.can_cast(n, own)]
    return min(np.dtype(name).itemsize for name in fits)


@given(st.sampled_from(INTEGERS), st.data())
def test_integers_take_the_narrowest_type(name: str, data: st.DataObject) -> None:
    limits = np.iinfo(name)
    near = st.one_of(
        *[st.integers(max(limits.min, -(2**k)), min(limits.max, 2**k)) for k in (4, 7, 8, 15, 16, 31, 32, 64)]
    )
    values = data.draw(st.lists(near, min_size=1, max_size=8))
    array = np.array(values, dtype=name)
    tensor = torch.from_numpy(array)
    frames = RAW.encode(tensor)
    width = brute_force_narrowest(min(values), max(values), name)
    assert narrowest(array).itemsize == width
    assert len(frames[1]) == width * len(values)
    again = RAW.decode(frames, tensor.dtype, tensor.shape)
    assert again.dtype == tensor.dtype
    assert again.numpy().tolist() == values


def test_byte_tokens_cost_one_byte() -> None:
    tokens = torch.arange(256).repeat(16)
    frames = RAW.encode(tokens)
    assert [bytes(frames[0]), len(frames[1])] == [b"uint8", 4096]


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_bools_are_bits(values: list[bool]) -> None:
    frames = RAW.encode(torch.tensor(values))
    assert [len(frame) for frame in frames] == [-(-len(values) // 8)]
    assert RAW.decode(frames, torch.bool, (len(values),)).tolist() == values


def test_floats_are_not_copied() -> None:
    tensor = torch.zeros(1000)
    (frame,) = RAW.encode(tensor)
    tensor.fill_(1.0)
    assert bytes(frame) == np.ones(1000, dtype=np.float32).tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_special_values_travel_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, torch.finfo(dtype).max], dtype=dtype
    )
    again = RAW.decode(RAW.encode(tensor), dtype, tensor.shape)
    assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    ("frames", "dtype"),
    [
        ([b"int8", b"\xff"], torch.uint32),  # a negative number would turn into a large one
        ([b"int64", bytes(8)], torch.int32),
        ([b"float32", bytes(4)], torch.int64),
        ([b"uint8"], torch.int64),
        ([b"uint8", b"\x01", b""], torch.int64),
        ([b"uint8", b"\x01\x02"], torch.int64),
        ([b"object", b"\x01"], torch.int64),
        ([b"uint8 ", b"\x01"], torch.int64),
        ([b"\xff\xff", b"\x01"], torch.int64),
        ([], torch.int64),
        ([b"\xff"], torch.bool),  # bits beyond the end
        ([b"\x80\x00"], torch.bool),
    ],
)
def test_malformed_frames_are_refused(frames: list[bytes], dtype: torch.dtype) -> None:
    with pytest.raises(RemoteProtocolError):
        RAW.decode(frames, dtype, (1,))
