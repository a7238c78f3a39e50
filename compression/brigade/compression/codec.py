"""A tensor becomes frames and back: picks the value coder of a tensor's dtype, then zstd around its frames.

A codec has no state, so one object serves every thread, and a message can be encoded once and sent again.
A new codec is a structure in `spec.py`, its coder in a file of its own, and one line in `_coder`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from brigade.compression import cast
from brigade.compression.block_int import bound_int8, decode_int8, encode_int8
from brigade.compression.buffers import bytes_of, check_shape, check_tensor, dtype_name, plain, tensor_over
from brigade.compression.lossless import check_frame, restore, squeeze
from brigade.compression.raw import decode_raw, encode_raw, raw_parts
from brigade.compression.spec import Bf16Values, CodecSpec, Fp16Values, Int8Values, RawValues
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.validity import Buffer


@dataclass(frozen=True, slots=True)
class Coder:
    """How one lossy kind of values is made and read; tensors are contiguous, not empty, of a dtype that it changes."""

    encode: Callable[[Tensor, int], list[Tensor]]
    decode: Callable[[list[Tensor], Tensor], None]
    bound: Callable[[Tensor], Tensor]
    part_dtypes: tuple[torch.dtype, ...]


class Codec:
    """One codec, for every tensor kind."""

    def __init__(self, spec: CodecSpec) -> None:
        """Build the coder that `spec` names."""
        self.spec = spec
        self.text = spec.text()
        self.lossless = spec.lossless
        self._coder = _coder(spec)
        self._texts: dict[torch.dtype, str] = {}  # writing one takes longer than a raw tensor

    def text_for(self, dtype: torch.dtype) -> str:
        """Return the codec text to write beside a tensor of this dtype."""
        if dtype not in self._texts:
            self._texts[dtype] = self.spec.for_dtype(dtype_name(dtype)).text()
        return self._texts[dtype]

    def encode(self, tensor: Tensor, seed: int = 0) -> list[Buffer]:
        """Return the frames of a tensor; none when it has no elements.

        Frames may share the tensor's memory: leave it unchanged until they are sent. `seed` drives stochastic
        rounding. Raises ConfigError, naming the kind, for tensors that no codec carries.
        """
        check_tensor(tensor)
        if tensor.numel() == 0:
            return []
        coder = self._coder_for(tensor.dtype)
        if coder is None:
            parts = encode_raw(tensor)
        else:
            parts = [(bytes_of(part), part.dtype.itemsize) for part in coder.encode(plain(tensor), seed)]
        if self.spec.zstd is None:
            return [payload for payload, _ in parts]
        return [squeeze(payload, item_bytes, self.spec.zstd) for payload, item_bytes in parts]

    def decode(
        self, frames: Sequence[Buffer], dtype: torch.dtype, shape: Sequence[int], device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return the tensor of this dtype and shape, in memory of its own.

        Raises RemoteProtocolError whatever else the frames hold. Allocates nothing before every frame has a size that
        fits, and then at most four times what dtype and shape state, and a constant.
        """
        count = check_shape(shape)
        if count == 0:
            if frames:
                raise RemoteProtocolError(f"a tensor without elements came with {len(frames)} frames")
            return torch.empty(tuple(shape), dtype=dtype, device=device)
        coder = self._coder_for(dtype)
        frames = list(frames)
        expected = raw_parts(frames, dtype, count) if coder is None else self.spec.values.parts(shape)
        if len(frames) != len(expected):
            raise RemoteProtocolError(
                f"a tensor of {dtype_name(dtype)} came with {len(frames)} frames, not {len(expected)}"
            )
        for frame, part in zip(frames, expected, strict=True):
            check_frame(frame, part, self.spec.zstd)
        parts = [restore(frame, part, self.spec.zstd) for frame, part in zip(frames, expected, strict=True)]
        if coder is None:
            out = torch.empty(tuple(shape), dtype=dtype)
            decode_raw(parts, out)
            return out.to(device)
        out = torch.empty(tuple(shape), dtype=dtype, device=device)
        tensors = [tensor_over(part, kind) for part, kind in zip(parts, coder.part_dtypes, strict=True)]
        coder.decode([tensor.to(device) for tensor in tensors], out)
        return out

    def error_bound(self, tensor: Tensor) -> Tensor:
        """Return the largest error that each element can suffer, as float64 of the tensor's shape.

        It holds for finite values; where a block holds an infinity or a NaN, int8 states an infinite bound.
        """
        coder = self._coder_for(tensor.dtype)
        if coder is None or tensor.numel() == 0:
            return torch.zeros(tensor.shape, dtype=torch.float64)
        return coder.bound(plain(tensor).cpu())

    def _coder_for(self, dtype: torch.dtype) -> Coder | None:
        return self._coder if dtype_name(dtype) in self.spec.values.lossy_dtypes else None


@lru_cache(maxsize=64)
def build_codec(text: str) -> Codec:
    """Return the codec that `text` writes (`brigade.compression.spec`); ConfigError says what is wrong with it."""
    return Codec(CodecSpec.parse(text))


def _coder(spec: CodecSpec) -> Coder | None:
    match spec.values:
        case RawValues():
            return None
        case Bf16Values():
            return Coder(lambda x, _: cast.encode_bf16(x), cast.decode_bf16, cast.bound_bf16, (torch.bfloat16,))
        case Fp16Values():
            return Coder(
                lambda x, _: cast.encode_fp16(x), cast.decode_fp16, cast.bound_fp16, (torch.int8, torch.float16)
            )
        case Int8Values() as values:
            return Coder(
                lambda x, seed: encode_int8(x, values, seed),
                lambda parts, out: decode_int8(parts, values, out),
                lambda x: bound_int8(x, values),
                (torch.bfloat16 if values.scale == "bf16" else torch.float32, torch.int8),
            )
