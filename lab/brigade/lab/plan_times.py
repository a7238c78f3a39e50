"""Puts the timelines of all nodes together: which plan was at work from when to when, and what its stages did."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from brigade.node.timeline import COMPUTE_KINDS, Action, Kind, StageLife

Key = tuple[int, str, int, int, bool]  # stage, kind, step, index, evaluation


@dataclass(slots=True)
class Lane:
    """The device of one stage: what it computed, in order, from when on that is known, until when it counts."""

    stage: int
    node: str
    start_s: float
    end_s: float
    compute: list[Action]


@dataclass(slots=True)
class PlanTime:
    """One plan at work from `begin_s` to `end_s`; `lanes` of the stages whose timeline is there."""

    generation: int
    stages: int
    begin_s: float
    end_s: float
    lanes: dict[int, Lane]
    actions: dict[Key, Action] = field(default_factory=dict)
    is_last: bool = False  # no plan came after it

    @property
    def seconds(self) -> float:
        """How long it was at work."""
        return self.end_s - self.begin_s

    def find(self, stage: int, kind: Kind, of: Action) -> Action | None:
        """Return what another stage, or this one, did with the microbatch of an action."""
        return self.actions.get((stage, kind, of.step, of.index, of.evaluation))


def plan_times(lives: Sequence[StageLife]) -> list[PlanTime]:
    """Return the plans that trained, oldest first, within the time from the first step's begin to the last update.

    A plan ends when the first of its nodes drops it. What was computed after the last update (a held-out loss at the
    very end) does not count.
    """
    by_generation: dict[int, dict[int, StageLife]] = {}
    for life in lives:
        known = by_generation.setdefault(life.began.generation, {})
        before = known.get(life.began.stage)
        if before is None or len(before.actions) < len(life.actions):
            known[life.began.stage] = life
    last_s = max((a.end_s for life in lives for a in life.actions if a.kind == "optimizer"), default=None)
    if last_s is None:
        return []
    plans: list[PlanTime] = []
    for generation in sorted(by_generation):
        plan = _plan(generation, by_generation[generation])
        if plan is None:
            continue
        _clip(plan, plans[-1].end_s if plans else -math.inf, last_s)
        if plan.seconds > 0:
            plans.append(plan)
    if plans:
        plans[-1].is_last = True
    return plans


def _plan(generation: int, lives: dict[int, StageLife]) -> PlanTime | None:
    computed = {stage: sorted(_computed(life), key=lambda each: each.begin_s) for stage, life in lives.items()}
    begun = [each.begin_s for life in lives.values() for each in life.actions if each.kind == "begun"]
    firsts = [actions[0].begin_s for actions in computed.values() if actions]
    if not begun and not firsts:
        return None  # it never came to training
    begin_s = min(begun or firsts)
    dropped = [each.begin_s for life in lives.values() for each in life.actions if each.kind == "dropped"]
    end_s = min(dropped) if dropped else max(each.end_s for life in lives.values() for each in life.actions)
    lanes = {}
    for stage, life in lives.items():
        whole = any(each.kind == "begun" for each in life.actions)  # nothing was lost to the limit of the file
        first_s = computed[stage][0].begin_s if computed[stage] else end_s
        start_s = begin_s if whole else max(begin_s, first_s)
        lanes[stage] = Lane(stage, life.began.node, start_s, end_s, computed[stage])
    actions: dict[Key, Action] = {}
    for stage, life in lives.items():
        for each in life.actions:
            actions[stage, each.kind, each.step, each.index, each.evaluation] = each
    stages = max(life.began.stages for life in lives.values())
    return PlanTime(generation, stages, begin_s, end_s, lanes, actions)


def _computed(life: StageLife) -> list[Action]:
    return [each for each in life.actions if each.kind in COMPUTE_KINDS]


def _clip(plan: PlanTime, earliest_s: float, latest_s: float) -> None:
    plan.begin_s = max(plan.begin_s, earliest_s)
    plan.end_s = min(plan.end_s, latest_s)
    for lane in plan.lanes.values():
        lane.end_s = plan.end_s
        lane.start_s = min(max(lane.start_s, plan.begin_s), plan.end_s)
