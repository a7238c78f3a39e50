"""How long one step takes: the schedule that will run, run on paper with known times."""

from collections.abc import Sequence

from brigade.partition.line import HopTime, Line, StageTime
from brigade.partition.schedule import Schedule
from brigade.partition.simulation.run import simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.simulation.walks import in_order


def step_seconds(schedule: Schedule, stages: Sequence[StageTime], hops: Sequence[HopTime]) -> float:
    """Return the seconds from the first forward to the end of the last backward.

    Sending overlaps computing; a link carries one value at a time in each direction, in the order in which they were
    made. `hops[k]` is between stages k and k+1. Raises PlanError if the schedule cannot end.
    """
    microbatches = len(schedule[0]) // 2
    return simulate(Line(tuple(stages), tuple(hops)), in_order(schedule), Work(microbatches, microbatches)).makespan_s
