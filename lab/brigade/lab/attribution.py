"""Where the time of stages and links went, from the timelines of all nodes of one machine, which share one clock.

Every second of a stage's device is either an action or a wait. A wait ends with an action whose input was missing; it
is divided by following that input from where it was made: until its producer had computed it, the stage was starved;
while it was encoded, decoded or lay on a line, it waited for that. So the parts add up to the wall time.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from brigade.lab.plan_times import Lane, PlanTime, plan_times
from brigade.node.timeline import Action, Kind, StageLife

PARTS = (
    "forward_s",
    "backward_s",
    "optimizer_s",
    "evaluation_s",
    "starved_s",
    "blocked_s",
    "gated_s",
    "encoding_s",
    "sending_s",
    "overhead_s",
    "recovery_s",
)
PART_OF_KIND = {
    "forward": "forward_s",
    "backward": "backward_s",
    "sum": "optimizer_s",
    "optimizer": "optimizer_s",
    "evaluate": "evaluation_s",
    "snapshot": "overhead_s",
}
ENCODING: tuple[Kind, ...] = ("encode_activation", "encode_gradient")
DECODING: tuple[Kind, ...] = ("decode_activation", "decode_gradient")

Route = tuple[int, int]  # from stage, to stage
RateOf = Callable[[str, str], float]  # bytes a second of the narrowest line from one node to another, by names


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Where the seconds of a stage went: `parts` has all PARTS, and they add up to `wall_s`.

    `covered` is the share of the stage's time of which a timeline tells; the rest is not in `wall_s`.
    """

    stage: int
    node: str  # that held it last
    wall_s: float
    covered: float
    parts: Mapping[str, float]
    encode_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """What passed from a stage to a neighbour: payload, and seconds summed over values.

    `sending_s` from being handed over until whole; `waiting_s` of the receiving device for that; `line_s` of the
    narrowest line on the way, 0 where none is known.
    """

    sender: int
    receiver: int
    bytes: int
    sending_s: float
    waiting_s: float
    line_s: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """A whole run, from the begin of training to the last update."""

    seconds: float
    steps: int  # updates, also those that a recovery made worthless
    norm_round_s: float  # of a mean step: from the last stage's norm until its update begins
    evaluation_s: float  # in which held-out data came between an update and the next step
    recovery_s: float  # in which no stage had a plan that went on
    stages: tuple[StageTimes, ...]
    links: tuple[LinkTimes, ...]


def attribute(lives: Sequence[StageLife], rate_of: RateOf = lambda _, __: math.inf) -> Attribution | None:
    """Divide the time of every stage and link; None when no update was made.

    Stages are counted by their place in the line, over all plans; between two plans all of them recover.
    """
    plans = plan_times(lives)
    if not plans:
        return None
    count = plans[-1].stages
    pauses_s = math.fsum(max(0.0, later.begin_s - earlier.end_s) for earlier, later in pairwise(plans))
    waiting: defaultdict[Route, float] = defaultdict(float)
    stages = tuple(_stage_times(stage, plans, pauses_s, waiting) for stage in range(count))
    routes = [route for k in range(count - 1) for route in ((k, k + 1), (k + 1, k))]
    return Attribution(
        seconds=plans[-1].end_s - plans[0].begin_s,
        steps=len({(plan.generation, each.step) for plan in plans for each in _updates(plan)}),
        norm_round_s=_norm_round_s(plans),
        evaluation_s=math.fsum(_evaluation_s(plan) for plan in plans),
        recovery_s=min(stage.parts["recovery_s"] for stage in stages),
        stages=stages,
        links=tuple(_link_times(route, plans, waiting[route], rate_of) for route in routes),
    )


# --- stages -------------------------------------------------------------------------------------------------------


