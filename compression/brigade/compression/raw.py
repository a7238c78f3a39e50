"""Tensors as they are, bit for bit: floats as their bytes, integers in the narrowest type, bools as bits.

Frames before zstd: floats and complex numbers [bytes]; bools [bits, most significant first]; integers
[name of the stored type in ASCII, bytes].
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from brigade.compression.buffers import bytes_of, dtype_name, plain, tensor_over
from brigade.compression.dtypes import DTYPES
from brigade.compression.spec import Part
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.validity import Buffer

NARROWER = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
LONGEST_NAME = max(len(name) for name in NARROWER)


def encode_raw(tensor: Tensor) -> list[tuple[Buffer, int]]:
    """Return the frames of a non-empty tensor, each with the width of its elements; views of its memory if possible."""
    info = DTYPES[dtype_name(tensor.dtype)]
    tensor = plain(tensor)
    if info.kind == "bool":
        return [(np.packbits(tensor.cpu().numpy().reshape(-1)).data, 1)]
    if info.kind != "integer":
        return [(bytes_of(tensor), info.item_bytes)]
    array: np.ndarray[Any, Any] = tensor.cpu().numpy().reshape(-1)
    stored = narrowest(array)
    narrow = array if stored == array.dtype else array.astype(stored)
    return [(stored.name.encode(), 1), (narrow.view(np.uint8).data, stored.itemsize)]


def narrowest(array: "np.ndarray[Any, np.dtype[Any]]") -> "np.dtype[Any]":
    """Return the smallest integer type that holds every element and widens to the array's own."""
    if array.dtype.itemsize == 1:
        return array.dtype
    low, high = int(array.min()), int(array.max())
    for name in NARROWER:
        stored = np.dtype(name)
        limits = np.iinfo(stored)
        if limits.min <= low and high <= limits.max and np.can_cast(stored, array.dtype, "safe"):
            return stored
    raise AssertionError("an integer type holds its own values")


def raw_parts(frames: list[Buffer], dtype: torch.dtype, count: int) -> tuple[Part, ...]:
    """Return what the frames of `count` > 0 elements must hold; RemoteProtocolError when an integer's first lies."""
    info = DTYPES[dtype_name(dtype)]
    if info.kind == "bool":
        return (Part(-(-count // 8), 1),)
    if info.kind != "integer":
        return (Part(count * info.item_bytes, info.item_bytes),)
    name = bytes(frames[0][:LONGEST_NAME]).decode("ascii", "replace") if frames else ""
    if name not in NARROWER or not np.can_cast(np.dtype(name), np.dtype(info.name), "safe"):
        raise RemoteProtocolError(f"integers of dtype {info.name} cannot come as {name!r}")
    item_bytes = DTYPES[name].item_bytes
    return (Part(len(name), 1), Part(count * item_bytes, item_bytes))


def decode_raw(parts: list[Buffer], out: Tensor) -> None:
    """Fill `out`, contiguous and not empty, from parts of the right sizes."""
    info = DTYPES[dtype_name(out.dtype)]
    flat = out.view(-1)
    if info.kind == "bool":
        bits = np.unpackbits(np.frombuffer(parts[0], dtype=np.uint8))
        if bits[flat.numel() :].any():
            raise RemoteProtocolError("the last byte of a bool tensor has bits beyond its end")
        flat.copy_(torch.from_numpy(bits[: flat.numel()]))
        return
    stored = out.dtype if info.kind != "integer" else getattr(torch, bytes(parts[0]).decode("ascii"))
    flat.copy_(tensor_over(parts[-1], stored))
