"""Rounds of measuring: everybody to everybody, and nobody in anybody's way."""

import pytest

from brigade.coordinator.link_rounds import ONE_BY_ONE, link_rounds


@pytest.mark.parametrize("count", [1, 2, 3, ONE_BY_ONE, ONE_BY_ONE + 1, ONE_BY_ONE + 2, 63, 64])
def test_every_node_sends_to_every_other_once_and_no_two_meet(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    rounds = link_rounds(nodes)
    sent = [(sender, to) for each in rounds for sender, targets in each.items() for to in targets]
    assert sorted(sent) == sorted((a, b) for a in nodes for b in nodes if a != b)
    if count <= ONE_BY_ONE:
        assert all(len(each) == 1 for each in rounds)
        return
    for each in rounds:
        taking_part = [*each, *(to for targets in each.values() for to in targets)]
        assert len(taking_part) == len(set(taking_part))
    assert len(rounds) == 2 * (count - 1 + count % 2)
