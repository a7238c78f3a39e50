"""How long this machine encodes and decodes a value between two blocks, for the planner."""

import statistics
import time

import torch

from brigade.compression.codec import build_codec
from brigade.compression.tensors import pack, unpack
from brigade.partition import boundaries, tree
from brigade.wire.plan import Boundary

WARM_UPS, REPEATS = 2, 5


def time_codec(boundary: Boundary, samples: int, codec: str) -> tuple[float, float]:
    """Return the median seconds of encoding and of decoding one value of this boundary under a codec."""
    leaves, _ = tree.flatten(boundaries.example(boundary, samples, torch.device("cpu")))
    expected = [(leaf.dtype, leaf.shape(samples)) for leaf in boundary.leaves]
    coder = build_codec(codec)
    encodes, decodes = [], []
    for _ in range(WARM_UPS + REPEATS):
        begin = time.perf_counter()
        headers, frames = pack(leaves, coder, 0)
        middle = time.perf_counter()
        unpack(headers, frames, expected)
        encodes.append(middle - begin)
        decodes.append(time.perf_counter() - middle)
    return statistics.median(encodes[WARM_UPS:]), statistics.median(decodes[WARM_UPS:])
