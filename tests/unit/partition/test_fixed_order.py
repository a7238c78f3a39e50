"""The exact solver for a given order, and the choice of order, against brute force."""

import random
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.partition.planning_cases import Fleet, even_fleet, every_cut, every_order, fleets, price

from brigade.partition import order as order_module
from brigade.partition.fixed_order import NEAR, CostTables, Orders, Split, solve_order, solve_orders
from brigade.partition.order import rank_orders


@settings(max_examples=150, deadline=None)
@given(fleet=fleets(), data=st.data())
def test_cuts_are_the_best_of_all_cuts(fleet: Fleet, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, fleet.nodes))
    order = tuple(data.draw(st.permutations(range(fleet.nodes)))[:stages])
    split = solve_order(fleet.measurements().tables(), order)
    prices = {cuts: price(fleet, order, cuts) for cuts in every_cut(fleet.blocks, stages)}
    possible = {cuts: found for cuts, found in prices.items() if found is not None}
    if not possible:
        assert split is None
        return
    least = min(bottleneck for bottleneck, _ in possible.values())
    assert split is not None
    assert split.least_bottleneck_s == pytest.approx(least, rel=1e-12)
    assert (split.bottleneck_s, split.passage_s) == pytest.approx(possible[split.cuts], rel=1e-12)
    assert split.bottleneck_s <= least * NEAR * (1 + 1e-12)
    # a cut exactly at the 1 % border may count or not
    fastest = min(passage for bottleneck, passage in possible.values() if bottleneck <= least * NEAR * (1 - 1e-9))
    assert split.passage_s <= fastest * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(fleet=fleets(), data=st.data())
def test_many_orders_at_once_are_solved_as_each_alone(fleet: Fleet, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, fleet.nodes))
    tables, orders = fleet.measurements().tables(), list(permutations(range(fleet.nodes), stages))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brigade.partition.fixed_order.CHUNK", 100)
        together = solve_orders(tables, np.array(orders))
    assert together == [solve_order(tables, order) for order in orders]


@settings(max_examples=60, deadline=None)
@given(fleet=fleets())
def test_tables_say_what_each_stage_and_link_costs(fleet: Fleet) -> None:
    """The tables are reckoned in one go; stage and hop by themselves are what the step on paper is made of."""
    measured = fleet.measurements()
    tables = measured.tables()
    for a in range(fleet.nodes):
        for b in range(fleet.nodes):
            for boundary in range(fleet.blocks + 1):
                seconds = (np.inf, np.inf)
                if measured.link_works(a, b):
                    hop = measured.hop_time(a, b, boundary)
                    line_s = hop.activation_s, hop.gradient_s
                    seconds = max(line_s), sum(line_s) + hop.round_trip_s
                assert (tables.transfer_s[a, b, boundary], tables.hop_s[a, b, boundary]) == pytest.approx(seconds)
        for in_flight in (1, 3):
            table = tables.stage_s(a, in_flight)
            for first in range(fleet.blocks):
                for end in range(first + 1, fleet.blocks + 1):
                    fits = measured.shortfall(a, in_flight)[first, end] == 0
                    seconds_alone = measured.stage_time(a, first, end).compute_s if fits else np.inf
                    assert table[first, end] == tables.stack(in_flight)[a, end, first] == pytest.approx(seconds_alone)


@settings(max_examples=60, deadline=None)
@given(fleet=fleets(most_nodes=4, most_blocks=6))
def test_order_is_the_best_of_all_permutations(fleet: Fleet) -> None:
    ranked = rank_orders(fleet.measurements().tables(), None, keep=1000)
    for stages in range(1, min(fleet.nodes, fleet.blocks) + 1):
        steps = {}
        for order in every_order(fleet.nodes, stages):
            prices = [price(fleet, order, cuts) for cuts in every_cut(fleet.blocks, stages)]
            possible = [found for found in prices if found is not None]
            if possible:
                least = min(bottleneck for bottleneck, _ in possible)
                near = [found for found in possible if found[0] <= least * NEAR]
                passage = min(passage for _, passage in near)
                bottleneck = min(bottleneck for bottleneck, each in near if each == passage)
                steps[order] = passage + (fleet.microbatches - 1) * bottleneck
        splits = ranked.get(stages, [])
        assert {split.order for split in splits} == set(steps)
        estimates = [split.estimate_s(fleet.microbatches) for split in splits]
        assert estimates == sorted(estimates)
        if splits:
            # two cuts may pass equally fast with bottlenecks up to 1 % apart
            assert estimates[0] == pytest.approx(min(steps.values()), rel=0.01)


def test_asking_for_one_number_of_stages_gives_only_that() -> None:
    tables = even_fleet(3, 6).measurements().tables()
    assert list(rank_orders(tables, None)) == [1, 2, 3]
    assert list(rank_orders(tables, 2)) == [2]


def test_more_stages_than_blocks_is_impossible() -> None:
    assert solve_order(even_fleet(3, 2).measurements().tables(), (0, 1, 2)) is None


def test_textbook_cuts() -> None:
    """A node twice as slow gets half the blocks."""
    fleet = even_fleet(2, 9, forward_s=[[1.0] * 9, [2.0] * 9], backward_s=[[1.0] * 9, [2.0] * 9])
    split = solve_order(fleet.measurements().tables(), (0, 1))
    assert split is not None
    assert split.cuts == (0, 6, 9)
    assert split.bottleneck_s == 12.0


