"""Is a schedule sound? Finds a missing partner, a wrong order, a deadlock, or more in flight than a stage can hold."""

from collections.abc import Sequence

from brigade.partition.schedule import BACKWARD, FORWARD, Action, Order, Schedule, peak_in_flight
from brigade.wire.errors import PlanError


def check(schedule: Schedule, capacity: Sequence[int] | None = None) -> None:
    """Accept a schedule that every stage can carry out to its end.

    `capacity` is the number of microbatches that each stage can keep in flight.
    Raises PlanError that names stage, action and fault.
    """
    if not schedule:
        raise PlanError("the schedule has no stage")
    microbatches = max((action.index for order in schedule for action in order), default=-1) + 1
    if microbatches == 0:
        raise PlanError("the schedule has no action")
    for stage, order in enumerate(schedule):
        _check_stage(stage, order)
    _check_partners(schedule, microbatches)
    _check_progress(schedule)
    if capacity is not None:
        _check_capacity(schedule, capacity)


def _check_stage(stage: int, order: Order) -> None:
    seen: set[Action] = set()
    for action in order:
        if action.index < 0:
            raise PlanError(f"stage {stage}: {action} has a negative microbatch")
        if action in seen:
            raise PlanError(f"stage {stage} runs {action} twice")
        if action.kind == BACKWARD and Action(FORWARD, action.index) not in seen:
            raise PlanError(f"stage {stage} runs {action} before F{action.index}")
        seen.add(action)


def _check_partners(schedule: Schedule, microbatches: int) -> None:
    """Every stage runs forward and backward of the same microbatches, numbered without a gap."""
    for stage, order in enumerate(schedule):
        actions = set(order)
        # Counted instead of listed: a microbatch number may be large in a text that someone wrote.
        if len(actions) == 2 * microbatches:
            continue
        index = next(i for i in range(microbatches) if not {Action(FORWARD, i), Action(BACKWARD, i)} <= actions)
        kind = FORWARD if Action(FORWARD, index) not in actions else BACKWARD
        raise PlanError(f"stage {stage} never runs {kind}{index}, which microbatch {index} needs")


def _check_progress(schedule: Schedule) -> None:
    """Run the schedule without time: whatever can run, runs, until all is done or nobody can go on."""
    position = [0] * len(schedule)
    done: set[tuple[int, Action]] = set()
    woken = list(range(len(schedule)))
    while woken:
        stage = woken.pop()
        while position[stage] < len(schedule[stage]):
            action = schedule[stage][position[stage]]
            giver = giving_stage(stage, action, len(schedule))
            if giver is not None and (giver, action) not in done:
                break
            done.add((stage, action))
            position[stage] += 1
            taker = stage + 1 if action.kind == FORWARD else stage - 1
            if 0 <= taker < len(schedule):
                woken.append(taker)
    stuck = [stage for stage, order in enumerate(schedule) if position[stage] < len(order)]
    if stuck:
        waits = (f"stage {k} waits at {describe_wait(k, schedule[k][position[k]])}" for k in stuck)
        raise PlanError("deadlock: " + ", ".join(waits))


def _check_capacity(schedule: Schedule, capacity: Sequence[int]) -> None:
    if len(capacity) != len(schedule):
        raise PlanError(f"the schedule has {len(schedule)} stages, capacities were given for {len(capacity)}")
    for stage, (peak, limit) in enumerate(zip(peak_in_flight(schedule), capacity, strict=True)):
        if peak > limit:
            raise PlanError(f"stage {stage} would keep {peak} microbatches in flight, it can hold {limit}")


def giving_stage(stage: int, action: Action, stages: int) -> int | None:
    """Return the stage whose same action must be done before; None when `action` needs nothing from another stage."""
    giver = stage - 1 if action.kind == FORWARD else stage + 1
    return giver if 0 <= giver < stages else None


def describe_wait(stage: int, action: Action) -> str:
    """Return what `action` waits for, for a person: `F2 for activation 2 from stage 0`."""
    if action.kind == FORWARD:
        return f"{action} for activation {action.index} from stage {stage - 1}"
    return f"{action} for gradient {action.index} from stage {stage + 1}"
