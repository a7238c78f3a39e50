"""Which samples make up a microbatch: a pure function of (number of samples, batch size, seed, step, index).

Nothing here knows how many nodes there are, so a takeover, a resume or another split never skips or repeats a sample.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from brigade.partition.seeds import derive
from brigade.wire.errors import ConfigError

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batching:
    """The walk through `samples` training samples: epochs of batches of `microbatches` microbatches.

    Every epoch holds each sample once; its last batch is smaller when `batch_size` does not divide `samples`.
    """

    samples: int
    batch_size: int
    microbatches: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "microbatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"training needs {name} of at least 1, found {getattr(self, name)}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that see every sample once."""
        return -(-self.samples // self.batch_size)

    @property
    def microbatch_samples(self) -> int:
        """Samples of the largest microbatch: what buffers and measurements are sized for."""
        batch = min(self.batch_size, self.samples)
        return -(-batch // min(self.microbatches, batch))

    def sample_ids(self, step: int) -> Ids:
        """Return the samples of a step, in the order in which microbatches take them."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        first = batch * self.batch_size
        end = min(first + self.batch_size, self.samples)
        if not self.shuffle:
            return np.arange(first, end, dtype=np.int64)
        return _permutation(self.samples, self.seed, epoch)[first:end].copy()

    def sample_count(self, step: int) -> int:
        """Return the number of samples of a step."""
        return min(self.batch_size, self.samples - step % self.steps_per_epoch * self.batch_size)

    def microbatch_count(self, step: int) -> int:
        """Return the number of microbatches of a step: fewer than asked when the batch holds fewer samples."""
        return min(self.microbatches, self.sample_count(step))

    def microbatch(self, step: int, index: int) -> Ids:
        """Return the samples of one microbatch; sizes differ by at most one, larger ones first."""
        ids, count = self.sample_ids(step), self.microbatch_count(step)
        if not 0 <= index < count:
            raise IndexError(f"step {step} has microbatches 0 to {count - 1}, not {index}")
        size, larger = divmod(len(ids), count)
        first = index * size + min(index, larger)
        return ids[first : first + size + (index < larger)]


def evaluation_batches(validation_samples: int, microbatch_samples: int, eval_batches: int) -> list[Ids]:
    """Return the held-out samples of one evaluation, cut into microbatches of at most `microbatch_samples`.

    At most `eval_batches` microbatches, spread evenly over all held-out samples; 0 takes all of them.
    """
    size = max(1, microbatch_samples)
    count = validation_samples if eval_batches == 0 else min(validation_samples, eval_batches * size)
    if count <= 0:
        return []
    ids = np.arange(count, dtype=np.int64) * validation_samples // count
    return [ids[first : first + size] for first in range(0, count, size)]


@lru_cache(maxsize=2)  # a step may look at the end of one epoch and the beginning of the next
def _permutation(samples: int, seed: int, epoch: int) -> Ids:
    # Sorting raw bits instead of Generator.permutation: only the bit streams of numpy are promised to stay
    # the same in every release (NEP 19), and a resume may happen under another one.
    keys = np.random.PCG64(derive(seed, "epoch", epoch)).random_raw(samples)
    order = np.argsort(keys, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order
