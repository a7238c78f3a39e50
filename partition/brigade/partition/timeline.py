"""How long one step takes: the schedule that will run, run on paper with known times."""

from collections.abc import Sequence

from brigade.partition.line import HopTime, StageTime
from brigade.partition.order_check import giving_stage
from brigade.partition.schedule import FORWARD, Action, Schedule
from brigade.wire.errors import PlanError


def step_seconds(schedule: Schedule, stages: Sequence[StageTime], hops: Sequence[HopTime]) -> float:
    """Return the seconds from the first forward to the end of the last backward.

    Sending overlaps computing; a link carries one value at a time in each direction, in the order in which they were
    made. `hops[k]` is between stages k and k+1. Raises PlanError if the schedule cannot end.
    """
    arrivals: dict[tuple[int, Action], float] = {}  # (stage that may now run the action, action): when
    clock = [0.0] * len(schedule)
    link_free: dict[tuple[int, int], float] = {}
    position = [0] * len(schedule)
    woken = list(range(len(schedule)))
    while woken:
        stage = woken.pop()
        order = schedule[stage]
        while position[stage] < len(order):
            action = order[position[stage]]
            start = clock[stage]
            if giving_stage(stage, action, len(schedule)) is not None:
                if (stage, action) not in arrivals:
                    break
                start = max(start, arrivals[stage, action])
            is_forward = action.kind == FORWARD
            clock[stage] = start + (stages[stage].forward_s if is_forward else stages[stage].backward_s)
            position[stage] += 1
            taker = stage + 1 if is_forward else stage - 1
            if 0 <= taker < len(schedule):
                hop = hops[min(stage, taker)]
                sent = max(clock[stage], link_free.get((stage, taker), 0.0))
                sent += hop.activation_s if is_forward else hop.gradient_s
                link_free[stage, taker] = sent
                arrivals[taker, action] = sent + hop.one_way_s
                woken.append(taker)
    if any(position[stage] < len(order) for stage, order in enumerate(schedule)):
        raise PlanError("the schedule cannot end: some stage waits for ever")
    return max(clock)
