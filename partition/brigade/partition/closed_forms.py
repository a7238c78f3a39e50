"""What a line of stages can do at best, and how much in flight that takes: formulas, no events.

Notation of the formulas: f, b forward and backward seconds of a stage, c = f + b; C the round trip of a hop (both
values on the line, both ways, encoding and decoding); w_k the forwards that stage k runs before its first backward.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brigade.partition.line import Line, Server
from brigade.wire.errors import PlanError

SHARP = 1e-9  # relative: a ratio this little above a whole number is that number


@dataclass(frozen=True, slots=True)
class Capacity:
    """The shortest possible period, and the server that allows no shorter one."""

    period_s: float
    limited_by: Server


def capacity(line: Line) -> Capacity:
    """Return T*: no schedule of these stages passes a microbatch in less time than its busiest server needs.

    A shared uplink carries activation k and gradient k-1, a downlink activation k-1 and gradient k, a half-duplex pipe
    all four. The optimizer is not in it: it is spent once an update, not once a microbatch.
    """
    loads = line.loads()
    if not loads:
        return Capacity(0.0, Server("compute", 0))
    server = max(sorted(loads), key=lambda name: loads[name])
    return Capacity(loads[server], server)


def passage_s(line: Line, stage: int = 0) -> float:
    """Return R_k: from the start of a forward at `stage` to the end of its backward there, without any queue."""
    ends_s = sum(time.reply_s for time in line.stages[stage:]) + line.stages[stage].weights_s
    return ends_s + sum(line.hop_round_trip_s(hop) for hop in range(stage, len(line.hops)))


def in_flight_depths(line: Line, period_s: float) -> tuple[int, ...]:
    """Return for each stage the microbatches in flight that a period takes at least: ceil(R_k / T) (Little's law)."""
    return tuple(_ceil(passage_s(line, stage) / period_s) for stage in range(len(line.stages)))


def capped_period_s(line: Line, in_flight: int) -> float:
    """Return the least period with at most `in_flight` microbatches between the first forward and the last backward."""
    return max(capacity(line).period_s, passage_s(line) / in_flight)


def plain_warm_ups(stages: int) -> tuple[int, ...]:
    """Return the warm-ups of plain 1F1B: as many as stages follow."""
    return tuple(range(stages - 1, -1, -1))


def period_s(line: Line, warm_ups: Sequence[int]) -> float:
    """Return T(w), the period of strict alternation after `warm_ups[k]` forwards at stage k; inf where it deadlocks.

    The order is a marked graph; its elementary cycles are the pairs k < j: forwards from k to j, backwards from j to k,
    carrying w_k - w_j + 1 microbatches. Exact where each direction of a hop has its own line; where a port is shared,
    values also wait for each other and this is a lower bound.
    """
    if len(warm_ups) != len(line.stages):
        raise PlanError(f"{len(line.stages)} stages need as many warm-ups, not {len(warm_ups)}")
    cycles = _cycle_seconds(line)
    w = np.asarray(warm_ups)
    tokens = w[:, None] - w[None, :] + 1
    pairs = np.triu(np.ones_like(tokens, dtype=bool), k=1)
    if (tokens[pairs] < 1).any():
        return math.inf
    slowest = float((cycles[pairs] / tokens[pairs]).max(initial=0.0))
    return max(capacity(line).period_s, slowest)


def minimal_warm_ups(line: Line, period_s: float) -> tuple[int, ...]:
    """Return the smallest warm-ups with which strict alternation reaches `period_s` (T* or more).

    w_k = max(w_{k+1}, max over j > k of w_j + ceil(cycle seconds of (k, j) / T) - 1), from the last stage, which has 0.
    Too few where ports are shared or times vary: plan for 0.8 or 0.9 of the period then, with slack.
    Where the backward is split, a cycle passes forwards and input gradients, and the rest of the backward only where
    it closes.
    """
    if not period_s > 0:
        raise PlanError(f"a period is positive, not {period_s}")
    cycles = _cycle_seconds(line)
    count = len(line.stages)
    warm_ups = [0] * count
    for k in range(count - 2, -1, -1):
        needed = (warm_ups[j] + _ceil(cycles[k, j] / period_s) - 1 for j in range(k + 1, count))
        warm_ups[k] = max(warm_ups[k + 1], *needed)
    return tuple(warm_ups)


def makespan_bound_s(line: Line, warm_ups: Sequence[int], microbatches: int) -> float:
    """Return R_0 + (m - 1) T(w): no step of m microbatches with a flush at its end takes longer.

    For the warm-ups of strict alternation on hops of their own; values that share a port or a codec thread may wait a
    little longer. The optimizer and what else follows the last backward come on top.
    """
    return passage_s(line) + (microbatches - 1) * period_s(line, warm_ups)


def flush_microbatches(line: Line, period_s: float, efficiency: float) -> int:
    """Return how many microbatches a step with a flush needs for this share of the period's rate."""
    if not 0 < efficiency < 1:
        raise PlanError(f"an efficiency lies between 0 and 1, not {efficiency}")
    return max(1, _ceil(efficiency * (passage_s(line) / period_s - 1) / (1 - efficiency)))


def delay(warm_up: int, per_update: int) -> int:
    """Return the most updates between the forward and the backward of one microbatch, one update every `per_update`."""
    return -(-warm_up // per_update)


def gate_is_free(
    warm_ups: Sequence[int], per_update: int, versions: int, update_s: float = 0.0, period_s: float = math.inf
) -> bool:
    """Tell whether `versions` weight versions, an update every `per_update` microbatches, never hold a forward up.

    Forwards of batch g wait for the update of batch g - versions; `update_s` passes between the last backward of a
    batch and its new weights (norm round, all-reduce, optimizer).
    """
    return all(overlap_budget_s(warm_up, per_update, versions, period_s) >= update_s for warm_up in warm_ups)


def overlap_budget_s(warm_up: int, per_update: int, versions: int, period_s: float) -> float:
    """Return how long an update may take at a stage before forwards wait for it; negative: microbatches too few.

    ((V - 1) K - w_k) T, counted in whole periods.
    """
    spare = (versions - 1) * per_update - warm_up
    return spare * period_s if spare else 0.0


def least_per_update(warm_up: int, versions: int, update_s: float = 0.0, period_s: float = math.inf) -> int:
    """Return the fewest microbatches an update with which the gate never holds a forward up."""
    if versions < 2:
        raise PlanError("with one weight version every update holds forwards up, whatever the number of microbatches")
    return max(1, -(-(warm_up + _ceil(update_s / period_s)) // (versions - 1)))


def stall_loss_s(
    line: Line,
    stage: int,
    stall_s: float,
    period_s: float,
    warm_ups: Sequence[int],
    slack: int,
    headroom_s: float = 0.0,
) -> float:
    """Return about how much time a run loses when a stage stands still for `stall_s`, roughly.

    `period_s` is T*; what a stage has in flight beyond the minimal warm-ups keeps the slowest stage going.
    `headroom_s` is what the stage catches up besides. A stage that is as slow as the slowest never catches up.
    """
    if line.stages[stage].compute_s >= period_s * (1 - SHARP):
        return stall_s
    spare = warm_ups[stage] + slack - minimal_warm_ups(line, period_s)[stage]
    return max(0.0, stall_s - spare * period_s - headroom_s)


def _cycle_seconds(line: Line) -> NDArray[np.float64]:
    """Return at [k, j], k <= j, the seconds of the cycle that goes forward from k to j and back; else meaningless."""
    reply = np.concatenate([[0.0], np.cumsum([time.reply_s for time in line.stages])])
    hops = np.concatenate([[0.0], np.cumsum([line.hop_round_trip_s(hop) for hop in range(len(line.hops))])])
    closing = np.array([time.weights_s for time in line.stages])
    cycles: NDArray[np.float64] = reply[None, 1:] - reply[:-1, None] + hops[None, :] - hops[:, None] + closing[:, None]
    return cycles


def _ceil(ratio: float) -> int:
    return math.ceil(ratio * (1 - SHARP))
