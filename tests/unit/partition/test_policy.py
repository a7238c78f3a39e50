"""Alternation around a target in flight."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.policy import AlternationPolicy, admitted_microbatches, alternation
from brigade.partition.schedule import Action
from brigade.wire.errors import LocalProtocolError

EVERYTHING = range(10**6)


def take(policy: AlternationPolicy, count: int, activations=EVERYTHING, gradients=EVERYTHING) -> str:
    return " ".join(str(policy.next(activations, gradients)) for _ in range(count))


def test_warm_up_then_alternate_then_drain() -> None:
    policy = AlternationPolicy(2, slack=1, first=True, last=False, admitted=5)
    assert take(policy, 11) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4 None"


def test_the_last_stage_turns_each_microbatch_at_once() -> None:
    policy = AlternationPolicy(0, first=False, last=True, admitted=9)
    assert take(policy, 3, activations={0}, gradients=()) == "F0 B0 None"


def test_without_gradients_forwards_run_up_to_the_cap() -> None:
    policy = AlternationPolicy(2, slack=2, first=True, last=False, admitted=99)
    assert take(policy, 7, gradients=()) == "F0 F1 F2 F3 F4 None None"
    assert policy.in_flight == policy.cap == 5
    assert take(policy, 4) == "B0 B1 B2 F5", "back to the target, then alternate"


def test_without_activations_backwards_run() -> None:
    policy = AlternationPolicy(3, first=False, last=False, admitted=99)
    assert take(policy, 4, activations={0, 1}, gradients={0}) == "F0 F1 B0 None"


def test_order_is_kept_in_both_directions() -> None:
    policy = AlternationPolicy(3, first=False, last=False, admitted=99)
    assert policy.next({1, 2}, ()) is None
    assert take(policy, 2, activations={0, 1}, gradients={1}) == "F0 F1"
    assert policy.next((), {1}) is None


def test_the_gate_holds_forwards_and_never_backwards() -> None:
    policy = AlternationPolicy(3, first=True, last=False, admitted=2)
    assert take(policy, 5) == "F0 F1 B0 B1 None"
    policy.admit(admitted_microbatches(1, 2, 1))
    policy.admit(0)
    assert take(policy, 5) == "F2 F3 B2 B3 None"
    assert admitted_microbatches(0, 8, 2) == 16


def test_ahead_of_time_only_what_is_preferred_is_handed_out() -> None:
    policy = AlternationPolicy(1, slack=1, first=True, last=False, admitted=9)
    assert take(policy, 2, gradients=()) == "F0 F1"
    assert policy.next(EVERYTHING, (), ahead=True) is None, "a backward may come while something is computed"
    assert str(policy.next(EVERYTHING, {0}, ahead=True)) == "B0"
    late = AlternationPolicy(1, first=False, last=False, admitted=9)
    assert take(late, 1, activations={0}) == "F0"
    assert late.next((), {0}, ahead=True) is None
    assert str(late.next((), {0})) == "B0"


def test_what_is_missed_most_can_be_told() -> None:
    policy = AlternationPolicy(1, first=False, last=False, admitted=2)
    seen = []
    for activations, gradients in (({0}, ()), ({1}, ()), ((), {0}), ((), {1})):
        seen.append(str(policy.upcoming))
        assert policy.next(activations, gradients) is not None
    assert (seen, policy.upcoming) == (["F0", "F1", "B0", "B1"], None)
    assert policy.is_done("F", 1)
    assert policy.is_done("B", 1)
    assert not policy.is_done("F", 2)


def test_backwards_can_be_held() -> None:
    policy = AlternationPolicy(1, slack=1, first=True, last=False, admitted=9)
    policy.hold_backwards(1)
    assert take(policy, 7) == "F0 F1 B0 F2 F3 None None"
    policy.hold_backwards(3)
    assert take(policy, 2) == "B1 B2"


@given(
    warm_ups=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    slack=st.integers(0, 2),
    per_update=st.integers(1, 7),
    versions=st.integers(1, 3),
    batches=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_a_line_of_policies_ends_whatever_targets_gates_and_pace(
    warm_ups, slack, per_update, versions, batches, seed
) -> None:
    """No deadlock for any (K, V, w), even where targets rise along the line."""
    chance = random.Random(seed)
    total, last = per_update * batches, len(warm_ups) - 1
    policies = alternation(warm_ups, slack, admitted=min(total, admitted_microbatches(0, per_update, versions)))
    arrived = [(set[int](), set[int]()) for _ in policies]
    log: list[list[Action]] = [[] for _ in policies]
    while any(len(actions) < 2 * total for actions in log):
        for k in chance.sample(range(len(policies)), len(policies)):
            action = policies[k].next(*arrived[k])
            if action is not None:
                break
        assert action is not None, "no stage can go on"
        log[k].append(action)
        assert 0 <= policies[k].in_flight <= warm_ups[k] + 1 + slack
        if action.kind == "F" and k < last:
            arrived[k + 1][0].add(action.index)
        elif action.kind == "B":
            if k > 0:
                arrived[k - 1][1].add(action.index)
            updates = (action.index + 1) // per_update
            policies[k].admit(min(total, admitted_microbatches(updates, per_update, versions)))
    for actions in log:
        for kind in "FB":
            assert [action.index for action in actions if action.kind == kind] == list(range(total))


def test_nonsense_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        AlternationPolicy(-1, first=True, last=False)
