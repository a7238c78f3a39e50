"""A codec as text such as `int8:block=256,rounding=stochastic+zstd:level=3`: parsing, canonical form, sizes. No torch.

Grammar: `values[:key=value,...][+zstd[:level=n]]`. `values` says how numbers become bytes, zstd what is done to the
bytes. Sizes are those before zstd, which is kept only where it makes a frame smaller: they are exact without zstd and
a bound with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from brigade.compression.dtypes import describe_dtype
from brigade.wire.errors import ConfigError

MAX_TEXT = 128  # characters; texts arrive from other nodes too


@dataclass(frozen=True, slots=True)
class Part:
    """One frame of an encoded tensor: its bytes before zstd, and the width of its elements."""

    size_bytes: int
    item_bytes: int


class RawValues(Struct, frozen=True, forbid_unknown_fields=True):
    """Every bit as it is; integers in the narrowest type that holds them, bools as bits."""

    name: ClassVar[str] = "raw"
    lossy_dtypes: ClassVar[frozenset[str]] = frozenset()
    zstd_gain: ClassVar[float] = 1.25  # fp32 activations and gradients in byte planes, measured 1.30 and 1.18

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        """Return the frames of a float32 tensor of this shape."""
        return (Part(4 * math.prod(shape), 4),)


class Bf16Values(Struct, frozen=True, forbid_unknown_fields=True):
    """The upper half of a float32: 8 bits of significand, the full range."""

    name: ClassVar[str] = "bf16"
    lossy_dtypes: ClassVar[frozenset[str]] = frozenset({"float32"})
    zstd_gain: ClassVar[float] = 1.5  # measured 1.56 on activations, 1.44 on gradients

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        """Return the frames of a tensor of this shape."""
        return (Part(2 * math.prod(shape), 2),)


class Fp16Values(Struct, frozen=True, forbid_unknown_fields=True):
    """11 bits of significand, and one power of two a row (last dimension) that keeps every finite value finite."""

    name: ClassVar[str] = "fp16"
    lossy_dtypes: ClassVar[frozenset[str]] = frozenset({"float32"})
    zstd_gain: ClassVar[float] = 1.17  # measured 1.20 on activations, 1.15 on gradients

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        """Return the frames of a tensor of this shape: exponents, then halves."""
        rows, _ = rows_of(shape)
        return (Part(rows, 1), Part(2 * math.prod(shape), 2))


class Int8Values(Struct, frozen=True, forbid_unknown_fields=True):
    """One byte an element, and one scale for every `block` elements of a row (last dimension)."""

    name: ClassVar[str] = "int8"
    lossy_dtypes: ClassVar[frozenset[str]] = frozenset({"float32", "float16", "bfloat16"})
    zstd_gain: ClassVar[float] = 1.06

    block: Annotated[int, Meta(ge=8, le=65536)] = 64
    rounding: Literal["nearest", "stochastic"] = "nearest"
    scale: Literal["bf16", "fp32"] = "bf16"

    @property
    def scale_bytes(self) -> int:
        """Return the bytes of one scale."""
        return 2 if self.scale == "bf16" else 4

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        """Return the frames of a tensor of this shape: scales, then codes."""
        rows, row_size = rows_of(shape)
        scales = rows * -(-row_size // self.block)
        return (Part(self.scale_bytes * scales, self.scale_bytes), Part(math.prod(shape), 1))


class ZstdStage(Struct, frozen=True, forbid_unknown_fields=True):
    """A frame of zstd around every part that it makes smaller; wider elements go in byte planes."""

    name: ClassVar[str] = "zstd"

    level: Annotated[int, Meta(ge=1, le=19)] = 1


Stage = TypeVar("Stage", bound=Struct)
Values = RawValues | Bf16Values | Fp16Values | Int8Values
VALUES: dict[str, type[Values]] = {kind.name: kind for kind in (RawValues, Bf16Values, Fp16Values, Int8Values)}


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """What a codec does, as written in a run file, a plan or the header of a tensor."""

    values: Values
    zstd: ZstdStage | None = None

    @staticmethod
    def parse(text: str) -> "CodecSpec":
        """Return the spec that `text` writes; ConfigError says what is wrong, with the nearest known name."""
        if len(text) > MAX_TEXT:
            raise ConfigError(f"codec text of {len(text)} characters; at most {MAX_TEXT} are allowed")
        first, *stages = text.split("+")
        name, options = _split(first, text)
        if name not in VALUES:
            raise ConfigError(f"codec {text!r}: unknown {name!r}{_nearest(name, VALUES)}")
        values = _build(VALUES[name], options, text)
        if not stages:
            return CodecSpec(values)
        name, options = _split(stages[0], text)
        if name != ZstdStage.name or len(stages) > 1:
            wrong = name if name != ZstdStage.name else stages[1]
            raise ConfigError(f"codec {text!r}: after {first!r} only one '+zstd' may follow, found {wrong!r}")
        return CodecSpec(values, _build(ZstdStage, options, text))

    def text(self) -> str:
        """Return the canonical text: options that differ from their defaults, in a fixed order."""
        return _write(self.values) + ("" if self.zstd is None else "+" + _write(self.zstd))

    @property
    def lossless(self) -> bool:
        """Tell whether every tensor comes back bit for bit."""
        return not self.values.lossy_dtypes

    def for_dtype(self, dtype: str) -> "CodecSpec":
        """Return the spec that tensors of this dtype really travel under: lossless where `values` would gain nothing.

        Integers, bools, complex numbers, float64 and float8 never lose a bit; bf16 and fp16 leave other halves alone.
        """
        return self if dtype in self.values.lossy_dtypes else CodecSpec(RawValues(), self.zstd)

    def encoded_bytes(self, dtype: str, shape: Sequence[int]) -> int:
        """Return the payload bytes of a tensor: exact for floats without zstd, a bound otherwise."""
        count = math.prod(shape)
        if count == 0:
            return 0
        if dtype in self.values.lossy_dtypes:
            return sum(part.size_bytes for part in self.values.parts(shape))
        info = describe_dtype(dtype)
        if info.kind == "bool":
            return -(-count // 8)
        return count * info.item_bytes + (len(dtype) if info.kind == "integer" else 0)


def rows_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return (number of rows, elements of a row) of a shape: rows lie along the last dimension."""
    row_size = shape[-1] if shape else 1
    return (math.prod(shape[:-1]), row_size)


