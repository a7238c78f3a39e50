"""Bytes of a tensor without a copy, and tensors over bytes without a copy. Little-endian machines only."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brigade.compression.dtypes import DTYPES
from brigade.wire.errors import ConfigError, RemoteProtocolError
from brigade.wire.validity import Buffer

MAX_DIMS = 16


@cache  # there are a few dozen
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype on the wire: `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of this name; RemoteProtocolError when it is unknown, here or to this version of torch."""
    dtype = getattr(torch, name, None) if name in DTYPES else None
    if not isinstance(dtype, torch.dtype):
        raise RemoteProtocolError(f"unknown dtype {name[:40]!r}")
    return dtype


def check_tensor(tensor: Tensor) -> None:
    """Raise ConfigError, naming the kind, for a tensor that no codec carries (sparse, quantised, nested, meta)."""
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ConfigError(f"no codec carries {kind} tensors (dtype {dtype_name(tensor.dtype)}); make it dense")
    if tensor.is_quantized or dtype_name(tensor.dtype) not in DTYPES:
        raise ConfigError(
            f"no codec carries tensors of dtype {dtype_name(tensor.dtype)}; carried are {', '.join(DTYPES)}"
        )
    if tensor.is_meta:
        raise ConfigError("a tensor on the meta device has no data to send")
    if tensor.dim() > MAX_DIMS:
        raise ConfigError(f"no codec carries tensors of {tensor.dim()} dimensions; at most {MAX_DIMS}")


def plain(tensor: Tensor) -> Tensor:
    """Return the values in row-major order outside the graph, sharing memory where they lie so already."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor; a view of its memory when it is on the CPU."""
    host = tensor.cpu()
    flat = host.as_strided((host.numel(),), (1,))  # one element may have any stride, which a view of bytes refuses
    array: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return array.data


def tensor_over(buffer: Buffer, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor over the bytes of `buffer`, which holds whole elements. Only to be read."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    if array.ctypes.data % dtype.itemsize:
        array = array.copy()  # a piece of a longer message may start anywhere
    if not array.flags.writeable:
        array = np.asarray(_Alias(array))
    return torch.from_numpy(array).view(dtype)


def check_shape(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape; RemoteProtocolError when it is none."""
    if len(shape) > MAX_DIMS or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
        raise RemoteProtocolError(f"no tensor has shape {tuple(shape)[: MAX_DIMS + 1]}")
    count = math.prod(shape)
    if count >= 2**48:
        raise RemoteProtocolError(f"a tensor of shape {tuple(shape)} is too large")
    return count


class _Alias:
    """The memory of a read-only array, which torch would warn about: its tensors are scratch that nobody writes to."""

    def __init__(self, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._owner = array  # keeps the memory alive
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": "|u1",
            "data": (array.ctypes.data, False),
        }