def _stage_times(
    stage: int, plans: Sequence[PlanTime], pauses_s: float, waiting: defaultdict[Route, float]
) -> StageTimes:
    parts = dict.fromkeys(PARTS, 0.0)
    parts["recovery_s"] = pauses_s
    node, unknown_s, encode_s, decode_s = "", 0.0, 0.0, 0.0
    for plan in plans:
        lane = plan.lanes.get(stage)
        if lane is None:
            unknown_s += plan.seconds if stage < plan.stages else 0.0
            continue
        node = lane.node
        unknown_s += lane.start_s - plan.begin_s
        for part, seconds, route in _spans(plan, lane):
            parts[part] += seconds
            if part == "sending_s" and route is not None:
                waiting[route] += seconds
        encode_s += _total(plan, stage, ENCODING)
        decode_s += _total(plan, stage, DECODING)
    wall_s = math.fsum(parts.values())
    covered = wall_s / (wall_s + unknown_s) if wall_s + unknown_s > 0 else 0.0
    return StageTimes(stage, node, wall_s, covered, parts, encode_s, decode_s)


def _spans(plan: PlanTime, lane: Lane) -> Iterator[tuple[str, float, Route | None]]:
    """Yield parts with their seconds, and the link where one was waited for; they fill the lane without a gap."""
    forwards = _forwards_to_come(lane.compute)
    free_s, before = lane.start_s, None
    for position, action in enumerate(lane.compute):
        begin_s, end_s = (min(max(free_s, moment), lane.end_s) for moment in (action.begin_s, action.end_s))
        if begin_s > free_s:
            yield from _wait(plan, lane, before, action, forwards[position], free_s, begin_s)
        if end_s > begin_s:
            yield PART_OF_KIND[action.kind], end_s - begin_s, None
        free_s, before = max(begin_s, end_s), action
    if lane.end_s > free_s:
        yield ("gated_s" if plan.is_last else "recovery_s"), lane.end_s - free_s, None


def _forwards_to_come(actions: Sequence[Action]) -> list[Action | None]:
    """Return for each action the next forward of its step behind it, which the order keeps back meanwhile."""
    found: list[Action | None] = []
    following: Action | None = None
    for action in reversed(actions):
        same_step = following is not None and following.step == action.step
        found.append(following if same_step else None)
        if action.kind == "forward":
            following = action
    return found[::-1]


def _wait(
    plan: PlanTime,
    lane: Lane,
    before: Action | None,
    action: Action,
    kept_back: Action | None,
    from_s: float,
    to_s: float,
) -> Iterator[tuple[str, float, Route | None]]:
    """Divide the wait before an action."""
    match action.kind:
        case "sum" | "optimizer":
            yield "gated_s", to_s - from_s, None
            return
        case "forward" | "evaluate" if lane.stage > 0 and action.index >= 0:
            route = (lane.stage - 1, lane.stage)
        case "backward" if lane.stage < plan.stages - 1:
            route = (lane.stage + 1, lane.stage)
        case "forward" if before is None or before.step != action.step:
            yield "gated_s", to_s - from_s, None
            return
        case _:
            yield "overhead_s", to_s - from_s, None
            return
    phases = _journey(plan, route, action)
    ready_s = phases[-1][1]
    blocked_s = min(to_s, max(from_s, _ready_s(plan, lane, kept_back))) if action.kind == "backward" else to_s
    now_s = from_s
    for part, until_s in phases:
        end_s = min(max(now_s, until_s), blocked_s)
        if end_s > now_s:
            yield part, end_s - now_s, route
            now_s = end_s
    end_s = min(to_s, max(now_s, ready_s))
    if end_s > now_s:
        yield "blocked_s", end_s - now_s, None
        now_s = end_s
    if to_s > now_s:
        yield "overhead_s", to_s - now_s, None


