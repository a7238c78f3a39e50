"""The tensor kinds that a link carries: name (as torch prints it), bytes and nature of an element. No torch."""

from dataclasses import dataclass
from typing import Literal

from brigade.wire.errors import ConfigError

Kind = Literal["float", "complex", "integer", "bool"]


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """One kind of element."""

    name: str
    item_bytes: int
    kind: Kind


_KINDS: tuple[tuple[Kind, dict[str, int]], ...] = (
    (
        "float",
        {
            "float64": 8,
            "float32": 4,
            "float16": 2,
            "bfloat16": 2,
            "float8_e4m3fn": 1,
            "float8_e4m3fnuz": 1,
            "float8_e5m2": 1,
            "float8_e5m2fnuz": 1,
            "float8_e8m0fnu": 1,
        },
    ),
    ("complex", {"complex32": 4, "complex64": 8, "complex128": 16}),
    (
        "integer",
        {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8},
    ),
    ("bool", {"bool": 1}),
)
DTYPES: dict[str, DtypeInfo] = {
    name: DtypeInfo(name, item_bytes, kind) for kind, names in _KINDS for name, item_bytes in names.items()
}


def describe_dtype(name: str) -> DtypeInfo:
    """Return what is known about the dtype called `name`; ConfigError when no codec carries it."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ConfigError(f"no codec carries tensors of dtype {name}; carried are {', '.join(DTYPES)}") from None
