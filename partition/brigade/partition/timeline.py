"""How long a step takes: the schedule that will run, run on paper with known times."""

from brigade.partition.line import Line
from brigade.partition.schedule import Schedule
from brigade.partition.simulation.run import AT_ONCE, UpdateRound, simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.simulation.walks import in_order


def step_seconds(schedule: Schedule, line: Line, update_round: UpdateRound = AT_ONCE, steps: int = 1) -> float:
    """Return the mean seconds between commits of so many steps; of a single one, from its begin to its commit.

    Sending overlaps computing; a line carries one value at a time in each direction, in the order in which they were
    made. Raises PlanError if the schedule cannot end.
    """
    microbatches = len(schedule[0]) // 2
    work = Work(steps * microbatches, microbatches)
    return simulate(line, in_order(schedule), work, update_round=update_round).step_s
