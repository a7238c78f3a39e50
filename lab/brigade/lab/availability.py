"""Draws when nodes are there: volunteers one by one, preemptible machines in groups. A core, the same for a seed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from brigade.lab.availability_spec import Spot, TraceSpec, Volunteers
from brigade.wire.errors import ConfigError

MOST_DRAWS = 1_000_000  # of comings and goings: seconds, and 100 MB
WARM_UP_H = 7 * 24.0  # drawn before the beginning, which then finds sessions under way


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """A node is there from `start_s` until `end_s`; inf where the trace ends before it does."""

    node: str
    start_s: float
    end_s: float


def draw_periods(spec: TraceSpec, nodes: Sequence[str], seed: int) -> list[Period]:
    """Return the periods of these nodes in the experiment's time, by node and then in order.

    A node's periods depend on the seed and its name, with `spot` also on its zone; not on how many others there are.
    Raises ConfigError when more than `MOST_DRAWS` comings and goings would have to be drawn.
    """
    budget = Budget(MOST_DRAWS)
    if spec.generator == "spot":
        drawn = _spot(spec.spot, nodes, spec.hours, seed, budget)
    else:
        drawn = {node: list(_volunteer(spec.volunteers, spec, _chance(seed, node), budget)) for node in nodes}
    periods = []
    for node in nodes:
        scaled = [(start * 3600 / spec.compress, end * 3600 / spec.compress) for start, end in drawn[node]]
        periods += [Period(node, start, end) for start, end in _without_short(scaled, spec.shortest_s)]
    return periods


class Budget:
    """How much may still be drawn. Raises ConfigError when it is used up."""

    def __init__(self, draws: int) -> None:
        self._left = draws

    def take(self, draws: int = 1) -> None:
        """Take so many draws."""
        self._left -= draws
        if self._left < 0:
            raise ConfigError(
                f"trace: more than {MOST_DRAWS:,} comings and goings; expected fewer hosts or hours, or rarer ones"
            )


Hours = tuple[float, float]  # from, until


def _chance(seed: int, what: str) -> Random:
    return Random(f"{seed}/{what}")  # noqa: S311 - nothing secret is drawn


def _volunteer(model: Volunteers, spec: TraceSpec, chance: Random, budget: Budget) -> Iterator[Hours]:
    """Yield when one volunteer is there, cut to what is asked for."""
    now, there = -WARM_UP_H, chance.random() < 0.5
    while now < spec.hours:
        budget.take()
        if there:
            end = now + chance.weibullvariate(model.session_scale_h, model.session_shape)
            yield from _cut(now, end, spec.hours)
            now = end
        else:
            now += chance.lognormvariate(model.absence_log_mean, model.absence_log_sigma)
            while chance.random() < model.diurnal * _quietness(spec.start_hour + now, model.busiest_hour):
                budget.take()
                now += chance.expovariate(1.0)  # looks again in about an hour
        there = not there


def _quietness(hour: float, busiest_hour: float) -> float:
    """Return 0 at the busiest hour of the day, 1 twelve hours away from it."""
    return (1 - math.cos(2 * math.pi * (hour - busiest_hour) / 24)) / 2


def _spot(model: Spot, nodes: Sequence[str], hours: float, seed: int, budget: Budget) -> Mapping[str, list[Hours]]:
    """Return when each machine is there: all at the beginning, then a share of a zone's goes at a time."""
    periods: dict[str, list[Hours]] = {node: [] for node in nodes}
    for zone in range(min(model.zones, len(nodes))):
        chance = _chance(seed, f"zone {zone}")
        machines = {node: _chance(seed, node) for node in nodes[zone :: model.zones]}
        since = dict.fromkeys(machines, 0.0)  # when there; when it will be, while it is gone
        now = 0.0
        while (now := now + chance.expovariate(model.preemptions_per_h)) < hours:
            budget.take(len(machines))
            for node, own in machines.items():
                if since[node] <= now and own.random() < model.share:
                    periods[node] += _cut(since[node], now, hours)
                    since[node] = now + own.lognormvariate(model.replaced_log_mean, model.replaced_log_sigma)
        for node in machines:
            periods[node] += _cut(since[node], math.inf, hours)
    return periods


def _cut(start: float, end: float, hours: float) -> list[Hours]:
    """Return the part of a period from 0 on; it has no end if that lies beyond `hours`."""
    if end <= 0 or start >= hours or end <= start:
        return []
    return [(max(start, 0.0), end if end < hours else math.inf)]


def _without_short(periods: Sequence[Hours], shortest_s: float) -> list[Hours]:
    """Join what a short absence parts, then leave out what is short."""
    if not periods:
        return []
    gaps = [index for index, (one, two) in enumerate(pairwise(periods), start=1) if two[0] - one[1] >= shortest_s]
    joined = [(periods[a][0], periods[b - 1][1]) for a, b in pairwise([0, *gaps, len(periods)])]
    return [(start, end) for start, end in joined if end - start >= shortest_s]
