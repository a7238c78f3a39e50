"""Several tensors as one message: their headers and all their frames, in order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from brigade.compression.buffers import dtype_name, dtype_of
from brigade.compression.codec import Codec, build_codec
from brigade.wire.errors import ConfigError, RemoteProtocolError
from brigade.wire.message_parts import TensorHeader
from brigade.wire.validity import Buffer

SEED_STRIDE = 0x9E3779B97F4A7C15  # odd: every tensor of a message rounds with noise of its own


def pack(leaves: Sequence[Tensor], codec: Codec, seed: int = 0) -> tuple[tuple[TensorHeader, ...], list[Buffer]]:
    """Return headers and frames of these tensors; frames may share their memory until they are sent."""
    headers: list[TensorHeader] = []
    frames: list[Buffer] = []
    for index, leaf in enumerate(leaves):
        encoded = codec.encode(leaf, (seed + index * SEED_STRIDE) % 2**63)
        headers.append(
            TensorHeader(
                dtype=dtype_name(leaf.dtype),
                shape=tuple(leaf.shape),
                codec=codec.text_for(leaf.dtype),
                frames=len(encoded),
            )
        )
        frames.extend(encoded)
    return tuple(headers), frames


def unpack(
    headers: Sequence[TensorHeader],
    frames: Sequence[Buffer],
    expected: Sequence[tuple[str, tuple[int, ...]]] | None,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """Return the tensors of a message, in memory of their own.

    `expected` holds (dtype name, shape) of every tensor as the plan states them. Without it the headers are believed:
    bound what they state first. Every difference and every malformed frame raises RemoteProtocolError.
    """
    if expected is not None:
        _check_kinds(headers, expected)
    if any(header.frames < 0 for header in headers) or sum(header.frames for header in headers) != len(frames):
        raise RemoteProtocolError(f"{len(frames)} frames came, the headers tell of {[h.frames for h in headers][:16]}")
    tensors: list[Tensor] = []
    start = 0
    for header in headers:
        end = start + header.frames
        tensors.append(_codec_of(header).decode(frames[start:end], dtype_of(header.dtype), header.shape, device))
        start = end
    return tensors


def _check_kinds(headers: Sequence[TensorHeader], expected: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    if len(headers) != len(expected):
        raise RemoteProtocolError(f"{len(headers)} tensors came where {len(expected)} were expected")
    for index, (header, (dtype, shape)) in enumerate(zip(headers, expected, strict=True)):
        if header.dtype != dtype or tuple(header.shape) != tuple(shape):
            raise RemoteProtocolError(
                f"tensor {index} is {header.dtype[:40]} {tuple(header.shape)[:16]}, expected {dtype} {tuple(shape)}"
            )


def _codec_of(header: TensorHeader) -> Codec:
    """Return the codec that the header names; another node's wrong text is its fault, not ours."""
    try:
        return build_codec(header.codec)
    except ConfigError as error:
        raise RemoteProtocolError(str(error)[:200]) from None
