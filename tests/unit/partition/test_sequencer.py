"""The walk of a stage through its order."""

import random

from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.schedule import SCHEDULES, Action, build
from brigade.partition.sequencer import Sequencer


def test_first_stage_waits_for_gradients_only() -> None:
    walk = Sequencer(build("1f1b", 2, 2)[0], first=True, last=False)
    assert [walk.next((), ()) for _ in range(3)] == [Action("F", 0), Action("F", 1), None]
    assert walk.upcoming == Action("B", 0)
    assert walk.next((), {1}) is None, "strict order: B1 may not overtake B0"
    assert walk.next((), {0, 1}) == Action("B", 0)
    assert walk.is_done("B", 0)
    assert not walk.is_done("B", 1)
    assert walk.next((), {0, 1}) == Action("B", 1)
    assert walk.upcoming is None
    assert walk.next({0, 1}, {0, 1}) is None


def test_last_stage_waits_for_activations_only() -> None:
    walk = Sequencer(build("1f1b", 2, 2)[1], first=False, last=True)
    assert walk.next((), ()) is None
    assert walk.next({1}, ()) is None
    assert [walk.next({0}, ()) for _ in range(3)] == [Action("F", 0), Action("B", 0), None]


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_a_line_of_walks_ends_whatever_the_pace(name: str, stages: int, microbatches: int, seed: int) -> None:
    chance = random.Random(seed)
    schedule = build(name, stages, microbatches)
    walks = [Sequencer(order, first=k == 0, last=k == stages - 1) for k, order in enumerate(schedule)]
    arrived = [{"F": set[int](), "B": set[int]()} for _ in walks]
    log: list[list[Action]] = [[] for _ in walks]
    while any(walk.upcoming for walk in walks):
        ready = [k for k, walk in enumerate(walks) if _may_go(walk, arrived[k], k, stages)]
        assert ready, "no stage can go on"
        k = chance.choice(ready)
        action = walks[k].next(arrived[k]["F"], arrived[k]["B"])
        assert action is not None
        log[k].append(action)
        taker = k + 1 if action.kind == "F" else k - 1
        if 0 <= taker < stages:
            arrived[taker][action.kind].add(action.index)
        assert walks[k].in_flight == sum(1 if done.kind == "F" else -1 for done in log[k])
    assert [tuple(actions) for actions in log] == list(schedule)


def _may_go(walk: Sequencer, arrived: dict[str, set[int]], stage: int, stages: int) -> bool:
    action = walk.upcoming
    if action is None:
        return False
    needs_nothing = stage == 0 if action.kind == "F" else stage == stages - 1
    return needs_nothing or action.index in arrived[action.kind]
