"""The trained model in the hands of a plain torch program: evaluated, and made to write."""

import numpy as np
import torch
from torch.nn import functional

from brigade.partition.chain import PlainModel
from brigade.partition.generate import sample_text
from brigade.partition.samples import Source

EVALUATION_BATCH = 64
TEMPERATURE = 0.8
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def validation_loss(model: PlainModel, data: Source) -> float:
    """Return the mean loss over every held-out target, in nats."""
    total, targets_seen = 0.0, 0
    with torch.no_grad():
        for first in range(0, data.validation_count, EVALUATION_BATCH):
            ids = np.arange(first, min(first + EVALUATION_BATCH, data.validation_count))
            inputs, targets = (torch.from_numpy(part) for part in data.load("validation", ids))
            logits = model(inputs)
            total += functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            targets_seen += targets.numel()
    return total / targets_seen


def written_sample(model: PlainModel, prompt: str, length: int, seed: int) -> str:
    """Return `prompt` and the `length` bytes that the model writes after it; what a terminal might obey is replaced."""
    written = sample_text(model, prompt.encode(), length, TEMPERATURE, seed).decode("utf-8", errors="replace")
    return prompt + "".join(letter if letter.isprintable() or letter == "\n" else REPLACEMENT for letter in written)