def _journey(plan: PlanTime, route: Route, action: Action) -> list[tuple[str, float]]:
    """Return what happened to an action's input, in order, each with its end; what is not known took no time.

    Where the producer's timeline lacks it, everything until the arrival is `starved`.
    """
    sender, receiver = route
    forwards = receiver > sender
    made: Kind = "evaluate" if action.evaluation else "forward" if forwards else "backward"
    produced = plan.find(sender, made, action)
    encoded = plan.find(sender, "encode_activation" if forwards else "encode_gradient", action)
    sent = plan.find(sender, "sent_activation" if forwards else "sent_gradient", action)
    arrived = plan.find(receiver, "arrived_activation" if forwards else "arrived_gradient", action)
    decoded = plan.find(receiver, "decode_activation" if forwards else "decode_gradient", action)
    ready_s = decoded.end_s if decoded else arrived.end_s if arrived else action.begin_s
    arrived_s = arrived.end_s if arrived else decoded.begin_s if decoded else ready_s
    sent_s = sent.begin_s if sent else encoded.end_s if encoded else arrived_s
    made_s = produced.end_s if produced else encoded.begin_s if encoded else sent_s
    return [("starved_s", made_s), ("encoding_s", sent_s), ("sending_s", arrived_s), ("encoding_s", ready_s)]


def _ready_s(plan: PlanTime, lane: Lane, forward: Action | None) -> float:
    """Return when a forward that the order keeps back could have begun; never where there is none."""
    if forward is None:
        return math.inf
    if lane.stage == 0:
        return -math.inf
    decoded = plan.find(lane.stage, "decode_activation", forward)
    return decoded.end_s if decoded else forward.begin_s


# --- links and steps ------------------------------------------------------------------------------------------------


def _link_times(route: Route, plans: Sequence[PlanTime], waiting_s: float, rate_of: RateOf) -> LinkTimes:
    sender, receiver = route
    way = "activation" if receiver > sender else "gradient"
    total, sending_s, line_s = 0, 0.0, 0.0
    for plan in plans:
        near, far = plan.lanes.get(sender), plan.lanes.get(receiver)
        passed = 0
        for (stage, kind, step, index, evaluation), action in plan.actions.items():
            if stage != receiver or kind != f"arrived_{way}" or action.end_s > plan.end_s:
                continue
            passed += action.bytes
            sent = plan.actions.get((sender, f"sent_{way}", step, index, evaluation))
            sending_s += max(0.0, action.end_s - sent.begin_s) if sent else 0.0
        total += passed
        if near is not None and far is not None:
            line_s += passed / rate_of(near.node, far.node)
    return LinkTimes(sender, receiver, total, sending_s, waiting_s, line_s)


def _total(plan: PlanTime, stage: int, kinds: tuple[Kind, ...]) -> float:
    return math.fsum(
        each.end_s - each.begin_s
        for (where, kind, *_), each in plan.actions.items()
        if where == stage and kind in kinds and each.end_s <= plan.end_s
    )


def _updates(plan: PlanTime) -> Iterator[Action]:
    for lane in plan.lanes.values():
        yield from (each for each in lane.compute if each.kind == "optimizer" and each.end_s <= plan.end_s)


def _evaluation_s(plan: PlanTime) -> float:
    """Return for how long the last held-out microbatches ended behind the last updates of their steps."""
    ends: dict[tuple[str, int], float] = {}
    for lane in plan.lanes.values():
        for each in lane.compute:
            if each.kind in ("optimizer", "evaluate") and each.end_s <= plan.end_s:
                ends[each.kind, each.step] = max(ends.get((each.kind, each.step), -math.inf), each.end_s)
    evaluated = {step: end_s for (kind, step), end_s in ends.items() if kind == "evaluate"}
    return math.fsum(max(0.0, end_s - ends.get(("optimizer", step), end_s)) for step, end_s in evaluated.items())


def _norm_round_s(plans: Sequence[PlanTime]) -> float:
    """Return the mean over steps of the shortest wait for the decision: that of the stage which was last."""
    shortest: dict[tuple[int, int], float] = {}
    for plan in plans:
        for lane in plan.lanes.values():
            for before, action in pairwise(lane.compute):
                if before.kind == "sum" and action.kind == "optimizer":
                    key = plan.generation, action.step
                    shortest[key] = min(shortest.get(key, math.inf), action.begin_s - before.end_s)
    return math.fsum(shortest.values()) / len(shortest) if shortest else 0.0
