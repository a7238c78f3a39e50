"""How much of a tensor to take at a time, so that what one pass leaves is still in the cache for the next."""

from torch import Tensor

CHUNK = 1 << 18  # elements: 1 MiB of float32


def chunk_of(values: Tensor) -> int:
    """Return how many elements of `values` to take at a time: what the cache holds, or all on an accelerator."""
    return CHUNK if values.device.type == "cpu" else max(1, values.numel())
