"""What sets the pace of a run, in one sentence: its busiest device or line, or what keeps even that one waiting.

A bound names the busiest server whatever it does; but where steps end with a flush, links are long or microbatches few,
all servers wait most of the time, and the honest answer is another. Closed forms only (`closed_forms`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from brigade.partition.closed_forms import capacity, passage_s, period_s, plain_warm_ups
from brigade.partition.line import Line, Server

NEARLY_ALWAYS = 0.8  # a server that is busy for this share of the time sets the pace by itself
FELT = 0.1  # a share of the way through all stages from which on latency is worth a word
ALIKE = 1.5  # links whose latencies differ by no more are told by their mean
MEANINGLESS_S = 0.0005  # a latency below half a millisecond is told as none

Cause = Literal["server", "flush", "order", "norm round", "optimizer", "encoding", "evaluation", "recovery", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a run did, in seconds of a mean step. What is not known is 0 and goes into what remains."""

    step_s: float  # from one update to the next, everything included
    microbatches: int
    schedule: str
    norm_round_s: float = 0.0  # from the last stage's norm until its update begins
    evaluation_s: float = 0.0  # held-out data, its part of a step
    recovery_s: float = 0.0  # while no plan was at work, its part of a step
    overlapping: bool = False  # a step begins before the one before it has ended


@dataclass(frozen=True, slots=True)
class Limit:
    """What sets the pace. `busiest` works for the share `busy` of the time; `losses` are seconds of a mean step."""

    cause: Cause
    busiest: Server
    busy: float
    losses: dict[Cause, float]
    what: str  # for a person
    text: str  # the same as a sentence, behind "limited by "


def find_limit(line: Line, pace: Pace, name: Callable[[Server], str], share: float | None = None) -> Limit | None:
    """Return what limits a run with these stages and links; None before anything was done.

    `name` tells what a person calls a server. `share` is what the run reached of what the fleet can do, if that is
    known better than from its busiest server.
    """
    best = capacity(_without_codec(line))
    ideal_s = best.period_s * pace.microbatches
    if ideal_s <= 0 or pace.step_s <= 0:
        return None
    busy = min(1.0, ideal_s / pace.step_s)
    losses = _losses(line, pace)
    cause = max(losses, key=lambda each: losses[each]) if busy < NEARLY_ALWAYS else "server"
    what = name(best.limited_by) if cause == "server" else _explain(cause, line, pace)
    text = f"{what}: {min(1.0, busy if share is None else share):.0%} of what this fleet can do"
    if cause != "server":
        text += f"; the busiest, {name(best.limited_by)}, works {busy:.0%} of the time"
    return Limit(cause, best.limited_by, busy, losses, what, text)


def _without_codec(line: Line) -> Line:
    return replace(line, stages=tuple(replace(stage, encode_s=0.0, decode_s=0.0) for stage in line.stages))


def _losses(line: Line, pace: Pace) -> dict[Cause, float]:
    """Return the seconds of a step by which everything but the busiest device or line prolongs it."""
    bare = _without_codec(line)
    best_s = capacity(bare).period_s
    losses: dict[Cause, float] = {
        "flush": 0.0 if pace.overlapping else passage_s(bare) - best_s,
        "order": (pace.microbatches - 1) * (_period_s(bare, pace) - best_s),
        "encoding": passage_s(line)
        - passage_s(bare)
        + (pace.microbatches - 1) * (_period_s(line, pace) - _period_s(bare, pace)),
        "norm round": pace.norm_round_s,
        "optimizer": max(stage.optimizer_s for stage in line.stages),
        "evaluation": pace.evaluation_s,
        "recovery": pace.recovery_s,
    }
    losses = {cause: max(0.0, seconds) for cause, seconds in losses.items()}
    known_s = best_s * pace.microbatches + sum(losses.values())
    return losses | {"other": max(0.0, pace.step_s - known_s)}


def _period_s(line: Line, pace: Pace) -> float:
    """Return the period within a step: longer than the busiest server's where 1F1B has too few in flight for its links.

    With fewer microbatches than stages most stages have all of them in flight, as with GPipe they always have.
    """
    stages = len(line.stages)
    if pace.schedule != "1f1b" or pace.microbatches < stages:
        return capacity(line).period_s
    return period_s(line, plain_warm_ups(stages))


def _explain(cause: Cause, line: Line, pace: Pace) -> str:
    stages = len(line.stages)
    match cause:
        case "flush" if pace.microbatches == 1:
            return "the flush at the end of each step: a single microbatch keeps one stage busy at a time"
        case "flush":
            count = pace.microbatches
            return (
                f"the flush at the end of each step: {count} microbatches are too few for {stages} stages{_apart(line)}"
            )
        case "order":
            apart = _apart(line)
            return f"the order {pace.schedule}: too few microbatches in flight{' for stages' if apart else ''}{apart}"
        case "norm round" if pace.overlapping:
            return (
                f"the wait for updates of earlier steps: {pace.microbatches} microbatches a step are too few to hide"
                f" the way through {stages} stages{_apart(line)} and the norm round"
            )
        case "norm round":
            return f"the norm round at the end of each step, {_milliseconds(pace.norm_round_s)}"
        case "optimizer":
            return "the optimizer, for which all microbatches wait"
        case "encoding":
            return "encoding and decoding what the links carry"
        case "evaluation":
            return "held-out data: training waits for its loss"
        case "recovery":
            return f"recoveries: no plan was at work for {pace.recovery_s / pace.step_s:.0%} of the time"
        case _:
            return "waits that neither devices nor links explain: other programs on the machines, or a slower line"


def _apart(line: Line) -> str:
    """Say how long the links are where that makes a difference."""
    ways_s = [hop.round_trip_s / 2 for hop in line.hops]
    if not ways_s or 2 * sum(ways_s) < FELT * passage_s(line) or max(ways_s) < MEANINGLESS_S:
        return ""
    if max(ways_s) <= ALIKE * min(ways_s):
        return f" {_milliseconds(sum(ways_s) / len(ways_s))} apart"
    return f" up to {_milliseconds(max(ways_s))} apart"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
