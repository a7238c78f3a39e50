"""The best that any pipeline could do on these devices and links: the shortest period over all orders and cuts.

A bound for what a run is measured against, not a plan: latency, memory and numbers in flight do not lengthen a period.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from brigade.partition.line import Access
from brigade.wire.errors import PlanError

Seconds = NDArray[np.float64]

EXACT_NODES = 12  # every set of nodes is tried up to here: 2^12 sets
CHUNK_BYTES = 32 << 20  # of intermediate tables


@dataclass(frozen=True, slots=True)
class PeriodBound:
    """No pipeline has a shorter period; where `exact`, blocks [cuts[k], cuts[k+1]) on node order[k] reach it."""

    period_s: float
    exact: bool
    order: tuple[int, ...] = ()
    cuts: tuple[int, ...] = ()


def best_period(
    block_s: Seconds,
    activation_bytes: Sequence[float],
    gradient_bytes: Sequence[float],
    accesses: Sequence[Access],
    link_bytes_per_s: Seconds | None = None,
) -> PeriodBound:
    """Return the shortest period over every choice, order and cut of nodes, one stage a node.

    `block_s` is [node, block]: forward and backward of one microbatch, inf where a node cannot hold a block. Bytes are
    by boundary between blocks, one fewer than blocks; `link_bytes_per_s` is [from, to] where pairs are limited as well.
    Exact up to 12 nodes; beyond that a valid bound from devices alone. Raises PlanError when nothing fits.
    """
    nodes, blocks = block_s.shape
    if nodes < 1 or blocks < 1 or len(accesses) != nodes:
        raise PlanError(f"{nodes} nodes with {len(accesses)} accesses and {blocks} blocks make no pipeline")
    if not len(activation_bytes) == len(gradient_bytes) == blocks - 1:
        raise PlanError(f"{blocks} blocks have {blocks - 1} boundaries")
    if nodes > EXACT_NODES:
        return PeriodBound(_devices_alone(block_s), exact=False)
    tables = _stage_tables(block_s, activation_bytes, gradient_bytes, accesses)
    pairs = _pair_tables(nodes, activation_bytes, gradient_bytes, link_bytes_per_s)
    best = _best_of_sets(tables, pairs)
    period_s = float(best[:, :, blocks].min())
    if not math.isfinite(period_s):
        raise PlanError("no choice of nodes can hold all blocks")
    return PeriodBound(period_s, True, *_walk_back(best, tables, pairs, period_s))


def _devices_alone(block_s: Seconds) -> float:
    """Return a bound without links: each block somewhere, and all work shared out, however blocks are split.

    For any weights that add up to 1, the slowest node takes at least the weighted mean of all nodes' work, and that is
    at least the sum over blocks of the least weighted time; weights by speed are best where nodes differ by a factor.
    """
    if not np.isfinite(block_s).any(axis=0).all():
        raise PlanError("no choice of nodes can hold all blocks")
    mean = np.array([row[np.isfinite(row)].mean() if np.isfinite(row).any() else math.inf for row in block_s])
    if (mean == 0).any():
        return 0.0
    weights = (1 / mean) / (1 / mean).sum()
    used = weights > 0
    shared = float((weights[used, None] * block_s[used]).min(axis=0).sum())
    return max(shared, float(block_s.min(axis=0).max()))


def _stage_tables(
    block_s: Seconds, activation_bytes: Sequence[float], gradient_bytes: Sequence[float], accesses: Sequence[Access]
) -> Seconds:
    """Return [node, a, b]: the busiest of device and port with blocks [a, b); inf where a >= b."""
    nodes, blocks = block_s.shape
    activation = np.array([0.0, *activation_bytes, 0.0])
    gradient = np.array([0.0, *gradient_bytes, 0.0])
    out = activation[None, :] + gradient[:, None]
    into = activation[:, None] + gradient[None, :]
    tables = np.full((nodes, blocks + 1, blocks + 1), math.inf)
    above = np.triu(np.ones((blocks + 1, blocks + 1), dtype=bool), k=1)
    for node, access in enumerate(accesses):
        up_s, down_s = out / access.up_bytes_per_s, into / access.down_bytes_per_s
        port_s = up_s + down_s if access.half_duplex else np.maximum(up_s, down_s)
        for first in range(blocks):
            tables[node, first, first + 1 :] = np.cumsum(block_s[node, first:])
        tables[node] = np.where(above, np.maximum(tables[node], port_s), math.inf)
    return tables


def _pair_tables(
    nodes: int, activation_bytes: Sequence[float], gradient_bytes: Sequence[float], rates: Seconds | None
) -> Seconds:
    """Return [node, next node, boundary]: seconds of the slower direction of the link between them."""
    activation = np.array([0.0, *activation_bytes, 0.0])
    gradient = np.array([0.0, *gradient_bytes, 0.0])
    if rates is None:
        return np.zeros((nodes, nodes, len(activation)))
    with np.errstate(divide="ignore", invalid="ignore"):
        there = np.where(activation > 0, activation / rates[:, :, None], 0.0)
        back = np.where(gradient > 0, gradient / rates.T[:, :, None], 0.0)
    return np.maximum(there, back)


def _best_of_sets(tables: Seconds, pairs: Seconds) -> Seconds:
    """Return [set of nodes, last node, b]: the shortest period of blocks [0, b) on exactly this set, ending there."""
    nodes, width = tables.shape[0], tables.shape[1]
    best = np.full((1 << nodes, nodes, width), math.inf)
    for node in range(nodes):
        best[1 << node, node] = tables[node, 0]
    for size in range(2, min(nodes, width - 1) + 1):
        sets = np.array([sum(1 << node for node in chosen) for chosen in combinations(range(nodes), size)])
        for node in range(nodes):
            mine = sets[(sets >> node) & 1 == 1]
            for part in _parts(mine, width):
                before = best[part ^ (1 << node)]  # [set, previous node, a]
                reached = np.maximum(before, pairs[:, node][None]).min(axis=1)
                best[part, node] = np.maximum(reached[:, :, None], tables[node][None]).min(axis=1)
    return best


def _parts(sets: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
    count = max(1, CHUNK_BYTES // (8 * width * width))
    for first in range(0, len(sets), count):
        yield sets[first : first + count]


def _walk_back(
    best: Seconds, tables: Seconds, pairs: Seconds, period_s: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return an order and cuts with this period, the one with the fewest stages."""
    blocks = tables.shape[1] - 1
    ends = np.argwhere(best[:, :, blocks] <= period_s)
    chosen, node = min(((int(s), int(n)) for s, n in ends), key=lambda end: (end[0].bit_count(), end))
    order, cuts, end = [node], [blocks], blocks
    while chosen != 1 << node:
        rest = chosen ^ (1 << node)
        reached = np.maximum(best[rest], pairs[:, node])  # [previous node, a]
        fits = (reached <= period_s) & (tables[node, :, end] <= period_s)[None, :]
        previous, first = (int(value) for value in np.argwhere(fits)[0])
        order.append(previous)
        cuts.append(first)
        chosen, node, end = rest, previous, first
    return tuple(reversed(order)), (0, *reversed(cuts))
