"""Messages of several tensors: headers tell the truth, and are not believed."""

from dataclasses import replace

import pytest
import torch
from tests.unit.compression.codec_texts import TEXTS

from brigade.compression.codec import build_codec
from brigade.compression.tensors import pack, unpack
from brigade.wire.errors import RemoteProtocolError

LEAVES = [
    torch.randn(2, 5, 70),
    torch.arange(10),
    torch.ones(2, 5, dtype=torch.bool),
    torch.empty(0, 3),
    torch.randn(4).double(),
]
EXPECTED = [(str(leaf.dtype)[6:], tuple(leaf.shape)) for leaf in LEAVES]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(text: str) -> None:
    codec = build_codec(text)
    headers, frames = pack(LEAVES, codec, seed=4)
    for tensors in (unpack(headers, frames, EXPECTED), unpack(headers, frames, None)):
        for leaf, again in zip(LEAVES, tensors, strict=True):
            assert (again.dtype, again.shape) == (leaf.dtype, leaf.shape)
            assert (
                ((again - leaf).double().abs() <= codec.error_bound(leaf)).all()
                if leaf.dtype != torch.bool
                else torch.equal(again, leaf)
            )


INT8, RAW = "int8:block=32+zstd", "raw+zstd"


def test_headers_name_the_codec_that_was_used() -> None:
    headers, frames = pack(LEAVES, build_codec(INT8))
    assert [header.codec for header in headers] == [INT8, RAW, RAW, INT8, RAW]
    assert [header.frames for header in headers] == [2, 2, 1, 0, 1]
    assert sum(header.frames for header in headers) == len(frames)


def test_nothing_is_a_message_too() -> None:
    assert pack([], build_codec("int8")) == ((), [])
    assert unpack((), [], []) == []


def test_equal_leaves_round_with_different_noise() -> None:
    leaf = torch.randn(10, 64)
    headers, frames = pack([leaf, leaf], build_codec("int8:rounding=stochastic"), seed=1)
    first, second = unpack(headers, frames, None)
    assert not torch.equal(first, second)
    again = unpack(*pack([leaf, leaf], build_codec("int8:rounding=stochastic"), seed=1), None)
    assert torch.equal(again[0], first)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "float64"}, "expected float32"),
        ({"shape": (2, 5, 71)}, "expected float32"),
        ({"frames": 3}, "headers tell"),
        ({"frames": -1}, "headers tell"),
        ({"codec": "int9"}, "int9"),
        ({"codec": "int8:block=128"}, "bytes where the tensor needs"),
        ({"codec": "x" * 5000}, "5000 characters"),
    ],
)
def test_headers_are_checked(change: dict[str, object], says: str) -> None:
    headers, frames = pack(LEAVES, build_codec("int8"))
    wrong = (replace(headers[0], **change), *headers[1:])  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match=says) as caught:
        unpack(wrong, frames, EXPECTED)
    assert len(str(caught.value)) < 300


def test_the_number_of_tensors_is_checked() -> None:
    headers, frames = pack(LEAVES, build_codec("raw"))
    with pytest.raises(RemoteProtocolError, match="5 tensors came where 4 were expected"):
        unpack(headers, frames, EXPECTED[:-1])
    with pytest.raises(RemoteProtocolError, match="headers tell"):
        unpack(headers, frames[:-1], EXPECTED)


def test_frames_moved_between_headers_are_caught() -> None:
    headers, frames = pack(LEAVES, build_codec("raw"))
    wrong = (replace(headers[0], frames=2), replace(headers[1], frames=1), *headers[2:])
    with pytest.raises(RemoteProtocolError, match="2 frames, not 1"):
        unpack(wrong, frames, EXPECTED)
