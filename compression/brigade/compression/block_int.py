"""One byte an element with one scale for every block of a row: int8 by blocks, nearest or stochastic rounding.

For a block v of a row (last dimension; a row is one position of a sequence, so that no position learns of another):
s = max|v| / 127, rounded up to bf16 (or as float32), never below 2**-126; q = round(v / s); decoded q * s. The error is
at most s/2 (nearest) or s (stochastic, whose mean error is zero). Zeros stay zeros, finite stays finite. A block that
holds an infinity or a NaN comes back as NaN, all of it: it has no scale that would leave its other values right, and
a silent finite value would hide the fault. Its neighbours are not touched.

Sources: QSGD (arXiv 1610.02132) for stochastic rounding, 8-bit optimizers (arXiv 2110.02861) for blocks.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from brigade.compression.chunking import chunk_of
from brigade.compression.noise import Noise
from brigade.compression.spec import Int8Values, rows_of
from brigade.wire.errors import RemoteProtocolError

STEPS = 127
SMALLEST_SCALE = 2.0**-126  # the smallest normal float32: its inverse is finite


def encode_int8(tensor: Tensor, values: Int8Values, seed: int) -> list[Tensor]:
    """Return [scales, codes as int8], both flat, of a contiguous tensor of float32, float16 or bfloat16."""
    device = tensor.device
    rows, row_size = rows_of(tensor.shape)
    numbers = tensor.view(rows, row_size)
    largest = torch.empty((rows, -(-row_size // values.block)), dtype=torch.float32, device=device)
    codes = torch.empty((rows, row_size), dtype=torch.int8, device=device)
    for blocks, block_largest, _ in _chunks(numbers, largest, codes, values.block):
        room = torch.empty(blocks.shape, dtype=torch.float32, device=device)
        magnitudes = torch.abs(blocks, out=room) if blocks.dtype == room.dtype else room.copy_(blocks).abs_()
        torch.amax(magnitudes, dim=2, out=block_largest)
    scales, inverses, finite = _scales(largest, values)
    noise = Noise(seed, device) if values.rounding == "stochastic" else None
    for blocks, block_inverses, block_codes in _chunks(numbers, inverses, codes, values.block):
        room = torch.empty(blocks.shape, dtype=torch.float32, device=device)
        torch.mul(blocks, block_inverses[..., None], out=room)
        if not finite:
            room.nan_to_num_(0.0)
        if noise is None:
            block_codes.copy_(room.round_())  # |v / s| exceeds 127 by rounding errors only
        else:
            block_codes.copy_(noise.add_to(room).round_().clamp_max_(STEPS))
    return [scales.view(-1), codes.view(-1)]


def _scales(largest: Tensor, values: Int8Values) -> tuple[Tensor, Tensor, bool]:
    """Return the scales to send, their inverses, and whether all are finite; those of lost blocks are NaN and 0."""
    finite = math.isfinite(float(largest.amax()))
    scale = largest.div_(STEPS).clamp_min_(SMALLEST_SCALE)
    if not finite:
        scale.masked_fill_(~torch.isfinite(scale), math.nan)
    sent = round_up_to_bf16(scale) if values.scale == "bf16" else scale
    inverses = sent.to(torch.float32).reciprocal()
    return sent, inverses if finite else inverses.nan_to_num_(0.0), finite


def decode_int8(parts: list[Tensor], values: Int8Values, out: Tensor) -> None:
    """Fill a contiguous tensor of float32, float16 or bfloat16; RemoteProtocolError for scales that nobody sends."""
    rows, row_size = rows_of(out.shape)
    scales = parts[0].view(rows, -1).to(torch.float32)
    if not bool((torch.isnan(scales) | ((scales > 0) & (scales < math.inf))).all()):
        raise RemoteProtocolError("a block of int8 codes has a scale that is not positive and finite")
    largest = float(scales.nan_to_num(SMALLEST_SCALE).amax())
    limit = torch.finfo(out.dtype).max
    clamps = largest * 128 > limit  # the scale was rounded up: 127 of it may lie beyond the last finite value
    for blocks, block_scales, block_codes in _chunks(
        out.view(rows, row_size), scales, parts[1].view(rows, row_size), values.block
    ):
        if out.dtype == torch.float32 and not clamps:
            blocks.copy_(block_codes).mul_(block_scales[..., None])
        else:
            blocks.copy_(torch.mul(block_codes, block_scales[..., None]).clamp_(-limit, limit))


def bound_int8(tensor: Tensor, values: Int8Values) -> Tensor:
    """Return the largest error of each element, float64; infinite in blocks that are not finite."""
    rows, row_size = rows_of(tensor.shape)
    magnitudes = tensor.double().abs().view(rows, row_size)
    block = min(values.block, row_size)
    padded = torch.nn.functional.pad(magnitudes, (0, -row_size % block))
    largest = padded.view(rows, -1, block).amax(dim=2)
    growth = 1 + 2.0**-7 if values.scale == "bf16" else 1.0  # of a scale when it is rounded up
    scale = (largest / STEPS).clamp_min(SMALLEST_SCALE) * growth
    steps = (0.5 if values.rounding == "nearest" else 1.0) * (1 + 2.0**-12)  # float32 arithmetic takes its share
    bound = (scale * steps).repeat_interleave(block, dim=1)[:, :row_size]
    info = torch.finfo(tensor.dtype)
    output = (magnitudes + bound) * info.eps / 2 + info.smallest_normal * info.eps  # decoded into tensor.dtype
    return (bound + output).nan_to_num(math.inf, posinf=math.inf).view(tensor.shape)


def round_up_to_bf16(values: Tensor) -> Tensor:
    """Return positive float32 values as the next bf16 that is not below; NaN stays NaN."""
    bits = (values.view(torch.int32) + 0xFFFF).bitwise_right_shift_(16)
    rounded = bits.to(torch.int16).view(torch.bfloat16)
    return rounded.masked_fill_(torch.isnan(values), math.nan)


def _chunks(rows: Tensor, scales: Tensor, codes: Tensor, block: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Cut rows, their scales and their codes into views (rows, blocks, elements), (rows, blocks) and as the first.

    All blocks of a view are of one size: the last block of a row, when shorter, comes in views of its own.
    """
    count, row_size = rows.shape
    whole = row_size // block
    if row_size % block == 0:  # rows of one block each: views are contiguous
        yield from _pieces(rows.view(-1, 1, block), scales.view(-1, 1), codes.view(-1, 1, block))
        return
    if whole:
        end, shape = whole * block, (count, whole, block)
        yield from _pieces(rows[:, :end].view(shape), scales[:, :whole], codes[:, :end].view(shape))
    yield from _pieces(rows[:, None, whole * block :], scales[:, whole:], codes[:, None, whole * block :])


def _pieces(rows: Tensor, scales: Tensor, codes: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Cut along both leading dimensions, so that a piece fits the cache; on an accelerator one piece is best."""
    count, blocks, size = rows.shape
    room = chunk_of(rows)
    block_step = max(1, min(blocks, room // size))
    row_step = max(1, room // (block_step * size)) if block_step == blocks else 1
    for first in range(0, count, row_step):
        for start in range(0, blocks, block_step):
            at = (slice(first, first + row_step), slice(start, start + block_step))
            yield rows[at], scales[at], codes[at]
