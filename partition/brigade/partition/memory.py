"""How many bytes a stage needs on its node."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from brigade.wire.costs import BlockCost

USABLE_SHARE = 0.9  # of a node's memory; the rest is for fragments, the process and what the model does not state
COPIES_IN_QUEUES = 4  # at each boundary: one value coming, one going, each as tensor and as encoded frames


def needed_bytes(
    blocks: Sequence[BlockCost], in_flight: int, versions: int = 1, overlapping: bool = False
) -> NDArray[np.int64]:
    """Return the bytes that a stage of blocks [a, b) needs, at [a, b]; entries with a >= b mean nothing.

    So many versions of the weights, gradients of a step (of two where steps overlap), optimizer state; what the
    backward needs for `in_flight` microbatches and for the one being worked on; queues at both boundaries.
    """
    sums = 2 if overlapping else 1
    persistent = _sums(
        [versions * block.parameter_bytes + sums * block.gradient_bytes + block.optimizer_bytes for block in blocks]
    )
    saved = _sums([block.saved_bytes for block in blocks])
    crossing = np.array([0, *(block.output_bytes for block in blocks[:-1]), 0], dtype=np.int64)
    queues = COPIES_IN_QUEUES * np.add.outer(crossing, crossing)
    needed: NDArray[np.int64] = persistent + (in_flight + 1) * saved + queues
    return needed


def usable_bytes(memory_bytes: int) -> int:
    """Return how much of a node's memory a plan may use."""
    return int(memory_bytes * USABLE_SHARE)


def format_bytes(size: float) -> str:
    """Return a size for a person: `3.1 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _sums(values: Sequence[int]) -> NDArray[np.int64]:
    prefix = np.array([0, *accumulate(values)], dtype=np.int64)
    return np.subtract.outer(prefix, prefix).T
