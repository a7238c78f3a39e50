"""Batches: every sample once an epoch, whatever the sizes, and the same ids whatever the cut."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.batching import Batching, evaluation_batches
from brigade.partition.seeds import derive
from brigade.wire.errors import ConfigError

sizes = st.integers(1, 60)


def microbatches_of(batching: Batching, step: int) -> list[list[int]]:
    return [batching.microbatch(step, i).tolist() for i in range(batching.microbatch_count(step))]


@given(samples=sizes, batch_size=sizes, microbatches=sizes, seed=st.integers(0, 2**63), shuffle=st.booleans())
def test_each_epoch_holds_each_sample_once(
    samples: int, batch_size: int, microbatches: int, seed: int, shuffle: bool
) -> None:
    batching = Batching(samples, batch_size, microbatches, seed, shuffle)
    for epoch in range(2):
        ids: list[int] = []
        for step in range(epoch * batching.steps_per_epoch, (epoch + 1) * batching.steps_per_epoch):
            parts = microbatches_of(batching, step)
            lengths = [len(part) for part in parts]
            assert min(lengths) >= 1
            assert max(lengths) - min(lengths) <= 1
            assert max(lengths) <= batching.microbatch_samples
            assert list(chain.from_iterable(parts)) == batching.sample_ids(step).tolist()
            assert sum(lengths) == batching.sample_count(step) <= batch_size
            assert len(parts) == min(microbatches, sum(lengths))
            ids += chain.from_iterable(parts)
        assert sorted(ids) == list(range(samples))
        assert shuffle or ids == sorted(ids)


def test_epochs_of_100_by_8_end_with_a_batch_of_4() -> None:
    batching = Batching(100, 8, 4, seed=1)
    assert batching.steps_per_epoch == 13
    assert [batching.sample_count(step) for step in (0, 11, 12, 13)] == [8, 8, 4, 8]
    assert [len(part) for part in microbatches_of(batching, 12)] == [1, 1, 1, 1]


def test_order_of_ids_does_not_depend_on_the_cut() -> None:
    for microbatches in (1, 2, 5, 16, 1000):
        batching = Batching(100, 16, microbatches, seed=3)
        for step in (0, 6, 7, 20):
            assert batching.sample_ids(step).tolist() == Batching(100, 16, 1, seed=3).sample_ids(step).tolist()


def test_batch_size_does_not_change_the_order_within_an_epoch() -> None:
    whole = Batching(100, 100, 1, seed=3).sample_ids(2)
    parts = [Batching(100, 8, 2, seed=3).sample_ids(2 * 13 + step) for step in range(13)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_steps_may_be_asked_in_any_order() -> None:
    forward = Batching(50, 7, 3, seed=5)
    steps = range(40)
    expected = {step: microbatches_of(forward, step) for step in steps}
    assert {step: microbatches_of(forward, step) for step in reversed(steps)} == expected


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(Batching(50, 50, 1, seed).sample_ids(epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_permutation_is_pinned() -> None:
    """The order of a run that was started long ago must not change: it is resumed from a step number."""
    bits = np.random.PCG64(derive(7, "epoch", 0)).random_raw(10).tolist()
    assert Batching(10, 10, 1, seed=7).sample_ids(0).tolist() == sorted(range(10), key=bits.__getitem__)
    assert Batching(10, 10, 1, seed=7).sample_ids(0).tolist() == [2, 4, 1, 9, 7, 3, 8, 5, 0, 6]


def test_ids_belong_to_the_caller() -> None:
    batching = Batching(10, 10, 1, seed=7)
    before = batching.sample_ids(0).tolist()
    batching.sample_ids(0)[:] = 0
    assert batching.sample_ids(0).tolist() == before


def test_all_positions_are_equally_likely() -> None:
    """Chi-square over where sample 0 stands; 9 degrees of freedom, 99.9 % quantile 27.9."""
    places = [Batching(10, 10, 1, seed).sample_ids(0).tolist().index(0) for seed in range(2000)]
    counts = np.bincount(places, minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 27.9


def test_bounds() -> None:
    for sizes_ in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ConfigError, match="at least 1, found 0"):
            Batching(*sizes_, seed=0)
    batching = Batching(10, 4, 2, seed=0)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            batching.microbatch(0, index)


@given(held_out=st.integers(0, 200), size=st.integers(1, 40), batches=st.integers(0, 12))
def test_evaluation_takes_what_was_asked_once(held_out: int, size: int, batches: int) -> None:
    parts = evaluation_batches(held_out, size, batches)
    ids = [int(index) for part in parts for index in part]
    assert len(ids) == (min(held_out, size * batches) if batches else held_out)
    assert ids == sorted(set(ids))
    assert all(0 <= index < held_out for index in ids)
    assert all(len(part) == size for part in parts[:-1])
    assert not parts or 1 <= len(parts[-1]) <= size
    gaps = np.diff(ids)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1, "spread evenly over the held-out samples"
