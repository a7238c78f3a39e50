"""Byte planes: all lowest bytes of the elements, then all second bytes, and so on, so that exponents lie together.

zstd finds nothing in the mantissas of floats but much in their exponents; element by element it sees neither.
"""

import torch
from torch import Tensor

CHUNK = 1 << 16  # elements; scratch stays in the cache
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def split_planes(payload: Tensor, item_bytes: int) -> Tensor:
    """Return the planes of a flat uint8 tensor of elements of `item_bytes` (2, 4 or 8) as one flat uint8 tensor."""
    words = payload.view(WORDS[item_bytes])
    planes = torch.empty((item_bytes, words.numel()), dtype=torch.int8)
    scratch = torch.empty(min(CHUNK, words.numel()), dtype=words.dtype)
    for start in range(0, words.numel(), CHUNK):
        chunk = words[start : start + CHUNK]
        part = planes[:, start : start + CHUNK]
        part[0].copy_(chunk)  # to int8, which torch vectorises, where to uint8 it is four times slower
        for index in range(1, item_bytes):
            shifted = torch.bitwise_right_shift(chunk, 8 * index, out=scratch[: chunk.numel()])
            part[index].copy_(shifted)
    return planes.view(torch.uint8).view(-1)


def join_planes(planes: Tensor, item_bytes: int) -> Tensor:
    """Undo `split_planes` into new memory."""
    lanes = planes.view(item_bytes, -1)
    words = torch.empty(lanes.shape[1], dtype=WORDS[item_bytes])
    scratch = torch.empty(min(CHUNK, words.numel()), dtype=words.dtype)
    for start in range(0, words.numel(), CHUNK):
        chunk = words[start : start + CHUNK]
        part = lanes[:, start : start + CHUNK]
        chunk.copy_(part[item_bytes - 1])
        for index in range(item_bytes - 2, -1, -1):
            lane = scratch[: chunk.numel()].copy_(part[index])
            chunk.bitwise_left_shift_(8).bitwise_or_(lane)
    return words.view(torch.uint8)
