"""Walks of all stages of a simulated line: the cores that nodes run."""

from collections.abc import Sequence

from brigade.partition.policy import alternation
from brigade.partition.schedule import LATENCY_SIZED, Order, Schedule, alternating_order, build, eager_warm_up
from brigade.partition.walk import OrderedWalk, Walk
from brigade.wire.plan import Plan


def follow(plan: Plan) -> tuple[Walk, ...]:
    """Return the walks of a plan's stages, all steps being of full size."""
    stages = len(plan.stages)
    if plan.schedule == LATENCY_SIZED:
        warm_ups = plan.warm_ups or [eager_warm_up(stage, stages) for stage in range(stages)]
        return alternation(warm_ups, plan.slack)
    return in_order(build(plan.schedule, stages, plan.microbatches))


def in_order(schedule: Schedule) -> tuple[OrderedWalk, ...]:
    """Return walks through a schedule, again and again: a step each time."""
    last = len(schedule) - 1
    return tuple(_repeated(order, first=k == 0, last=k == last) for k, order in enumerate(schedule))


def _repeated(order: Order, *, first: bool, last: bool) -> OrderedWalk:
    return OrderedWalk(lambda _: order, first=first, last=last)


def strict_alternation(warm_ups: Sequence[int], microbatches: int) -> tuple[OrderedWalk, ...]:
    """Return walks that alternate strictly after their warm-ups, through all microbatches without a break."""
    return in_order(tuple(alternating_order(warm_up, microbatches) for warm_up in warm_ups))
