"""In which order, and which, nodes stand in the line.

The best order is NP-complete to find: few nodes are tried in every order; for many, a first order by nearest neighbour
gives up one node after the other, and moves make it better on the way, most of all where a step is shortest. Moves are
sketched all at once; the most promising ones are solved exactly. Work is counted in numbers of the tables, never in
seconds, so that the result is the same on every machine.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from brigade.partition.fixed_order import CostTables, Orders, Seconds, Split, shortest_steps, solve_order, solve_orders

EXHAUSTIVE_NODES = 6
WORK_ON_THE_WAY = 1 << 19  # for each number of stages
EVERY_COUNT = 16  # up to so many; beyond it, where one node more or less matters little, for every fourth number
WORK_AT_THE_BEST = 1 << 22
BEST_COUNTS = 4  # numbers of stages that are looked at more closely


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
        orders = np.array(list(permutations(range(tables.nodes), count)), dtype=np.intp)
        yield from filter(None, solve_orders(tables, orders))


def _searched_orders(tables: CostTables, stages: int | None) -> Iterator[Split]:
    """Drop the node that is missed least, again and again; then look closely at the best numbers of stages."""
    sketch = Sketch(tables)
    found: list[tuple[float, Orders]] = []
    order = _first_best(tables, sketch.chains()) if len(sketch.nodes) else sketch.nodes
    while len(order):
        if len(order) <= EVERY_COUNT or len(order) % 4 == 0 or len(order) == stages:
            order = _moved_for_better(tables, sketch, order, WORK_ON_THE_WAY)
        split = solve_order(tables, tuple(order.tolist()))
        if split is not None and stages in {None, len(order)}:
            found.append((split.estimate_s(tables.microbatches), order))
            yield split
        if len(order) == (stages or 1):
            break
        order = _without_least_missed(tables, order)
    for _, order in sorted(found, key=lambda each: (each[0], len(each[1])))[:BEST_COUNTS]:
        better = _moved_for_better(tables, sketch, order, WORK_AT_THE_BEST)
        yield from filter(None, solve_orders(tables, better[None, :]))


class Sketch:
    """What an order costs at a rough guess, for many orders at once; `nodes` are those that can be of use."""

    def __init__(self, tables: CostTables) -> None:
        block_s = tables.stack(1).diagonal(-1, axis1=1, axis2=2)  # [node, block]
        finite = np.isfinite(block_s)
        count = finite.sum(axis=1)
        self._mean_s = np.where(finite, block_s, 0.0).sum(axis=1) / np.maximum(count, 1)
        useful = [node for node in range(tables.nodes) if count[node]]
        fastest = sorted(useful, key=lambda node: (self._mean_s[node], node))
        self.nodes: Orders = np.array(sorted(fastest[: tables.blocks]), dtype=np.intp)  # at most one a block
        inner = slice(1, -1) if tables.blocks > 1 else slice(0, 1)
        # A finite number for what cannot be, so that one impossible link is better than two.
        self._hop_s = np.minimum(np.median(tables.hop_s[:, :, inner], axis=2), 1e9)
        self._transfer_s = np.minimum(np.median(tables.transfer_s[:, :, inner], axis=2), 1e9)
        self._blocks, self._beats = tables.blocks, tables.microbatches - 1

    def chains(self) -> Orders:
        """Return for each node the order that begins with it and goes on with the nearest one that is left."""
        hop_s = self._hop_s[np.ix_(self.nodes, self.nodes)]
        count = len(self.nodes)
        chains = np.empty((count, count), dtype=np.intp)
        chains[:, 0] = here = rows = np.arange(count)
        taken = np.zeros((count, count), dtype=np.bool_)
        for place in range(1, count):
            taken[rows, here] = True
            here = np.where(taken, np.inf, hop_s[here]).argmin(axis=1)
            chains[:, place] = here
        return self.nodes[chains]

    def promising(self, orders: Orders, most: int) -> Orders:
        """Return the orders that look best, at most so many: by links, and by the beat of the devices together."""
        if len(orders) <= most:
            return orders
        near, far = orders[:, :-1], orders[:, 1:]
        with np.errstate(divide="ignore"):
            device_s = self._blocks / (1.0 / self._mean_s[orders]).sum(axis=1)
        beat_s = np.maximum(device_s, self._transfer_s[near, far].max(axis=1, initial=0.0))
        guess_s = self._hop_s[near, far].sum(axis=1) + self._beats * beat_s
        return orders[np.argsort(guess_s, kind="stable")[:most]]


def _moved_for_better(tables: CostTables, sketch: Sketch, order: Orders, work: int) -> Orders:
    """Make the best move again and again, as long as that makes a step shorter and until so much work is done."""
    score = shortest_steps(tables, order[None, :])[0]
    while True:
        moved = _moves(order, np.setdiff1d(sketch.nodes, order))
        moved = sketch.promising(moved, max(1, work // (2 * tables.cells(len(order)))))
        work -= len(moved) * tables.cells(len(order))
        if not len(moved) or work < 0:
            return order
        moved_scores = shortest_steps(tables, moved)
        best = int(moved_scores.argmin())
        if not moved_scores[best] < score:
            return order
        order, score = moved[best], moved_scores[best]


def _moves(order: Orders, spare: Orders) -> Orders:
    """Return the orders that one move makes: a part reversed, a node elsewhere, a spare node instead of another."""
    count, places = len(order), np.arange(len(order))
    first, last = (ends[:, np.newaxis] for ends in np.triu_indices(count, k=1))
    inside = (first <= places) & (places <= last)
    reverse = np.where(inside, first + last - places, places)
    far = np.flatnonzero(last.ravel() - first.ravel() > 1)  # the neighbours of a node change places by a reversal
    onward = np.where(inside, np.where(places == last, first, places + 1), places)[far]
    back = np.where(inside, np.where(places == first, last, places - 1), places)[far]
    moved = order[np.concatenate([reverse, onward, back])]
    replaced = np.repeat(order[None, :], count * len(spare), axis=0)
    replaced[np.arange(len(replaced)), np.repeat(places, len(spare))] = np.tile(spare, count)
    return np.concatenate([moved, replaced])


def _without_least_missed(tables: CostTables, order: Orders) -> Orders:
    """Drop one node: the one without which a step is shortest, or while nothing fits, the one that least fits in."""
    rests = np.stack([np.delete(order, place) for place in range(len(order))])
    return _first_best(tables, rests)


def _first_best(tables: CostTables, orders: Orders) -> Orders:
    """Return the order with the shortest step; while nothing fits, that with the most links that work and most room."""
    score_s: Seconds = shortest_steps(tables, orders)
    if np.isfinite(score_s).any():
        ties = np.flatnonzero(score_s == score_s.min())
    else:
        works = np.asarray(np.isfinite(tables.hop_s).any(axis=2))
        room = np.asarray(np.isfinite(tables.stack(1)).sum(axis=(1, 2)))
        merits = [(int(works[np.ix_(order, order)].sum()), int(room[order].sum())) for order in orders]
        best = max(merits)
        ties = np.array([number for number, merit in enumerate(merits) if merit == best])
    return min((orders[number] for number in ties), key=lambda order: tuple(order.tolist()))
