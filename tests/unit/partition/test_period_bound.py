"""The best period over all pipelines, against every order and cut."""

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.closed_forms import capacity
from brigade.partition.line import Access, HopTime, Line, StageTime, connect
from brigade.partition.period_bound import EXACT_NODES, best_period
from brigade.wire.errors import PlanError

rates = st.sampled_from([1.0, 3.0, 10.0, math.inf])
accesses = st.builds(Access, rates, rates, st.booleans())


@st.composite
def fleets(draw, most_nodes=3, most_blocks=5):
    nodes, blocks = draw(st.integers(1, most_nodes)), draw(st.integers(1, most_blocks))
    block_s = np.array([[draw(st.integers(1, 9)) for _ in range(blocks)] for _ in range(nodes)], dtype=float)
    size = st.lists(st.integers(0, 20), min_size=blocks - 1, max_size=blocks - 1)
    links = np.array([[draw(rates) for _ in range(nodes)] for _ in range(nodes)]) if draw(st.booleans()) else None
    return block_s, draw(size), draw(size), [draw(accesses) for _ in range(nodes)], links


def line_of(fleet, order, cuts):
    """The stages of this choice as a line, whose capacity is by definition the period to beat."""
    block_s, activations, gradients, ports, links = fleet
    stages = [StageTime(0.0, block_s[node, cuts[k] : cuts[k + 1]].sum()) for k, node in enumerate(order)]
    inner = [cut - 1 for cut in cuts[1:-1]]
    line = connect(
        stages,
        [ports[n] for n in order],
        [activations[b] for b in inner],
        [gradients[b] for b in inner],
        [0.0] * len(inner),
    )
    if links is None:
        return line
    hops = tuple(
        HopTime(
            activations[b] / links[order[k], order[k + 1]] if activations[b] else 0.0,
            gradients[b] / links[order[k + 1], order[k]] if gradients[b] else 0.0,
            0.0,
        )
        for k, b in enumerate(inner)
    )
    return Line(line.stages, hops, line.ports)


def every_choice(nodes, blocks):
    for count in range(1, min(nodes, blocks) + 1):
        for order in permutations(range(nodes), count):
            for inner in combinations(range(1, blocks), count - 1):
                yield order, (0, *inner, blocks)


@given(fleet=fleets())
def test_it_is_the_best_of_every_order_and_cut(fleet) -> None:
    nodes, blocks = fleet[0].shape
    expected = min(capacity(line_of(fleet, order, cuts)).period_s for order, cuts in every_choice(nodes, blocks))
    found = best_period(*fleet)
    assert found.exact
    assert found.period_s == pytest.approx(expected)
    assert capacity(line_of(fleet, found.order, found.cuts)).period_s == pytest.approx(expected)


def test_beyond_twelve_nodes_it_stays_below_what_can_be_done() -> None:
    chance = np.random.default_rng(1)
    speed, work = chance.uniform(0.2, 3, EXACT_NODES), chance.uniform(0.5, 2, 40)
    block_s = work[None, :] / speed[:, None]
    boundary = [0.0] * 39
    exact = best_period(block_s, boundary, boundary, [Access()] * EXACT_NODES)
    idle = np.full((3, 40), math.inf)  # nodes that hold nothing change nothing
    more = best_period(np.vstack([block_s, idle]), boundary, boundary, [Access()] * (EXACT_NODES + 3))
    assert not more.exact
    assert more.period_s == pytest.approx(max(work.sum() / speed.sum(), work.max() / speed.max()))
    assert 0.8 * exact.period_s < more.period_s <= exact.period_s


def test_what_cannot_be_held_is_refused() -> None:
    cannot = np.array([[1.0, math.inf], [2.0, math.inf]])
    with pytest.raises(PlanError):
        best_period(cannot, [0.0], [0.0], [Access()] * 2)
    with pytest.raises(PlanError):
        best_period(np.vstack([cannot] * 7), [0.0], [0.0], [Access()] * 14)
    with pytest.raises(PlanError):
        best_period(cannot, [0.0, 0.0], [0.0], [Access()] * 2)
