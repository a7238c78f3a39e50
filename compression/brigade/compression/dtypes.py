"""The tensor kinds that a link carries: name, bytes and nature of an element. No torch.

Names and bytes are those of the protocol, which are those of torch.
"""

from dataclasses import dataclass
from typing import Literal

from brigade.wire.errors import ConfigError
from brigade.wire.validity import ITEM_BYTES

Kind = Literal["float", "complex", "integer", "bool"]


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """One kind of element."""

    name: str
    item_bytes: int
    kind: Kind


def _kind(name: str) -> Kind:
    if name == "bool":
        return "bool"
    if name.startswith("complex"):
        return "complex"
    return "float" if name.startswith(("float", "bfloat")) else "integer"


DTYPES: dict[str, DtypeInfo] = {
    name: DtypeInfo(name, item_bytes, _kind(name)) for name, item_bytes in ITEM_BYTES.items()
}


def describe_dtype(name: str) -> DtypeInfo:
    """Return what is known about the dtype called `name`; ConfigError when no codec carries it."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ConfigError(f"no codec carries tensors of dtype {name}; carried are {', '.join(DTYPES)}") from None
