"""Float32 as 16 bits: bf16 (all of the range, 8 bits of significand) and fp16 (11 bits, one power of two a row).

Finite values stay finite: bf16 stops at its largest value, fp16 scales every row (last dimension) by the power of two
that puts its largest value just below the top. A scale for the whole tensor would let one position of a sequence change
how others are rounded; a row is one position. Infinities and NaNs stay what they are, element by element.
"""

import torch
from torch import Tensor

from brigade.compression.chunking import chunk_of
from brigade.compression.spec import rows_of

BF16_MAX = torch.finfo(torch.bfloat16).max
TOP_EXPONENT = 15  # fp16 rows are scaled to [2**14, 2**15), safely below 65504
TOP = 2.0**15 - 2.0**4  # the fp16 below 2**15, which times 2**113 would be infinite
SMALLEST_SHIFT, LARGEST_SHIFT = -126, 113  # both 2**shift and 2**-shift are normal float32


def encode_bf16(tensor: Tensor) -> list[Tensor]:
    """Return [values as bfloat16] of a contiguous float32 tensor."""
    flat = tensor.view(-1)
    halves = torch.empty(flat.shape, dtype=torch.bfloat16, device=flat.device)
    step = chunk_of(flat)
    for start in range(0, flat.numel(), step):
        chunk = flat[start : start + step]
        low, high = torch.aminmax(chunk)
        if not (float(low) >= -BF16_MAX and float(high) <= BF16_MAX):
            chunk = torch.where(torch.isfinite(chunk), chunk.clamp(-BF16_MAX, BF16_MAX), chunk)
        halves[start : start + step].copy_(chunk)
    return [halves]


def decode_bf16(parts: list[Tensor], out: Tensor) -> None:
    """Fill a contiguous float32 tensor."""
    out.view(-1).copy_(parts[0])


def bound_bf16(tensor: Tensor) -> Tensor:
    """Return the largest error of each element, float64."""
    values = tensor.double().abs()
    return torch.maximum(values * 2.0**-8, values - BF16_MAX).clamp_min(2.0**-134)


def encode_fp16(tensor: Tensor) -> list[Tensor]:
    """Return [shift of each row as int8, values times 2**-shift as float16] of a contiguous float32 tensor."""
    rows = tensor.view(rows_of(tensor.shape))
    shifts = torch.empty(rows.shape[0], dtype=torch.int8, device=rows.device)
    halves = torch.empty(rows.shape, dtype=torch.float16, device=rows.device)
    step = max(1, chunk_of(rows) // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        chunk = rows[start : start + step]
        room = torch.empty(chunk.shape, dtype=torch.float32, device=chunk.device)
        largest = torch.amax(torch.abs(chunk, out=room), dim=1)
        careful = not float(largest.amax()) < 2.0**127
        if careful:
            largest = torch.where(torch.isfinite(chunk), room, 0.0).amax(dim=1)
        shift = (torch.frexp(largest).exponent - TOP_EXPONENT).clamp_(SMALLEST_SHIFT, LARGEST_SHIFT)
        torch.mul(chunk, _power_of_two(-shift)[:, None], out=room)
        if careful:
            room = torch.where(torch.isfinite(chunk), room.clamp(-TOP, TOP), room)
        shifts[start : start + step].copy_(shift)
        halves[start : start + step].copy_(room)
    return [shifts, halves]


def decode_fp16(parts: list[Tensor], out: Tensor) -> None:
    """Fill a contiguous float32 tensor."""
    rows = out.view(rows_of(out.shape))
    halves = parts[1].view(rows.shape)
    powers = _power_of_two(parts[0].to(torch.int32).clamp(SMALLEST_SHIFT, LARGEST_SHIFT))[:, None]
    step = max(1, chunk_of(rows) // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        rows[start : start + step].copy_(halves[start : start + step]).mul_(powers[start : start + step])


def bound_fp16(tensor: Tensor) -> Tensor:
    """Return the largest error of each element, float64."""
    values = tensor.double().abs()
    largest = values.nan_to_num(0.0, posinf=0.0).reshape(rows_of(values.shape)).amax(dim=1, keepdim=True)
    floor = (largest * 2.0**-38).clamp_min(2.0**-149)
    return values * 2.0**-11 + floor.expand(rows_of(values.shape)).reshape(values.shape)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return 2**exponent as float32, for int32 exponents from -126 to 127."""
    return ((exponent + 127) << 23).view(torch.float32)
