"""Which walk a stage of a plan follows, and what it sees of arrivals: numbers instead of slots."""

from collections.abc import Callable, Container

from brigade.partition.policy import AlternationPolicy
from brigade.partition.schedule import LATENCY_SIZED, Order, build, eager_warm_up
from brigade.partition.versions import Numbering
from brigade.partition.walk import OrderedWalk, Walk
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Plan


def make_walk(plan: Plan, stage: int, count_of: Callable[[int], int], first_step: int) -> Walk:
    """Return what decides which microbatch comes next; `count_of(step)` tells how many a step has."""
    stages = len(plan.stages)
    first, last = stage == 0, stage == stages - 1
    if plan.schedule == LATENCY_SIZED:
        warm_up = plan.warm_ups[stage] if plan.warm_ups else eager_warm_up(stage, stages)
        return AlternationPolicy(warm_up, plan.slack, first=first, last=last)

    def order_of(steps_walked: int) -> Order:
        return build(plan.schedule, stages, count_of(first_step + steps_walked))[stage]

    return OrderedWalk(order_of, first=first, last=last)


class Arrived:
    """Arrived slots of training, seen as numbers."""

    __slots__ = ("_numbers", "_slots")

    def __init__(self, slots: Container[Slot], numbers: Numbering) -> None:
        self._slots = slots
        self._numbers = numbers

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        step, index = self._numbers.place(number)
        return Slot(step=step, index=index) in self._slots
