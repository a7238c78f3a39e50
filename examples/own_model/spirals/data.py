"""Points on spiral arms. Run as a program, it writes them to a file: `python -m spirals.data spirals.npz`."""

import sys

import numpy as np


def points(samples: int, arms: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (samples, 2) of float32 in no order, and the arm (samples,) of each: 0 to `arms - 1`."""
    random = np.random.default_rng(seed)
    arm = random.integers(arms, size=samples)
    radius = random.uniform(0.2, 1.0, samples)
    angle = 4.0 * radius + 2.0 * np.pi * arm / arms + random.normal(0.0, 0.1, samples)
    inputs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return inputs.astype(np.float32), arm


def datasets(samples: int = 1200, arms: int = 3, seed: int = 0) -> tuple[list, list]:
    """The data as the run file names it, `spirals.data:datasets`: (train, validation), each with len() and items.

    Every node calls this: it must return the same samples in the same order everywhere.
    """
    pairs = list(zip(*points(samples, arms, seed), strict=True))
    held_out = samples // 6
    return pairs[:-held_out], pairs[-held_out:]


if __name__ == "__main__":
    inputs, targets = points(1200, 3, 0)
    np.savez(sys.argv[1], inputs=inputs, targets=targets)
