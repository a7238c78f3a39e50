"""Versions and numbers of microbatches; and that no stage ever waits for itself, whatever K, V and the warm-ups."""

import random

import pytest

from brigade.partition.policy import AlternationPolicy
from brigade.partition.versions import Numbering, VersionRule
from brigade.wire.errors import LocalProtocolError


@pytest.mark.parametrize(
    ("keep", "first", "versions"),
    [
        (1, 0, [0, 1, 2, 3, 4]),
        (2, 0, [0, 0, 1, 2, 3]),
        (3, 0, [0, 0, 0, 1, 2]),
    ],
)
def test_the_version_of_a_step(keep, first, versions):
    rule = VersionRule(keep, first)
    assert [rule.version_of(step) for step in range(5)] == versions
    for version in range(8):
        admitted = [step for step in range(20) if rule.version_of(step) <= version]
        assert rule.admitted_steps(version) == len(admitted)


def test_a_stage_that_was_given_older_weights_goes_on_as_if_nothing_had_happened():
    assert [VersionRule(3, 8).version_of(step) for step in (10, 11, 12)] == [8, 9, 10]
    assert [VersionRule(3, 10).version_of(step) for step in (10, 11, 12, 13)] == [10, 10, 10, 11]


def test_rules_without_sense_are_our_own_bug():
    with pytest.raises(LocalProtocolError):
        VersionRule(0)


def test_numbers_run_through_steps_of_all_sizes():
    numbers = Numbering(lambda step: [3, 1, 2][step % 3], 4)  # steps 4, 5, 6, 7 have 1, 2, 3, 1
    places = [(4, 0), (5, 0), (5, 1), (6, 0), (6, 1), (6, 2), (7, 0), (8, 0), (8, 1)]
    assert [numbers.place(number) for number in range(9)] == places
    numbers.forget_before(6)
    assert [numbers.number(*place) for place in places[3:]] == list(range(3, 9))
    assert numbers.place(4) == (6, 1)


def test_ten_thousand_lines_of_stages_never_wait_for_themselves():
    for seed in range(10_000):
        walk_to_the_end(random.Random(seed))


def walk_to_the_end(chance: random.Random) -> None:
    """Whatever is handed out is done and delivered at some time; whoever waits must be able to go on before the end."""
    stages, steps, per_update = chance.randint(1, 4), chance.randint(1, 5), chance.randint(1, 4)
    keep = chance.randint(1, 4)
    policies = [
        AlternationPolicy(chance.randint(0, 9), chance.randint(0, 2), first=k == 0, last=k == stages - 1)
        for k in range(stages)
    ]
    total = steps * per_update
    rule = VersionRule(keep)
    activations: list[set[int]] = [set() for _ in range(stages)]
    gradients: list[set[int]] = [set() for _ in range(stages)]
    backwards = [0] * stages
    for policy in policies:
        policy.admit(min(total, rule.admitted_steps(0) * per_update))
    decided = left = 0
    under_way: list[tuple[set[int], int]] = []
    while left < 2 * total * stages:
        moved = False
        for k in chance.sample(range(stages), stages):
            action = policies[k].next(activations[k], gradients[k])
            if action is None:
                continue
            moved, left = True, left + 1
            if action.kind == "F" and k + 1 < stages:
                under_way.append((activations[k + 1], action.index))
            elif action.kind == "B":
                backwards[k] += 1
                if k > 0:
                    under_way.append((gradients[k - 1], action.index))
        while under_way and (not moved or chance.random() < 0.7):
            target, index = under_way.pop(chance.randrange(len(under_way)))
            target.add(index)
            moved = True
        while decided < min(backwards) // per_update:
            decided += 1  # an update needs every stage's gradients, as the norm does
            moved = True
            for policy in policies:
                policy.admit(min(total, rule.admitted_steps(decided) * per_update))
        assert moved, f"deadlock: {stages} stages, K={per_update}, V={keep}, {[p.warm_up for p in policies]}"
