"""Rates as people write them: `80 Mbit/s`, `1.5 Gbit/s`, `unlimited`."""

import re

from brigade.wire.errors import ConfigError

UNLIMITED = "unlimited"
RATE_PATTERN = r"^(unlimited|[0-9]+(\.[0-9]+)? ?(bit|kbit|Mbit|Gbit)/s)$"
RATE_DESCRIPTION = "a rate such as '80 Mbit/s', '1.5 Gbit/s' or 'unlimited'"

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(bit|kbit|Mbit|Gbit)/s")
_BITS = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}


def parse_rate(text: str) -> float | None:
    """Return bytes a second; None for `unlimited`. Raises ConfigError for anything else, and for no rate at all."""
    if text == UNLIMITED:
        return None
    match = _RATE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text[:40]!r} is not {RATE_DESCRIPTION}")
    bytes_per_s = float(match[1]) * _BITS[match[2]] / 8
    if not bytes_per_s:
        raise ConfigError(f"{text!r}: nothing passes at this rate; cut the link with an event instead")
    return bytes_per_s


def show_rate(bytes_per_s: float | None) -> str:
    """Return a rate as `parse_rate` reads it, to three digits."""
    if bytes_per_s is None:
        return UNLIMITED
    bits = bytes_per_s * 8
    unit = next((unit for unit in ("Gbit", "Mbit", "kbit") if bits >= _BITS[unit] * 0.9995), "bit")
    return f"{float(f'{bits / _BITS[unit]:.3g}'):g} {unit}/s"
