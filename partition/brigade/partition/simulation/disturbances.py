"""What goes wrong in a simulated run: noise at every turn, and stalls and slowdowns at known times."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brigade.partition.line import Server
from brigade.wire.errors import PlanError

DRAWN_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Noise:
    """Random deviations, drawn anew for each microbatch; 0 is none.

    `compute_cv` and `transfer_cv` are coefficients of variation of lognormal factors of mean 1, `way_jitter_s` is the
    mean of an exponential delay on the way, `loss` the share of values that a lost packet holds up for `resend_s`.
    Values of one link never overtake each other.
    """

    compute_cv: float = 0.0
    transfer_cv: float = 0.0
    way_jitter_s: float = 0.0
    loss: float = 0.0
    resend_s: float = 0.2


QUIET = Noise()


@dataclass(frozen=True, slots=True)
class Stall:
    """A server does nothing for a while: a stage whose machine sleeps, a link that is cut."""

    server: Server
    at_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From now on a server takes `factor` times as long."""

    server: Server
    at_s: float
    factor: float


Disturbance = Stall | Slowdown


class Calendar:
    """How fast a server works at which time: speed 1, slower, or 0 while it stalls."""

    def __init__(self, disturbances: Sequence[Disturbance]) -> None:
        slowdowns = sorted((d.at_s, d.factor) for d in disturbances if isinstance(d, Slowdown))
        stalls = [(d.at_s, d.at_s + d.duration_s) for d in disturbances if isinstance(d, Stall)]
        if any(factor <= 0 for _, factor in slowdowns) or any(not 0 <= at < end < math.inf for at, end in stalls):
            raise PlanError("a slowdown has a positive factor, and a stall begins and ends")
        times = sorted({0.0, *(at for at, _ in slowdowns), *(time for stall in stalls for time in stall)})
        self._times = times
        self._speeds = [
            0.0
            if any(at <= time < end for at, end in stalls)
            else 1 / next((factor for at, factor in reversed(slowdowns) if at <= time), 1.0)
            for time in times
        ]

    def finish(self, start: float, work_s: float) -> float:
        """Return when work of so many seconds at full speed ends that starts at `start`; no work ends after a stall."""
        place = bisect_right(self._times, start) - 1
        now = start
        while True:
            speed = self._speeds[place]
            end = self._times[place + 1] if place + 1 < len(self._times) else math.inf
            if speed > 0 and now + work_s / speed <= end:
                return now + work_s / speed
            work_s -= (end - now) * speed
            now = end
            place += 1

    def work_between(self, start: float, end: float) -> float:
        """Return the seconds of work at full speed that fit in between."""
        return sum(length * speed for length, speed in self._pieces(start, end))

    def stalled_between(self, start: float, end: float) -> float:
        """Return the seconds in between without any work."""
        return sum(length for length, speed in self._pieces(start, end) if speed == 0)

    def _pieces(self, start: float, end: float) -> list[tuple[float, float]]:
        pieces = []
        for place, (time, speed) in enumerate(zip(self._times, self._speeds, strict=True)):
            following = self._times[place + 1] if place + 1 < len(self._times) else math.inf
            length = min(end, following) - max(start, time)
            if length > 0:
                pieces.append((length, speed))
        return pieces


def calendars(disturbances: Sequence[Disturbance]) -> dict[Server, Calendar]:
    """Return the calendar of each server that is disturbed at all."""
    servers = {disturbance.server for disturbance in disturbances}
    return {server: Calendar([d for d in disturbances if d.server == server]) for server in servers}


def factors(cv: float, count: int, seed: Sequence[int]) -> list[float] | None:
    """Return so many lognormal factors of mean 1; None where there is no noise. Equal seeds give equal factors."""
    if cv <= 0:
        return None
    spread = math.log(1 + cv * cv)
    drawn = np.random.default_rng(list(seed)).lognormal(-spread / 2, math.sqrt(spread), count)
    return [float(factor) for factor in drawn]


class WayNoise:
    """Deviations on one link, drawn in the order in which values are sent."""

    def __init__(self, noise: Noise, seed: Sequence[int]) -> None:
        self._noise = noise
        self._random = np.random.default_rng(list(seed))
        self._factors: list[float] = []
        self._delays: list[float] = []

    def draw(self) -> tuple[float, float]:
        """Return the factor on the line and the seconds that the next value takes longer on the way."""
        if not self._delays:
            self._refill()
        return self._factors.pop(), self._delays.pop()

    def _refill(self) -> None:
        noise, random = self._noise, self._random
        spread = math.log(1 + noise.transfer_cv**2)
        self._factors = random.lognormal(-spread / 2, math.sqrt(spread), DRAWN_AT_ONCE).tolist()
        held_up = (random.random(DRAWN_AT_ONCE) < noise.loss) * noise.resend_s
        self._delays = (random.exponential(1.0, DRAWN_AT_ONCE) * noise.way_jitter_s + held_up).tolist()
