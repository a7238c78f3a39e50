"""The best cuts of a chain for nodes in a given order: exact, by dynamic programming.

Chains-on-chains partitioning with heterogeneous processors (Pinar, Tabak, Aykanat 2008) with boundary costs and memory
limits: first the smallest possible bottleneck, then, among cuts that nearly reach it, the fastest passage of one
microbatch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

NEAR = 1.01  # cuts within 1 % of the smallest bottleneck count as equal: measurements are no better


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
    stages, blocks = len(order), tables.blocks
    if stages > blocks:
        return None
    in_flight = tables.in_flight(stages)
    compute = [tables.stage_s(node, in_flight[k]) for k, node in enumerate(order)]
    transfer = [tables.transfer_s[order[k], order[k + 1]] for k in range(stages - 1)]
    least = _least_bottleneck(compute, transfer)
    if not np.isfinite(least):
        return None
    limit = least * NEAR
    compute = [np.where(table <= limit, table, np.inf) for table in compute]
    hops = [np.where(transfer[k] <= limit, tables.hop_s[order[k], order[k + 1]], np.inf) for k in range(stages - 1)]
    passage, cuts = _fastest_passage(compute, hops)
    bottleneck = max(
        *(float(compute[k][cuts[k], cuts[k + 1]]) for k in range(stages)),
        *(float(transfer[k][cuts[k + 1]]) for k in range(stages - 1)),
        0.0,
    )
    return Split(order, cuts, least, bottleneck, passage)


def _least_bottleneck(compute: list[Seconds], transfer: list[Seconds]) -> float:
    """Return min over cuts of max over stages and transfers."""
    best = compute[-1][:, -1]  # [a]: the rest of the chain, from block a on
    for table, boundary in zip(compute[-2::-1], transfer[::-1], strict=True):
        best = np.maximum(table, np.maximum(boundary, best)[None, :]).min(axis=1)
    return float(best[0])


def _fastest_passage(compute: list[Seconds], hops: list[Seconds]) -> tuple[float, tuple[int, ...]]:
    """Return min over cuts of the sum over stages and hops, and these cuts."""
    blocks = compute[0].shape[0] - 1
    best = compute[-1][:, -1]
    choices: list[NDArray[np.intp]] = []
    for table, boundary in zip(compute[-2::-1], hops[::-1], strict=True):
        total = table + (boundary + best)[None, :]
        choices.append(total.argmin(axis=1))
        best = total.min(axis=1)
    cuts = [0]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    return float(best[0]), (*cuts, blocks)
