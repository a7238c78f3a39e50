"""Where the time went: timelines made by hand with known answers, recoveries, and what killed nodes leave out."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.lab.attribution import PARTS, Attribution, StageTimes, attribute
from brigade.node.timeline import Action, Kind, StageBegan, StageLife

T0 = 1_700_000_000.0  # times below count from here


def began(stage: int, generation: int = 0, stages: int = 2, node: str = "") -> StageBegan:
    name = node or "abc"[stage]
    return StageBegan(run_id="r", generation=generation, stage=stage, node=name, stages=stages, at_s=T0)


def act(kind: Kind, begin: float, end: float | None = None, index: int = -1, step: int = 0, size: int = 0) -> Action:
    return Action(kind, step, index, T0 + begin, T0 + (begin if end is None else end), bytes=size)


def passed(way: str, index: int, encoded: float, size: int) -> tuple[list[Action], list[Action]]:
    """What sender and receiver note of a value whose encoding begins at `encoded`: 0.1 s, 0.4 s on the way, 0.1 s."""
    sender = [
        act(f"encode_{way}", encoded, encoded + 0.1, index),  # type: ignore[arg-type]
        act(f"sent_{way}", encoded + 0.1, None, index, size=size),  # type: ignore[arg-type]
    ]
    receiver = [
        act(f"arrived_{way}", encoded + 0.5, None, index, size=size),  # type: ignore[arg-type]
        act(f"decode_{way}", encoded + 0.5, encoded + 0.6, index),  # type: ignore[arg-type]
    ]
    return sender, receiver


def two_stages() -> list[StageLife]:
    """One step of two microbatches: forwards take 1 s, backwards 2 s."""
    (near0, far0), (near1, far1) = passed("activation", 0, 1.0, 100), passed("activation", 1, 2.0, 100)
    (back0, home0), (back1, home1) = passed("gradient", 0, 4.6, 50), passed("gradient", 1, 7.6, 50)
    first = [
        act("begun", 0),
        act("forward", 0, 1, 0),
        act("forward", 1, 2, 1),
        act("backward", 5.2, 7.2, 0),
        act("backward", 8.2, 10.2, 1),
        act("sum", 10.2, 10.3),
        act("optimizer", 11, 11.5),
        act("dropped", 12),
        *near0, *near1, *home0, *home1,
    ]  # fmt: skip
    last = [
        act("begun", 0),
        act("forward", 1.6, 2.6, 0),
        act("backward", 2.6, 4.6, 0),
        act("forward", 4.6, 5.6, 1),
        act("backward", 5.6, 7.6, 1),
        act("sum", 7.6, 7.7),
        act("optimizer", 11, 11.5),
        act("evaluate", 11.5, 11.9, 0),  # behind the last update: it does not count
        act("dropped", 12),
        *far0, *far1, *back0, *back1,
    ]  # fmt: skip
    return [StageLife(began(0), first), StageLife(began(1), last)]


def known(found: Attribution | None) -> Attribution:
    assert found is not None
    return found


def parts(stage: StageTimes) -> dict[str, float]:
    """The parts that are not 0, which add up to the wall time."""
    assert set(stage.parts) == set(PARTS)
    assert sum(stage.parts.values()) == pytest.approx(stage.wall_s)
    return {name: pytest.approx(seconds, abs=1e-5) for name, seconds in stage.parts.items() if abs(seconds) > 1e-5}


def test_a_step_of_two_stages_is_divided_as_reckoned_by_hand() -> None:
    found = known(attribute(two_stages()))
    assert (found.seconds, found.steps) == (pytest.approx(11.5), 1)
    assert found.norm_round_s == pytest.approx(0.7)
    first, last = found.stages
    assert (first.node, first.wall_s, first.covered) == ("a", pytest.approx(11.5), 1)
    assert parts(first) == {
        "forward_s": 2,
        "backward_s": 4,
        "optimizer_s": 0.6,
        "starved_s": 3.0,  # while stage 1 computed the gradients
        "encoding_s": 0.4,
        "sending_s": 0.8,
        "gated_s": 0.7,
    }
    assert parts(last) == {
        "forward_s": 2,
        "backward_s": 4,
        "optimizer_s": 0.6,
        "starved_s": 1.0,
        "encoding_s": 0.2,
        "sending_s": 0.4,
        "gated_s": 3.3,
    }
    assert (last.encode_s, last.decode_s) == pytest.approx((0.2, 0.2), abs=1e-5)


def test_links_carry_what_arrived_and_the_waits_for_it() -> None:
    there, back = known(attribute(two_stages(), lambda sender, _: {"a": 1000.0, "b": 500.0}[sender])).links
    assert (there.sender, there.receiver, there.bytes) == (0, 1, 200)
    assert (back.sender, back.receiver, back.bytes) == (1, 0, 100)
    assert (there.sending_s, there.waiting_s, there.line_s) == pytest.approx((0.8, 0.4, 0.2), abs=1e-5)
    assert (back.sending_s, back.waiting_s, back.line_s) == pytest.approx((0.8, 0.8, 0.2), abs=1e-5)


def test_waits_for_bytes_are_those_on_links() -> None:
    found = known(attribute(two_stages()))
    assert sum(link.waiting_s for link in found.links) == pytest.approx(
        sum(stage.parts["sending_s"] for stage in found.stages)
    )


def test_a_stage_whose_order_keeps_a_forward_back_is_blocked_from_when_it_could_run() -> None:
    lives = two_stages()
    lives[0].actions.append(
        act("forward", 7.2, 8.0, 2)
    )  # the first stage needs nobody for it: it could have run at once
    assert known(attribute(lives)).stages[0].parts["blocked_s"] == pytest.approx(5.2 - 2.0, abs=1e-5)
    # A stage between others needs the activation for it.
    middle = [
        act("begun", 0),
        act("forward", 0, 1, 0),
        act("decode_activation", 1.5, 2.0, 1),
        act("backward", 3.0, 4.0, 0),
        act("forward", 4.0, 5.0, 1),
        act("optimizer", 5.0, 6.0),
    ]
    after = [act("begun", 0), act("backward", 0.5, 2.5, 0), act("sent_gradient", 2.7, None, 0)]
    three = [
        StageLife(began(0, stages=3), [act("begun", 0)]),
        StageLife(began(1, stages=3), middle),
        StageLife(began(2, stages=3), after),
    ]
    assert parts(known(attribute(three)).stages[1]) == {
        "forward_s": 2, "backward_s": 1, "optimizer_s": 1, "starved_s": 1, "blocked_s": 1,
    }  # fmt: skip


def test_the_first_stage_is_gated_before_a_step_and_busy_with_itself_within_one() -> None:
    lives = [
        StageLife(
            began(0, stages=1),
            [
                act("begun", 0),
                act("forward", 0.25, 1, 0),
                act("forward", 1.125, 2, 1),
                act("optimizer", 2, 3),
                act("forward", 3.5, 4, 0, step=1),
                act("optimizer", 4, 5, step=1),
            ],
        )
    ]
    found = known(attribute(lives))
    assert found.steps == 2
    assert parts(found.stages[0]) == {
        "forward_s": 2.125, "optimizer_s": 2, "gated_s": 0.75, "overhead_s": 0.125,
    }  # fmt: skip


def test_between_two_plans_all_stages_recover_also_those_of_a_node_that_was_killed() -> None:
    first_plan = [
        StageLife(began(0, 0), [act("begun", 0), act("forward", 0, 1, 0), act("dropped", 5)]),
        StageLife(began(1, 0), [act("begun", 0), act("forward", 1, 2, 0)]),  # killed: its last step is not written
    ]
    second_plan = [
        StageLife(began(0, 3, node="c"), [act("begun", 9), act("forward", 9, 10, 0), act("optimizer", 10, 11)]),
        StageLife(began(1, 3, node="d"), [act("begun", 9), act("forward", 10, 11, 0), act("optimizer", 11, 12)]),
    ]
    never_begun = [StageLife(began(0, 2), [act("load", 6, 7)])]
    found = known(attribute([*second_plan, *never_begun, *first_plan]))
    assert found.seconds == pytest.approx(12)
    first, last = found.stages
    assert (first.node, last.node) == ("c", "d")
    assert parts(first) == {"forward_s": 2, "optimizer_s": 1, "gated_s": 1, "recovery_s": 8}
    assert parts(last) == {"forward_s": 2, "optimizer_s": 1, "starved_s": 2, "recovery_s": 7}


def test_what_no_timeline_tells_is_not_divided_but_said() -> None:
    lives = two_stages()
    # The file of stage 1 was begun anew at 5.6 s, and there is none of stage 0.
    kept = [each for each in lives[1].actions if each.begin_s >= T0 + 5.6]
    found = known(attribute([StageLife(began(1), kept), StageLife(began(0), [act("begun", 0)])]))
    last = found.stages[1]
    assert last.wall_s == pytest.approx(5.9)
    assert last.covered == pytest.approx(5.9 / 11.5)
    only = known(attribute([lives[1]]))
    assert (only.stages[0].wall_s, only.stages[0].covered) == (0, 0)
    assert only.stages[1].covered == 1
    # Without the other side's timeline the way of an input is not known: all of the wait is its producer's.
    assert only.stages[1].parts["starved_s"] == pytest.approx(1.5)


def test_nothing_is_said_of_a_run_without_an_update() -> None:
    assert attribute([]) is None
    assert attribute([StageLife(began(0), [act("begun", 0), act("forward", 0, 1, 0)])]) is None


moments = st.floats(0, 100)
spans = st.tuples(st.sampled_from(get_args(Kind)), st.integers(0, 2), st.integers(-1, 3), moments, moments)


@given(st.lists(st.lists(spans, max_size=12), min_size=1, max_size=3), st.integers(0, 1))
def test_parts_add_up_to_the_wall_time_whatever_stands_in_the_files(
    stages: list[list[tuple]], generations: int
) -> None:
    lives = []
    for stage, noted in enumerate(stages):
        actions = [Action(kind, step, index, begin, max(begin, end)) for kind, step, index, begin, end in noted]
        lives += [
            StageLife(began(stage, generation, len(stages)), actions[generation * 6 :])
            for generation in range(generations + 1)
        ]
    found = attribute(lives)
    if found is not None:
        for stage in found.stages:
            assert all(seconds >= 0 for seconds in stage.parts.values())
            assert stage.wall_s <= found.seconds * stage.covered + 1e-6
