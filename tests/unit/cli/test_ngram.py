import math

import numpy as np
import pytest

from brigade.cli.ngram import bigram_probabilities, counting_loss, unigram_probabilities


def test_a_text_of_one_letter_has_the_loss_of_its_smoothing():
    # n targets, all 0: p(0) = (n + 1) / (n + V)
    train = np.zeros((1, 6), np.uint8), np.zeros((1, 6), np.uint8)
    loss = counting_loss(train, train, vocab_size=4)
    assert loss.unigram == pytest.approx(-math.log(7 / 10))
    assert loss.bigram == pytest.approx(-math.log(7 / 10))


def test_an_alternating_text_is_easy_for_pairs_only():
    # 0101...: each letter half of the time, yet each follows the other for certain
    text = np.tile(np.array([0, 1], np.uint8), 500)
    train = text[:-1], text[1:]
    loss = counting_loss(train, train, vocab_size=2)
    assert loss.unigram == pytest.approx(math.log(2), rel=1e-5)
    # 500 pairs (0, 1) and 499 pairs (1, 0), with one added to each of two counts
    expected = -(500 * math.log(501 / 502) + 499 * math.log(500 / 501)) / 999
    assert loss.bigram == pytest.approx(expected)


def test_what_was_never_seen_costs_a_uniform_guess_of_the_row():
    train = np.zeros(3, np.int64), np.zeros(3, np.int64)
    validation = np.array([2]), np.array([3])  # the row of 2 was never seen
    assert counting_loss(train, validation, vocab_size=8).bigram == pytest.approx(math.log(8))


def test_probabilities_sum_to_one():
    generator = np.random.default_rng(0)
    inputs, targets = generator.integers(0, 11, size=(2, 5, 40))
    assert unigram_probabilities(targets, 11).sum() == pytest.approx(1.0)
    assert bigram_probabilities(inputs, targets, 11).sum(axis=1) == pytest.approx(np.ones(11))


def test_bytes_do_not_overflow_the_pair_index():
    inputs, targets = np.array([255], np.uint8), np.array([254], np.uint8)
    assert bigram_probabilities(inputs, targets, 256)[255, 254] == pytest.approx(2 / 257)
