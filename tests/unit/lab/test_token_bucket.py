"""Departures are those of the closed form, whoever shares the line, and lateness of the caller does not add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.lab.token_bucket import TokenBucket

RATE = 1000.0
sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=40)
gaps = st.lists(st.floats(0.0, 3.0), min_size=40, max_size=40)


@given(sizes)
def test_a_busy_line_needs_the_time_of_all_its_bytes(pieces):
    bucket = TokenBucket(RATE)
    for size in pieces:
        _, done = bucket.passes(size, 5.0, 5.0)
    assert done == pytest.approx(5.0 + sum(pieces) / RATE)
    assert bucket.backlog_s(5.0) == pytest.approx(sum(pieces) / RATE)
    assert bucket.backlog_s(done + 1) == 0.0


@given(sizes, gaps)
def test_departures_follow_lindley(pieces, pauses):
    """d(k) = max(d(k-1), a(k)) + size / rate: the recursion of a single server."""
    bucket, arrival, free = TokenBucket(RATE), 0.0, 0.0
    for size, pause in zip(pieces, pauses, strict=False):
        arrival += pause
        begins = max(free, arrival)
        free = begins + size / RATE
        assert bucket.passes(size, arrival, arrival) == pytest.approx((begins, free))


@given(sizes, gaps)
def test_a_second_line_of_the_same_rate_adds_nothing(pieces, pauses):
    first, second, arrival = TokenBucket(RATE), TokenBucket(RATE), 0.0
    for size, pause in zip(pieces, pauses, strict=False):
        arrival += pause
        begins, ends = first.passes(size, arrival, arrival)
        assert second.passes(size, begins + 0.25, ends + 0.25)[1] == pytest.approx(ends + 0.25)


def test_the_slower_of_two_lines_sets_the_pace():
    fast, slow = TokenBucket(4 * RATE), TokenBucket(RATE)
    begins, ends = fast.passes(1000, 0.0, 0.0)
    assert (begins, ends) == (0.0, 0.25)
    assert slow.passes(1000, begins, ends) == (0.0, 1.0)
    assert fast.passes(1000, 1.0, 2.0) == (1.0, 2.0), "no faster than it comes"


def test_a_burst_passes_at_once_after_a_pause():
    bucket = TokenBucket(RATE, burst_bytes=500)
    assert bucket.passes(500, 10.0, 10.0) == (10.0, 10.0)
    assert bucket.passes(1000, 10.0, 10.0)[1] == pytest.approx(11.0)
    assert bucket.passes(300, 11.1, 11.1)[1] == pytest.approx(11.3), "100 bytes of the burst have come back"


def test_an_unlimited_line_passes_everything_as_it_comes():
    assert TokenBucket(None).passes(10**12, 1.0, 2.0) == (1.0, 2.0)
    assert TokenBucket(None).backlog_s(0.0) == 0.0


def test_another_rate_is_that_of_what_waits_too():
    bucket = TokenBucket(RATE)
    bucket.passes(4000, 0.0, 0.0)
    bucket.change_rate(2 * RATE, 1.0)  # 3000 bytes wait
    assert bucket.passes(1000, 1.0, 1.0)[1] == pytest.approx(1.0 + 4000 / (2 * RATE))
    bucket.change_rate(None, 1.5)
    assert bucket.passes(1000, 1.5, 1.5) == (1.5, 1.5)
    bucket.change_rate(RATE, 2.0)
    assert bucket.passes(1000, 2.0, 2.0) == (2.0, 3.0)
