"""Every kind of tensor that a boundary may hold through every codec: dtype, shape, layout, size, ownership."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests.unit.compression.codec_texts import TEXTS

from brigade.compression.codec import build_codec
from brigade.compression.dtypes import DTYPES
from brigade.wire.errors import ConfigError, RemoteProtocolError

NAMES = [name for name in DTYPES if hasattr(torch, name)]
SHAPES = [(), (0,), (3, 0, 5), (1,), (7, 1), (2, 3, 4, 5), (9, 130)]
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT if x.dim() > 1 else x,
    "strided": lambda x: x[..., ::2] if x.dim() else x,
    "offset": lambda x: x[1:] if x.dim() and x.shape[0] > 1 else x,
    "expanded": lambda x: x.expand(3, *x.shape),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x,
    "reversed": lambda x: x.flip(0) if x.dim() else x,
}


def make(name: str, shape: tuple[int, ...], layout: str) -> torch.Tensor:
    """A tensor of random bits for what travels losslessly, of random numbers otherwise."""
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(len(shape))
    if dtype in {torch.float32, torch.float16, torch.bfloat16}:
        return LAYOUTS[layout](torch.randn(shape, generator=generator).to(dtype))
    if dtype == torch.bool:
        return LAYOUTS[layout](torch.randint(0, 2, shape, generator=generator).bool())
    if dtype.itemsize == 16:
        return LAYOUTS[layout](torch.randn(shape, generator=generator, dtype=dtype))
    limits = torch.iinfo(WORDS[dtype.itemsize])
    bits = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=WORDS[dtype.itemsize])
    return LAYOUTS[layout](bits).view(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = [x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for x in (a, b)]
    return torch.equal(*flat)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_shape_and_layout(text: str, name: str) -> None:
    codec = build_codec(text)
    lossy = name in codec.spec.values.lossy_dtypes
    for shape in SHAPES:
        for layout in LAYOUTS:
            tensor = make(name, shape, layout)
            frames = codec.encode(tensor, seed=3)
            again = codec.decode(frames, tensor.dtype, tensor.shape)
            where = (shape, layout)
            assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape), where
            assert again.is_contiguous(), where
            size, bound = sum(map(len, frames)), codec.spec.encoded_bytes(name, tensor.shape)
            narrows = DTYPES[name].kind == "integer" or codec.spec.zstd is not None
            assert size <= bound if narrows else size == bound, where
            if lossy:
                assert ((again.double() - tensor.double()).abs() <= codec.error_bound(tensor)).all(), where
            else:
                assert same_bits(again, tensor), where
                assert not codec.error_bound(tensor).any(), where


@pytest.mark.parametrize("text", TEXTS)
def test_result_is_writable_and_owns_its_memory(text: str) -> None:
    for tensor in (torch.randn(4, 64), torch.arange(300), torch.ones(9, dtype=torch.bool)):
        codec = build_codec(text)
        frames = [bytearray(frame) for frame in codec.encode(tensor)]
        again = codec.decode(frames, tensor.dtype, tensor.shape)
        before = again.clone()
        for frame in frames:
            frame[:] = bytes(len(frame))
        assert torch.equal(again, before)
        again.zero_()
        assert again.untyped_storage().nbytes() == again.numel() * again.itemsize
        assert not again.requires_grad


@pytest.mark.parametrize("text", TEXTS)
def test_tensors_of_the_graph_and_of_inference_mode(text: str) -> None:
    codec = build_codec(text)
    plain = torch.randn(5, 70)
    expected = codec.decode(codec.encode(plain), plain.dtype, plain.shape)
    leaf = plain.clone().requires_grad_()
    with torch.inference_mode():
        inference = plain.clone()
    for tensor in (leaf, leaf * 1, torch.nn.Parameter(plain), inference, torch._neg_view(-plain)):
        again = codec.decode(codec.encode(tensor), plain.dtype, plain.shape)
        assert torch.equal(again, expected)
        assert not again.is_inference()


def test_conjugate_views_are_resolved() -> None:
    tensor = torch.randn(8, dtype=torch.complex64)
    codec = build_codec("int8")
    for view in (tensor.conj(), tensor.conj().imag, torch.view_as_real(tensor)):
        again = codec.decode(codec.encode(view), view.dtype, view.shape)
        bound = codec.error_bound(view.resolve_conj().resolve_neg())
        assert ((again - view).abs() <= bound.clamp_min(0)).all()


def test_bf16_costs_two_bytes_an_element() -> None:
    tensor = torch.randn(64, 64).bfloat16()
    for text in ("raw", "bf16", "fp16"):
        assert sum(map(len, build_codec(text).encode(tensor))) == 2 * tensor.numel()


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_leaves_the_tensor_alone(text: str) -> None:
    tensor = torch.randn(7, 65)
    before = tensor.clone()
    build_codec(text).encode(tensor)
    assert torch.equal(tensor, before)


def test_what_cannot_travel_is_refused_at_the_sender() -> None:
    with pytest.raises(ConfigError, match="sparse"):
        build_codec("int8").encode(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("frames", "shape"),
    [([b""], (0,)), ([], (1,)), ([bytes(4), bytes(4)], (1,)), ([bytes(3)], (1,)), ([bytes(4)], (-1,))],
)
def test_wrong_frames_are_refused(frames: list[bytes], shape: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        build_codec("raw").decode(frames, torch.float32, shape)


def test_a_boundary_of_more_than_four_gib_takes_no_memory_to_encode() -> None:
    """No length is kept in 32 bits, and nothing is copied."""
    count = (4 << 30) // 4 + 1000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sparse"
        with path.open("wb") as file:
            file.truncate(4 * count)
        tensor = torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r+"))
        before = psutil.Process().memory_info().rss
        (frame,) = build_codec("raw").encode(tensor)
        assert len(frame) == 4 * count == build_codec("raw").spec.encoded_bytes("float32", (count,))
        assert psutil.Process().memory_info().rss - before < 16 << 20
        del frame, tensor
