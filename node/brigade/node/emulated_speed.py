"""How fast a node pretends to be, for experiments with many nodes on one machine."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from brigade.wire.errors import ConfigError

_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?) ?(x|s/GFLOP)")
FROM_FILE = "@"
LEAST_SPEED, MOST_SPEED = 1e-12, 1e12  # beyond, times are no longer finite numbers


@dataclass(frozen=True, slots=True)
class EmulatedSpeed:
    """Either a factor on the seconds that this machine's processor computes, or seconds per 10^9 operations."""

    factor: float = 0.0
    s_per_gflop: float = 0.0

    def seconds(self, here_s: float, gflop: float) -> float:
        """Return what the pretended device would need for what took `here_s` of processor time here."""
        return self.factor * here_s if self.factor else self.s_per_gflop * gflop

    def slowed(self, times: float) -> "EmulatedSpeed":
        """Return a device that is so many times slower."""
        return EmulatedSpeed(self.factor * times, self.s_per_gflop * times)

    def text(self) -> str:
        """Return what `parse_speed` reads."""
        return f"{self.factor!r}x" if self.factor else f"{self.s_per_gflop!r} s/GFLOP"


def parse_speed(text: str) -> EmulatedSpeed:
    """Return the speed that `2x` (twice as slow as here) or `0.05 s/GFLOP` describes; ConfigError for anything else."""
    match = _SPEED.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{text[:60]!r} is no speed; write it like '2x' (twice as slow as here) or '0.05 s/GFLOP'")
    value = float(match[1])
    if not LEAST_SPEED <= value <= MOST_SPEED:
        raise ConfigError(f"{text[:60]!r} is out of range; expected {LEAST_SPEED:g} to {MOST_SPEED:g}")
    return EmulatedSpeed(factor=value) if match[2] == "x" else EmulatedSpeed(s_per_gflop=value)


class SpeedSource:
    """The speed now: fixed, or with `@FILE` what stands in a file, which may change while the node computes."""

    def __init__(self, text: str) -> None:
        self._path = Path(text.removeprefix(FROM_FILE)) if text.startswith(FROM_FILE) else None
        self._speed = self._read() if self._path else parse_speed(text)

    def now(self) -> EmulatedSpeed:
        """Return the speed; the last one that was sound when the file is just being written."""
        if self._path is not None:
            with suppress(ConfigError):
                self._speed = self._read()
        return self._speed

    def _read(self) -> EmulatedSpeed:
        assert self._path is not None
        try:
            return parse_speed(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from error
