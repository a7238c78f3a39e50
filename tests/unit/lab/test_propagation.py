"""Delays are what was asked for, keep the order, and losses stall as often as they should."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.lab.propagation import LEAST_TIMEOUT_S, PACKET_BYTES, Propagation


def test_a_plain_delay():
    way = Propagation(0.025, 0.0, 0.0, Random(1))
    assert way.arrives(10, 1.0, 1.5, followed=True) == (1.025, 1.525)


@given(st.integers(0, 2**32), st.lists(st.floats(0.0, 0.01), min_size=2, max_size=50))
def test_jitter_stays_within_its_bounds_and_keeps_the_order(seed, pauses):
    way, now, before = Propagation(0.02, 0.005, 0.0, Random(seed)), 0.0, 0.0
    for pause in pauses:
        now += pause
        first, last = way.arrives(10, now, now, followed=False)
        assert before <= first <= last
        assert now + 0.015 - 1e-9 <= last <= now + 0.025 + 1e-9
        before = last


def test_jitter_is_even():
    way = Propagation(0.02, 0.01, 0.0, Random(2))
    delays = [way.arrives(1, float(n), float(n), followed=False)[1] - n for n in range(4000)]
    assert sum(delays) / 4000 == pytest.approx(0.02, abs=0.0003)
    assert min(delays) < 0.0105
    assert max(delays) > 0.0295


def test_losses_come_by_packets():
    loss, count, packets = 0.01, 4000, 5
    way = Propagation(0.02, 0.0, loss, Random(3))
    for n in range(count):
        way.arrives(packets * PACKET_BYTES, float(n), float(n), followed=True)
    expected = count * (1 - (1 - loss) ** packets)
    assert way.stalls == pytest.approx(expected, abs=4 * expected**0.5)


@pytest.mark.parametrize(("followed", "timeout_s"), [(True, 0.0), (False, LEAST_TIMEOUT_S)])
def test_a_loss_stalls_for_a_round_trip_and_what_follows_waits(followed, timeout_s):
    way = Propagation(0.02, 0.0, 0.999999, Random(4))
    arrival = way.arrives(1, 0.0, 0.0, followed=followed)[1]
    assert arrival == pytest.approx(0.02 + 0.04 + timeout_s)
    assert way.stalls == 1
    calm = Propagation(0.02, 0.0, 0.0, Random(4))
    calm._last_arrival = arrival
    assert calm.arrives(1, 0.001, 0.001, followed=True)[0] == arrival