def clusters(nodes: int, blocks: int) -> Fleet:
    """Two sites, joined by slow links; neighbours in number are at different sites."""
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    near = {pair: pair[0] % 2 == pair[1] % 2 for pair in pairs}
    return even_fleet(
        nodes,
        blocks,
        output_bytes=[1000] * blocks,
        bytes_per_s={pair: 1e6 if near[pair] else 1e3 for pair in pairs},
        rtt_s={pair: 0.001 if near[pair] else 0.2 for pair in pairs},
    )


@pytest.mark.parametrize("nodes", [4, 6, 8])
def test_a_slow_link_is_crossed_once(nodes: int) -> None:
    ranked = rank_orders(clusters(nodes, nodes).measurements().tables(), nodes)
    order = ranked[nodes][0].order
    crossings = sum(a % 2 != b % 2 for a, b in pairwise(order))
    assert crossings == 1


def mixed_fleet(chance: random.Random) -> Fleet:
    """Six machines of different speed, 14 blocks, links of 2 to 20 MB/s and 20 to 80 ms."""
    weights = [chance.uniform(0.5, 2) for _ in range(14)]
    speeds = [chance.uniform(1, 4) for _ in range(6)]
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    return even_fleet(
        6,
        14,
        forward_s=[[0.01 * weight * speed for weight in weights] for speed in speeds],
        backward_s=[[0.02 * weight * speed for weight in weights] for speed in speeds],
        output_bytes=[500_000] * 14,
        bytes_per_s={pair: chance.uniform(2e6, 2e7) for pair in pairs},
        rtt_s={pair: chance.uniform(0.02, 0.08) for pair in pairs},
        microbatches=8,
    )


def test_search_comes_near_the_best_order() -> None:
    """Fleets small enough to try every order; mean loss below 5 %, worst below 15 %."""
    losses = []
    for seed in range(8):
        tables = mixed_fleet(random.Random(seed)).measurements().tables()
        steps = []
        for exhaustive in (6, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("brigade.partition.order.EXHAUSTIVE_NODES", exhaustive)
                ranked = rank_orders(tables, None)
            steps.append(min(splits[0].estimate_s(8) for splits in ranked.values()))
        losses.append(steps[1] / steps[0])
    assert min(losses) >= 1 - 1e-9
    assert sum(losses) / len(losses) < 1.05
    assert max(losses) < 1.15


def test_moves_are_all_reversals_all_moves_of_a_node_and_all_exchanges() -> None:
    order, spare = (4, 7, 1, 3), (0, 2)
    wanted = set()
    for first in range(4):
        for end in range(first + 2, 5):
            wanted.add(order[:first] + order[first:end][::-1] + order[end:])
        rest = order[:first] + order[first + 1 :]
        wanted |= {(*rest[:to], order[first], *rest[to:]) for to in range(4)} - {order}
        wanted |= {(*order[:first], other, *order[first + 1 :]) for other in spare}
    moves = [tuple(move) for move in order_module._moves(np.array(order), np.array(spare)).tolist()]
    assert set(moves) == wanted
    assert len(moves) == len(wanted)


def test_the_work_of_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many orders there are: 64 nodes and blocks are planned in seconds, counted in numbers of the tables."""
    worked = 0
    solve = solve_orders

    def counting(tables: CostTables, orders: Orders) -> list[Split | None]:
        nonlocal worked
        worked += len(orders) * tables.cells(orders.shape[1])
        return solve(tables, orders)

    monkeypatch.setattr("brigade.partition.order.solve_orders", counting)
    monkeypatch.setattr("brigade.partition.fixed_order.solve_orders", counting)
    nodes = blocks = 20
    chance = random.Random(7)
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    fleet = even_fleet(
        nodes,
        blocks,
        forward_s=[[chance.uniform(1, 4)] * blocks for _ in range(nodes)],
        backward_s=[[2.0] * blocks] * nodes,
        output_bytes=[1000] * blocks,
        bytes_per_s={pair: chance.uniform(100, 1000) for pair in pairs},
    )
    monkeypatch.setattr("tests.unit.partition.planning_cases.name", str)
    ranked = rank_orders(fleet.measurements().tables(), None)
    assert list(ranked) == list(range(1, nodes + 1))
    drops = sum(stages * stages * (blocks - stages + 1) ** 2 for stages in range(1, nodes + 1))
    most = nodes * order_module.WORK_ON_THE_WAY + order_module.BEST_COUNTS * order_module.WORK_AT_THE_BEST + 3 * drops
    assert 0 < worked <= most


@pytest.mark.parametrize("exhaustive", [0, 6])
def test_a_node_without_links_is_left_out(exhaustive: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brigade.partition.order.EXHAUSTIVE_NODES", exhaustive)
    lonely = {(1, other) for other in range(4) if other != 1}
    ranked = rank_orders(even_fleet(4, 8, broken=lonely).measurements().tables(), None)
    assert list(ranked) == [1, 2, 3]
    assert 1 not in ranked[3][0].order


@pytest.mark.parametrize("exhaustive", [0, 6])
def test_a_node_without_memory_is_left_out(exhaustive: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brigade.partition.order.EXHAUSTIVE_NODES", exhaustive)
    ranked = rank_orders(even_fleet(4, 8, memory_bytes=[10**6, 50, 10**6, 10**6]).measurements().tables(), None)
    assert list(ranked) == [1, 2, 3]
    assert all(1 not in splits[0].order for splits in ranked.values())
