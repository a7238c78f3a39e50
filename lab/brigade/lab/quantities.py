"""Rates as people write them (`80 Mbit/s`, `unlimited`), and how large the numbers of a scenario may be."""

import re
from typing import Annotated

from msgspec import Meta

from brigade.wire.errors import ConfigError

UNLIMITED = "unlimited"
RATE_PATTERN = r"^(unlimited|[0-9]+(\.[0-9]+)? ?(bit|kbit|Mbit|Gbit)/s)$"
RATE_DESCRIPTION = "a rate such as '80 Mbit/s', '1.5 Gbit/s' or 'unlimited'"

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(bit|kbit|Mbit|Gbit)/s")
_BITS = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
LEAST_RATE, MOST_RATE = 1.0, 1e15  # bits a second; beyond are slips of the pen, and times that no float holds

MOST_S = 100_000_000  # three years; of an experiment
MOST_MS = 60_000  # a minute; under way, or before an uplink
MOST_SEED = 10**15  # what every reader of JSON holds exactly
Seconds = Annotated[float, Meta(ge=0.0, le=MOST_S)]
SomeSeconds = Annotated[float, Meta(gt=0.0, le=MOST_S)]
Milliseconds = Annotated[float, Meta(ge=0.0, le=MOST_MS)]
SomeMilliseconds = Annotated[float, Meta(gt=0.0, le=MOST_MS)]
Seed = Annotated[int, Meta(ge=0, le=MOST_SEED)]


def parse_rate(text: str) -> float | None:
    """Return bytes a second; None for `unlimited`. Raises ConfigError for anything else, and for no rate at all."""
    if text == UNLIMITED:
        return None
    match = _RATE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text[:40]!r} is not {RATE_DESCRIPTION}")
    bits_per_s = float(match[1]) * _BITS[match[2]]
    if not bits_per_s:
        raise ConfigError(f"{text!r}: nothing passes at this rate; cut the link with an event instead")
    if not LEAST_RATE <= bits_per_s <= MOST_RATE:
        raise ConfigError(f"{text[:40]!r} is out of range; expected 1 bit/s to 1000000 Gbit/s")
    return bits_per_s / 8


def show_rate(bytes_per_s: float | None) -> str:
    """Return a rate as `parse_rate` reads it, to three digits."""
    if bytes_per_s is None:
        return UNLIMITED
    bits = bytes_per_s * 8
    unit = next((unit for unit in ("Gbit", "Mbit", "kbit") if bits >= _BITS[unit] * 0.9995), "bit")
    return f"{float(f'{bits / _BITS[unit]:.3g}'):g} {unit}/s"
