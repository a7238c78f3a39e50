"""The learning rate of each step, as a pure function of the run file.

Same values as `transformers.get_scheduler` (and torch's `LambdaLR` around it): linear warm-up from 0, then constant,
half a cosine, or a plateau with a linear end (WSD, "warm-up, stable, decay").
"""

import math

from brigade.wire.run_spec import TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Return the learning rate that the update of `step` (counted from 0) uses."""
    return training.learning_rate * _factor(training, step)


def _factor(training: TrainingSpec, step: int) -> float:
    if step < training.warmup_steps:
        return step / training.warmup_steps
    floor = training.min_lr_ratio
    match training.lr_scheduler_type:
        case "constant":
            return 1.0
        case "cosine":
            progress = _progress(step, training.warmup_steps, training.max_steps)
            return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "wsd":
            progress = _progress(step, training.max_steps - training.decay_steps, training.max_steps)
            return floor + (1.0 - floor) * (1.0 - progress)


def _progress(step: int, first: int, end: int) -> float:
    """Return how far `step` is from `first` to `end`, within [0, 1]."""
    return min(1.0, max(0.0, (step - first) / max(1, end - first)))
