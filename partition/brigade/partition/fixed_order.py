"""The best cuts of a chain for nodes in a given order: exact, by dynamic programming, for many orders at once.

Chains-on-chains partitioning with heterogeneous processors (Pinar, Tabak, Aykanat 2008) with boundary costs and memory
limits: first the smallest possible bottleneck, then, among cuts that nearly reach it, the fastest passage of one
microbatch. As every stage has a block, the cut in front of stage k of s lies within [k, blocks - s + k]: only that
window is looked at.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Orders = NDArray[np.intp]  # [order, stage]: node

NEAR = 1.01  # cuts within 1 % of the smallest bottleneck count as equal: measurements are no better
CHUNK = 1 << 16  # numbers in a table that is worked on at a time, so that it stays in the processor's cache
FIRST_SOLVED = 8  # of many orders; then twice as many, until a bound shows that the others are worse


@dataclass(frozen=True, slots=True)
class CostTables:
    """What runs of blocks and links cost; nodes are numbers, and `inf` means that it cannot be.

    Boundary b is in front of block b.
    """

    nodes: int
    blocks: int
    microbatches: int
    stage_s: Callable[[int, int], Seconds]  # (node, in flight) -> [a, b]: one microbatch through blocks [a, b)
    transfer_s: Seconds  # [node, next node, b]: the slower of activation and gradient at boundary b
    hop_s: Seconds  # [node, next node, b]: activation, gradient and the way there and back
    in_flight: Callable[[int], tuple[int, ...]]  # number of stages -> microbatches in flight at each
    _stacks: dict[int | tuple[int, ...], Seconds] = field(default_factory=dict, repr=False, compare=False)

    def stack(self, in_flight: int) -> Seconds:
        """Return [node, b, a]: one microbatch through blocks [a, b) on every node."""
        if in_flight not in self._stacks:
            tables = [self.stage_s(node, in_flight) for node in range(self.nodes)]
            alike = tuple(map(id, tables))  # the same tables for all numbers in flight for which memory is no limit
            if alike not in self._stacks:
                self._stacks[alike] = np.ascontiguousarray(np.stack(tables).transpose(0, 2, 1))
            self._stacks[in_flight] = self._stacks[alike]
        return self._stacks[in_flight]

    def cells(self, stages: int) -> int:
        """Return how many numbers are looked at to solve one order of so many stages."""
        return stages * (self.blocks - stages + 1) ** 2


@dataclass(frozen=True, slots=True)
class Split:
    """Blocks [cuts[k], cuts[k+1]) on node order[k]."""

    order: tuple[int, ...]
    cuts: tuple[int, ...]
    least_bottleneck_s: float  # the smallest that this order allows
    bottleneck_s: float  # of these cuts: the slowest stage or transfer
    passage_s: float  # of one microbatch alone through all stages and back

    def estimate_s(self, microbatches: int) -> float:
        """Return about how long a step takes: one passage, then one microbatch at each beat of the bottleneck."""
        return self.passage_s + (microbatches - 1) * self.bottleneck_s


def solve_order(tables: CostTables, order: tuple[int, ...]) -> Split | None:
    """Return the best cuts for a stage on each node of `order`; None when nothing fits."""
    return solve_orders(tables, np.array([order], dtype=np.intp))[0]


def solve_orders(tables: CostTables, orders: Orders) -> list[Split | None]:
    """Return the best cuts of each of these orders, all of the same length; None where nothing fits."""
    return _splits(tables, orders, _least_bottlenecks(tables, orders))


def shortest_steps(tables: CostTables, orders: Orders) -> Seconds:
    """Return about how long a step takes with each of these orders, exact for the best of them.

    `inf` where nothing fits, and where a bound shows that another order is better.
    """
    steps = np.full(len(orders), np.inf)
    least = _least_bottlenecks(tables, orders)
    # No passage is shorter than every block and every hop where it takes least.
    bounds = (tables.microbatches - 1) * least
    bounds += tables.stack(1).diagonal(-1, axis1=1, axis2=2).min(axis=0).sum()
    bounds += tables.hop_s.min(axis=2)[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    bounds *= 1 - 1e-9  # sums in another order
    rank = np.argsort(bounds, kind="stable")
    best, first, count = np.inf, 0, FIRST_SOLVED
    while first < len(rank):
        chosen = rank[first : first + count]
        chosen = chosen[np.isfinite(least[chosen]) & (bounds[chosen] <= best)]
        if not len(chosen):
            break
        splits = _splits(tables, orders[chosen], least[chosen])
        steps[chosen] = [np.inf if split is None else split.estimate_s(tables.microbatches) for split in splits]
        best = min(best, float(steps[chosen].min()))
        first, count = first + count, 2 * count
    return steps


def _least_bottlenecks(tables: CostTables, orders: Orders) -> Seconds:
    return np.concatenate([np.empty(0), *(window.least_bottlenecks() for window, _ in _windows(tables, orders))])


def _splits(tables: CostTables, orders: Orders, least: Seconds) -> list[Split | None]:
    return [split for window, group in _windows(tables, orders) for split in window.splits(least[group])]


def _windows(tables: CostTables, orders: Orders) -> Iterator[tuple["_Window", slice]]:
    """Yield the orders in groups whose tables are small, and where each group is."""
    width = max(1, tables.blocks - orders.shape[1] + 1)
    chunk = max(1, CHUNK // width**2)
    for first in range(0, len(orders), chunk):
        group = slice(first, first + chunk)
        yield _Window(tables, orders[group]), group


class _Window:
    """Some orders of one length; tables are [order, j, i] with a = k + i and b = k + 1 + j at stage k."""

    def __init__(self, tables: CostTables, orders: Orders) -> None:
        self._tables = tables
        self.orders = orders
        self._stages = orders.shape[1]
        self._width = tables.blocks - self._stages + 1
        in_flight = tables.in_flight(self._stages)
        stacks = {number: tables.stack(number) for number in set(in_flight)}
        self._stacks: Sequence[Seconds] = [stacks[number] for number in in_flight]

    def _compute(self, stage: int) -> Seconds:
        """Return what the stage takes for every first and last block of the window."""
        near, far = stage, stage + self._width
        return self._stacks[stage][self.orders[:, stage], near + 1 : far + 1, near:far]

    def _links(self, table: Seconds, stage: int) -> Seconds:
        """Return what `table` says of the link behind a stage, at every boundary of the window."""
        here, there = self.orders[:, stage], self.orders[:, stage + 1]
        links: Seconds = table[here, there, stage + 1 : stage + 1 + self._width]
        return links

    def splits(self, least: Seconds) -> list[Split | None]:
        """Return the best cuts of each order, whose least bottlenecks are known."""
        if self._width < 1:
            return [None] * len(self.orders)
        passage, firsts = self._fastest_passages(least * NEAR)
        bottleneck = self._bottlenecks(firsts)
        cuts = firsts + np.arange(self._stages)
        return [
            Split(tuple(order), (*cut, self._tables.blocks), smallest, slowest, seconds)
            if np.isfinite(smallest)
            else None
            for order, cut, smallest, slowest, seconds in zip(
                self.orders.tolist(), cuts.tolist(), least.tolist(), bottleneck.tolist(), passage.tolist(), strict=True
            )
        ]

    def least_bottlenecks(self) -> Seconds:
        """Return min over cuts of max over stages and transfers."""
        if self._width < 1:
            return np.full(len(self.orders), np.inf)
        best = self._compute(self._stages - 1)[:, -1, :]  # [order, i]: the rest of the chain, from block a on
        for stage in range(self._stages - 2, -1, -1):
            onward = np.maximum(self._links(self._tables.transfer_s, stage), best)
            compute = self._compute(stage)
            best = np.maximum(compute, onward[:, :, None], out=compute).min(axis=1)
        least: Seconds = best[:, 0]
        return least

    def _fastest_passages(self, limit: Seconds) -> tuple[Seconds, NDArray[np.intp]]:
        """Return min over cuts of the sum over stages and hops, and the [order, stage] windows' places of these cuts.

        Only stages and transfers within `limit` count.
        """
        last = self._compute(self._stages - 1)[:, -1, :]
        best = np.where(last <= limit[:, None], last, np.inf)
        choices: list[NDArray[np.intp]] = []
        for stage in range(self._stages - 2, -1, -1):
            fits = self._links(self._tables.transfer_s, stage) <= limit[:, None]
            onward = np.where(fits, self._links(self._tables.hop_s, stage) + best, np.inf)
            compute = self._compute(stage)
            np.copyto(compute, np.inf, where=compute > limit[:, None, None])
            compute += onward[:, :, None]
            choices.append(compute.argmin(axis=1))
            best = np.take_along_axis(compute, choices[-1][:, None, :], axis=1)[:, 0, :]
        place = np.zeros(len(limit), dtype=np.intp)
        firsts = [place]
        for choice in reversed(choices):
            place = choice[np.arange(len(limit)), place]
            firsts.append(place)
        return best[:, 0], np.stack(firsts, axis=1)

    def _bottlenecks(self, firsts: NDArray[np.intp]) -> Seconds:
        """Return the slowest stage or transfer of these cuts."""
        blocks = self._tables.blocks
        slowest = np.zeros(len(firsts))
        cuts = firsts + np.arange(self._stages)
        for stage in range(self._stages):
            node, first = self.orders[:, stage], cuts[:, stage]
            end = cuts[:, stage + 1] if stage + 1 < self._stages else np.full(len(first), blocks)
            slowest = np.maximum(slowest, self._stacks[stage][node, end, first])
            if stage + 1 < self._stages:
                slowest = np.maximum(slowest, self._tables.transfer_s[node, self.orders[:, stage + 1], end])
        return slowest
