"""What simple counting reaches on the same text: the loss of unigram and bigram models, to judge a trained one by."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[Any]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CountingLoss:
    """Mean negative log-likelihood per target, in nats."""

    unigram: float
    bigram: float


def unigram_probabilities(targets: Tokens, vocab_size: int) -> Probabilities:
    """Return p(target), shape (V,), from counts with one added to each."""
    return normalised(np.bincount(targets.ravel(), minlength=vocab_size) + 1)


def bigram_probabilities(inputs: Tokens, targets: Tokens, vocab_size: int) -> Probabilities:
    """Return p(target | the token before), shape (V, V), from counts with one added to each."""
    pairs = inputs.ravel().astype(np.int64) * vocab_size + targets.ravel()
    return normalised(np.bincount(pairs, minlength=vocab_size**2).reshape(vocab_size, vocab_size) + 1)


def normalised(counts: Tokens) -> Probabilities:
    """Return counts divided by their sum along the last axis."""
    return np.asarray(counts / counts.sum(axis=-1, keepdims=True), np.float64)


def counting_loss(train: tuple[Tokens, Tokens], validation: tuple[Tokens, Tokens], vocab_size: int) -> CountingLoss:
    """Return the validation loss of both models; each argument is (inputs, targets), token ids of equal shape."""
    inputs, targets = (part.ravel().astype(np.int64) for part in validation)
    unigram = unigram_probabilities(train[1], vocab_size)
    bigram = bigram_probabilities(*train, vocab_size)
    return CountingLoss(
        unigram=float(-np.log(unigram[targets]).mean()),
        bigram=float(-np.log(bigram[inputs, targets]).mean()),
    )
