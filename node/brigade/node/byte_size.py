"""Amounts of memory as people write them: `4GiB`, `500 MB`, `1073741824`."""

import re

from brigade.wire.errors import ConfigError

UNIT_BYTES: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}

MOST_BYTES = 2**50


def parse_byte_size(text: str, option: str = "") -> int:
    """Return the number of bytes; GiB and G count 1024s, GB counts 1000s; case does not matter.

    Raises ConfigError, which names the option.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = UNIT_BYTES.get(match[2].lower()) if match else None
    where = f"{option}: " if option else ""
    if match is None or factor is None:
        raise ConfigError(f"{where}{text[:60]!r} is not an amount of memory; write it like 4GiB, 500MB or 1073741824")
    size = float(match[1]) * factor
    if size > MOST_BYTES:
        raise ConfigError(f"{where}{text[:60]!r} is out of range; expected at most 1024 TiB")
    return round(size)
