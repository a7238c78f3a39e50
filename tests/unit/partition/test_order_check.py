"""The schedule checker: accepts what can run, and finds every corruption that an independent oracle finds."""

import random
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brigade.partition.order_check import check
from brigade.partition.schedule import SCHEDULES, Action, Schedule, build, parse_schedule, peak_in_flight
from brigade.wire.errors import PlanError


@given(name=st.sampled_from(sorted(SCHEDULES)), stages=st.integers(1, 7), microbatches=st.integers(1, 12))
def test_built_schedules_are_sound(name: str, stages: int, microbatches: int) -> None:
    schedule = build(name, stages, microbatches)
    check(schedule, capacity=peak_in_flight(schedule))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("F0 B0\nF0", "stage 1 never runs B0"),
        ("F0 F1 B0 B1\nF0 B0", "stage 1 never runs F1"),
        ("F0 F2 B0 B2", "stage 0 never runs F1"),
        ("F0 F0 B0\nF0 B0", "stage 0 runs F0 twice"),
        ("B0 F0\nF0 B0", "stage 0 runs B0 before F0"),
        ("F0 F999999 B999999 B0", "stage 0 never runs F1"),
        (
            "F0 B0 F1 B1\nF1 F0 B0 B1",
            "deadlock: stage 0 waits at B0 for gradient 0 from stage 1, stage 1 waits at F1 for activation 1 from stage 0",
        ),
    ],
)
def test_faults_are_named(text: str, reason: str) -> None:
    with pytest.raises(PlanError) as error:
        check(parse_schedule(text))
    assert reason in str(error.value)


def test_empty_schedules_are_refused() -> None:
    for schedule in ((), ((),), ((), ())):
        with pytest.raises(PlanError):
            check(schedule)


def test_too_little_memory_is_found() -> None:
    schedule = build("1f1b", 3, 8)
    check(schedule, capacity=(3, 2, 1))
    with pytest.raises(PlanError, match="stage 1 would keep 2 microbatches in flight, it can hold 1"):
        check(schedule, capacity=(3, 1, 1))
    with pytest.raises(PlanError, match="capacities were given for 2"):
        check(schedule, capacity=(3, 3))


def is_sound(schedule: Schedule) -> bool:
    """Counts and a topological sort: another way than the checker's simulation."""
    indices = {action.index for order in schedule for action in order}
    wanted = Counter(Action(kind, index) for kind in ("F", "B") for index in range(len(indices)))
    if not indices or any(Counter(order) != wanted for order in schedule):
        return False
    graph: dict[tuple[int, Action], set[tuple[int, Action]]] = {}
    for stage, order in enumerate(schedule):
        for position, action in enumerate(order):
            needs = graph.setdefault((stage, action), set())
            if position:
                needs.add((stage, order[position - 1]))
            if action.kind == "F" and stage > 0:
                needs.add((stage - 1, action))
            if action.kind == "B":
                needs.add((stage, Action("F", action.index)))
                if stage < len(schedule) - 1:
                    needs.add((stage + 1, action))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


def corrupt(schedule: Schedule, chance: random.Random) -> Schedule:
    lines = [list(order) for order in schedule]
    line = chance.choice(lines)
    at = chance.randrange(len(line)) if line else 0
    match chance.choice(["drop", "repeat", "swap", "move", "rename", "turn", "drop a stage", "swap stages"]):
        case "drop" if line:
            del line[at]
        case "repeat" if line:
            line.insert(chance.randrange(len(line)), line[at])
        case "swap" if line:
            other = chance.randrange(len(line))
            line[at], line[other] = line[other], line[at]
        case "move" if line:
            action = line.pop(at)
            line.insert(chance.randrange(len(line) + 1), action)
        case "rename" if line:
            line[at] = Action(line[at].kind, line[at].index + chance.choice([-1, 1, 7]))
        case "turn" if line:
            line[at] = Action("B" if line[at].kind == "F" else "F", line[at].index)
        case "drop a stage":
            lines.remove(line)
        case "swap stages":
            chance.shuffle(lines)
    return tuple(tuple(order) for order in lines)


@settings(max_examples=400)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    times=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_corruptions_are_found_exactly_when_they_hurt(
    name: str, stages: int, microbatches: int, times: int, seed: int
) -> None:
    chance = random.Random(seed)
    schedule = build(name, stages, microbatches)
    for _ in range(times):
        if schedule:
            schedule = corrupt(schedule, chance)
    if is_sound(schedule):
        check(schedule)
    else:
        with pytest.raises(PlanError):
            check(schedule)
