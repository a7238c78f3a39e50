"""In which order, and which, nodes stand in the line.

The best order is NP-complete to find: few nodes are tried in every order, many by nearest neighbour and reversal moves.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from brigade.partition.fixed_order import CostTables, Split, solve_order

EXHAUSTIVE_NODES = 6
MOST_SWEEPS = 2  # over all reversals, for each number of stages


def rank_orders(tables: CostTables, stages: int | None, keep: int = 1) -> dict[int, list[Split]]:
    """Return for each number of stages (or for `stages` only) the best splits, best first, at most `keep`.

    Numbers of stages for which nothing fits are absent. Deterministic.
    """
    search = _every_order if tables.nodes <= EXHAUSTIVE_NODES else _searched_orders
    ranked: dict[int, list[Split]] = {}
    for split in search(tables, stages):
        ranked.setdefault(len(split.order), []).append(split)
    return {count: _best(splits, tables.microbatches)[:keep] for count, splits in sorted(ranked.items())}


def _best(splits: list[Split], microbatches: int) -> list[Split]:
    unique = {split.order: split for split in splits}
    return sorted(unique.values(), key=lambda split: (split.estimate_s(microbatches), split.order))


def _every_order(tables: CostTables, stages: int | None) -> Iterator[Split]:
    counts = range(1, min(tables.nodes, tables.blocks) + 1) if stages is None else [stages]
    for count in counts:
        for order in permutations(range(tables.nodes), count):
            split = solve_order(tables, order)
            if split is not None:
                yield split


def _searched_orders(tables: CostTables, stages: int | None) -> Iterator[Split]:
    """Order all nodes that can be of use, then drop the one that is missed least, again and again."""
    block_s = {node: tables.stage_s(node, 1).diagonal(1) for node in range(tables.nodes)}
    nodes = [node for node, seconds in block_s.items() if np.isfinite(seconds).any()]
    nodes.sort(key=lambda node: (float(np.mean(block_s[node][np.isfinite(block_s[node])])), node))
    nodes = sorted(nodes[: tables.blocks])  # at most one a block: the fastest
    chains = [_nearest_neighbours(tables, nodes, start) for start in nodes]
    order = min(chains, key=lambda chain: (_score(tables, chain), chain), default=())
    while order:
        order = _reversed_for_better(tables, order)
        split = solve_order(tables, order)
        if split is not None and stages in {None, len(order)}:
            yield split
        if len(order) == (stages or 1):
            return
        order = _without_least_missed(tables, order)


def _nearest_neighbours(tables: CostTables, nodes: list[int], start: int) -> tuple[int, ...]:
    cost = np.median(tables.hop_s[:, :, 1:-1], axis=2) if tables.blocks > 1 else tables.hop_s[:, :, 0]
    chain, left = [start], [node for node in nodes if node != start]
    while left:
        nearest = min(left, key=lambda node: (cost[chain[-1], node], node))
        chain.append(nearest)
        left.remove(nearest)
    return tuple(chain)


def _reversed_for_better(tables: CostTables, order: tuple[int, ...]) -> tuple[int, ...]:
    """Reverse parts of the order (2-opt) as long as that makes a step shorter."""
    score = _score(tables, order)
    for _ in range(MOST_SWEEPS):
        before = score
        for first in range(len(order) - 1):
            for end in range(first + 2, len(order) + 1):
                moved = order[:first] + order[first:end][::-1] + order[end:]
                moved_score = _score(tables, moved)
                if moved_score < score:
                    order, score = moved, moved_score
        if not score < before:
            break
    return order


def _without_least_missed(tables: CostTables, order: tuple[int, ...]) -> tuple[int, ...]:
    """Drop one node: the one without which a step is shortest, or while nothing fits, the one that least fits in."""
    rests = [order[:k] + order[k + 1 :] for k in range(len(order))]
    return min(
        rests, key=lambda rest: (_score(tables, rest), -_working_links(tables, rest), -_room(tables, rest), rest)
    )


def _working_links(tables: CostTables, order: tuple[int, ...]) -> int:
    return int(np.isfinite(tables.hop_s[np.ix_(order, order)]).any(axis=2).sum())


def _room(tables: CostTables, order: tuple[int, ...]) -> int:
    return sum(int(np.isfinite(tables.stage_s(node, 1)).sum()) for node in order)


def _score(tables: CostTables, order: tuple[int, ...]) -> float:
    split = solve_order(tables, order)
    return np.inf if split is None else split.estimate_s(tables.microbatches)
