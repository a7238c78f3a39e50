"""How many microbatches a stage keeps in flight, sized by what stages and links take.

The warm-ups are those with which strict alternation would reach a somewhat shorter period than the line allows, and a
little slack comes on top: then late values cost next to nothing (`policy`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brigade.partition.closed_forms import capacity, minimal_warm_ups, passage_s
from brigade.partition.line import Line

FAR_S = 0.010  # a hop there and back from which on times vary as they do on the internet
NEAR_SHARE, NEAR_SLACK = 0.9, 1
FAR_SHARE, FAR_SLACK = 0.8, 2


@dataclass(frozen=True, slots=True)
class Sizing:
    """Warm-ups by stage, and how many more microbatches may be in flight when something is late."""

    warm_ups: tuple[int, ...]
    slack: int

    @property
    def caps(self) -> tuple[int, ...]:
        """Return the most microbatches in flight, by stage."""
        return tuple(warm_up + 1 + self.slack for warm_up in self.warm_ups)


def size_in_flight(line: Line, most_in_flight: Sequence[int], most_warm_up: int) -> Sizing:
    """Return warm-ups and slack for a line, with at most so many in flight by stage and no longer warm-up than that.

    A stage has never more in flight than the one before it.
    """
    far = max((hop.round_trip_s for hop in line.hops), default=0.0) >= FAR_S
    share, slack = (FAR_SHARE, FAR_SLACK) if far else (NEAR_SHARE, NEAR_SLACK)
    slack = max(0, min(slack, *(most - 1 for most in most_in_flight)))
    period_s = capacity(line).period_s
    wanted = minimal_warm_ups(line, share * period_s) if period_s > 0 else (0,) * len(line.stages)
    warm_ups: list[int] = []
    for warm_up, most in zip(wanted, most_in_flight, strict=True):
        warm_ups.append(max(0, min(warm_up, most - 1 - slack, most_warm_up, *warm_ups[-1:])))
    return Sizing(tuple(warm_ups), slack)


def ceaseless_period_s(line: Line, sizing: Sizing, per_update: int, versions: int, round_s: float) -> float:
    """Return about how long a microbatch takes where steps overlap.

    The line's own period, unless too little is in flight: a microbatch takes R_0, and with V versions the first of
    step g + V - 1 waits until R_0 and the round after the last of step g - 1 have passed (A gate of 2BW).
    """
    passing_s = passage_s(line)
    gated_s = (passing_s + round_s) / ((versions - 1) * per_update + 1)
    return max(capacity(line).period_s, passing_s / sizing.caps[0], gated_s)


def enough_per_update(line: Line, versions: int, round_s: float) -> int:
    """Return the microbatches a step from which on the gate holds nobody up."""
    waiting = (passage_s(line) + round_s) / capacity(line).period_s - 1
    return max(1, math.ceil(waiting / (versions - 1) - 1e-9))


def enough_versions(line: Line, per_update: int, round_s: float) -> int:
    """Return the versions from which on the gate holds nobody up."""
    waiting = (passage_s(line) + round_s) / capacity(line).period_s - 1
    return 1 + max(1, math.ceil(waiting / per_update - 1e-9))