def bytes_per_element(text: str, dtype: str) -> float:
    """Return the payload bytes per element of a large tensor whose rows are whole blocks, before zstd."""
    spec = _parse_cached(text)
    row_size = 2**20
    if isinstance(spec.values, Int8Values):
        row_size -= row_size % spec.values.block
    return spec.encoded_bytes(dtype, (row_size,)) / row_size


def ratio(text: str) -> float:
    """Return how many times smaller than float32 a boundary tensor becomes, zstd at its measured typical gain."""
    spec = _parse_cached(text)
    gain = 1.0 if spec.zstd is None else spec.values.zstd_gain
    return 4.0 / bytes_per_element(text, "float32") * gain


@lru_cache(maxsize=64)
def _parse_cached(text: str) -> CodecSpec:
    return CodecSpec.parse(text)


def _split(stage: str, text: str) -> tuple[str, dict[str, str]]:
    """Return name and options of one stage `name:key=value,key=value`."""
    name, colon, tail = stage.partition(":")
    options: dict[str, str] = {}
    for item in tail.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"codec {text!r}: expected key=value after {name!r}, found {item!r}")
        if key in options:
            raise ConfigError(f"codec {text!r}: {key!r} is given twice")
        options[key] = value
    return name, options


def _build(kind: type[Stage], options: dict[str, str], text: str) -> Stage:
    known = kind.__struct_fields__
    for key in options:
        if key not in known:
            raise ConfigError(f"codec {text!r}: unknown option {key!r}{_nearest(key, known)}")
    try:
        return msgspec.convert(options, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`")
        choices = get_args(get_type_hints(kind)[key])
        expected = (
            f"expected {' or '.join(choices)}" if choices else what.replace("`", "").replace("Expected", "expected")
        )
        raise ConfigError(f"codec {text!r}: {key}={options[key]}: {expected}") from None


def _write(stage: Struct) -> str:
    pairs = [
        f"{field.name}={getattr(stage, field.name)}"
        for field in msgspec.structs.fields(stage)
        if getattr(stage, field.name) != field.default
    ]
    name: str = type(stage).__dict__["name"]
    return f"{name}:{','.join(pairs)}" if pairs else name


def _nearest(word: str, known: Sequence[str] | dict[str, type[Values]]) -> str:
    if not known:
        return "; it takes no options"
    guess = get_close_matches(word, list(known), n=1)
    hint = f", did you mean {guess[0]!r}?" if guess else ""
    return f"{hint} (known: {', '.join(known)})"
