"""What sets the pace of a run, in one sentence: its busiest device or line, or what keeps even that one waiting.

A bound names the busiest server whatever it does; but where steps end with a flush, links are long or microbatches few,
all servers wait most of the time, and the honest answer is another: the cause without which a step would be shortest.
Closed forms only (`closed_forms`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from brigade.partition.closed_forms import capacity, passage_s, period_s, plain_warm_ups
from brigade.partition.line import Line, Server

NEARLY_ALWAYS = 0.8  # a server that is busy for this share of the time sets the pace by itself
FELT = 0.1  # a share of the way through all stages from which on latency is worth a word
ALIKE = 1.5  # links whose latencies differ by no more are told by their mean
MEANINGLESS_S = 0.0005  # a latency below half a millisecond is told as none

MORE_TIMES = 4  # endlessly many microbatches would end some losses, but nobody can have them; so many times as many can
MORE = "more `microbatches` in a larger `batch_size` would help most"

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
    warm_ups: tuple[int, ...] = ()  # by stage, where the plan has its own


@dataclass(frozen=True, slots=True)
class Limit:
    """What sets the pace. `busiest` works for the share `busy` of the time.

    `losses` are the seconds by which a mean step would be shorter with what can be done about a cause alone; they do
    not add up.
    """

    cause: Cause
    busiest: Server
    busy: float
    losses: dict[Cause, float]
    what: str  # for a person
    text: str  # the same as a sentence, behind "limited by "


def find_limit(line: Line, pace: Pace, name: Callable[[Server], str], share: float | None = None) -> Limit | None:
    """Return what limits a run with these stages and links; None before anything was done.

    `name` tells what a person calls a server. `share` is what the run reached of what these stages and links can do, if
    that is known better than from how long the busiest of them works.
    """
    best = capacity(_without_codec(line))
    ideal_s = best.period_s * pace.microbatches
    if ideal_s <= 0 or pace.step_s <= 0:
        return None
    busy = min(1.0, ideal_s / pace.step_s)
    losses = _losses(line, pace)
    cause = max(losses, key=lambda each: losses[each]) if busy < NEARLY_ALWAYS else "server"
    what = name(best.limited_by) if cause == "server" else _explain(cause, line, pace)
    text = f"{what}: {min(1.0, busy if share is None else share):.0%} of what these stages can do"
    if cause != "server":
        text += f", of which the busiest is {name(best.limited_by)}"
    return Limit(cause, best.limited_by, busy, losses, what, text)


def _without_codec(line: Line) -> Line:
    return replace(line, stages=tuple(replace(stage, encode_s=0.0, decode_s=0.0) for stage in line.stages))


def _losses(line: Line, pace: Pace) -> dict[Cause, float]:
    """Return the seconds by which a step would be shorter without each cause, all others as they are.

    Without the order everything is in flight, and only the busiest server and the flush are left (R_0 + (m - 1) T*).
    Without the flush each microbatch takes the period of the order (m T(w)). The flush and what else happens once a
    step are shared by `MORE_TIMES` as many microbatches, and so much of them is saved.
    """
    saved = 1 - 1 / MORE_TIMES
    bare = _without_codec(line)
    period, step_s = _period_s(line, pace), _flow_s(line, pace)
    optimizer_s = max(stage.optimizer_s for stage in line.stages)
    losses: dict[Cause, float] = {
        "flush": saved * (step_s - pace.microbatches * period),
        "order": (pace.microbatches - 1) * (period - capacity(line).period_s),
        "encoding": step_s - _flow_s(bare, pace),
        "norm round": saved * pace.norm_round_s,
        "optimizer": saved * optimizer_s,
        "evaluation": pace.evaluation_s,
        "recovery": pace.recovery_s,
    }
    losses = {cause: max(0.0, seconds) for cause, seconds in losses.items()}
    once_s = pace.norm_round_s + optimizer_s + pace.evaluation_s + pace.recovery_s
    return losses | {"other": max(0.0, pace.step_s - step_s - once_s)}


def _flow_s(line: Line, pace: Pace) -> float:
    """Return how long the microbatches of a step take, without what happens once a step."""
    period = _period_s(line, pace)
    return pace.microbatches * period if pace.overlapping else passage_s(line) + (pace.microbatches - 1) * period


def _period_s(line: Line, pace: Pace) -> float:
    """Return the period within a step: longer than the busiest server's where too few are in flight for the links.

    With fewer microbatches than stages most stages of 1F1B have all of them in flight, as with GPipe they always have.
    """
    stages = len(line.stages)
    warm_ups = pace.warm_ups or plain_warm_ups(stages)
    if pace.schedule == "gpipe" or pace.microbatches < stages or len(warm_ups) != stages:
        return capacity(line).period_s
    period = period_s(line, warm_ups)
    return period if math.isfinite(period) else capacity(line).period_s


def _explain(cause: Cause, line: Line, pace: Pace) -> str:
    stages, apart = len(line.stages), _apart(line)
    match cause:
        case "flush" if pace.microbatches == 1:
            return f"the flush at the end of each step: a single microbatch keeps one stage busy at a time ({MORE})"
        case "flush":
            few = f"{pace.microbatches} microbatches are too few for {stages} stages{apart}"
            return f"the flush at the end of each step: {few} ({MORE})"
        case "order":
            few = f"too few microbatches in flight{' for stages' if apart else ''}{apart}"
            return f"the order {pace.schedule}: {few}{_other_orders(pace)}"
        case "norm round" if pace.overlapping:
            return (
                f"the wait for updates of earlier steps: {pace.microbatches} microbatches a step are too few to hide"
                f" the way through {stages} stages{apart} and the norm round ({MORE})"
            )
        case "norm round":
            return f"the norm round at the end of each step, {_milliseconds(pace.norm_round_s)} ({MORE})"
        case "optimizer":
            return f"the optimizer, for which all microbatches wait ({MORE})"
        case "encoding":
            return "encoding and decoding what the links carry (a lighter codec in `[compression]` would help most)"
        case "evaluation":
            return "held-out data: training waits for its loss (larger `eval_steps` would help most)"
        case "recovery":
            return f"recoveries: no plan was at work for {pace.recovery_s / pace.step_s:.0%} of the time"
        case _:
            return "waits that neither devices nor links explain: other programs on the machines, or a slower line"


def _other_orders(pace: Pace) -> str:
    """Name the orders that have more in flight; with steps that overlap there is no other."""
    if pace.overlapping:
        return ""
    others = '`schedule = "gpipe"`' if pace.schedule == "ls-1f1b" else '`schedule = "ls-1f1b"` or `"gpipe"`'
    return f" ({others} would help most)"


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
