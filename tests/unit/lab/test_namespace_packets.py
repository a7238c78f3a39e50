"""The delay line: packets arrive when they should, in order, and get lost as often as they should."""

import pytest

from brigade.lab.namespace_packets import DelayLine, Way, address_bytes

ADA, BEN, CARL = "10.77.0.1", "10.77.0.2", "10.77.0.3"


def frame(source, target, payload=b""):
    return bytes(10 + 14 + 12) + address_bytes(source) + address_bytes(target) + payload


def line(*ways, seed=1):
    return DelayLine(ways, seed)


def test_a_packet_arrives_after_the_delay_of_its_way_and_not_before():
    delays = line(Way(ADA, BEN, 0.02), Way(BEN, ADA, 0.03))
    delays.admit(frame(BEN, ADA), 1.0)
    delays.admit(frame(ADA, BEN), 1.0)
    assert delays.next_deadline() == pytest.approx(1.02)
    assert not list(delays.arrived(1.019))
    assert list(delays.arrived(1.0201)) == [frame(ADA, BEN)]
    assert list(delays.arrived(2.0)) == [frame(BEN, ADA)]
    assert delays.next_deadline() is None
    assert delays.packets == 2
    assert delays.late_most_s == pytest.approx(0.97)


def test_jitter_spreads_and_never_lets_packets_overtake_each_other():
    delays = line(Way(ADA, BEN, 0.02, jitter_s=0.01))
    sent = [frame(ADA, BEN, number.to_bytes(2)) for number in range(400)]
    due = []
    for number, each in enumerate(sent):
        delays.admit(each, number * 0.1)  # far apart: nobody waits for the one before
        due.append(delays.next_deadline() - number * 0.1)
        assert list(delays.arrived(number * 0.1 + 0.05)) == [each]
    assert 0.01 <= min(due) < 0.011
    assert 0.029 < max(due) <= 0.03
    for each in sent:
        delays.admit(each, 100.0)
    assert list(delays.arrived(200.0)) == sent


def test_jitter_is_at_most_the_delay():
    delays = line(Way(ADA, BEN, 0.001, jitter_s=1.0))
    delays.admit(frame(ADA, BEN), 0.0)
    assert 0.0 <= delays.next_deadline() <= 0.002


def test_losses_are_those_of_the_seed_and_as_many_as_named():
    def survivors(seed):
        delays = line(Way(ADA, BEN, 0.0, loss=0.1), Way(BEN, ADA, 0.0), seed=seed)
        for number in range(2000):
            delays.admit(frame(ADA, BEN, number.to_bytes(2)), 0.0)
            delays.admit(frame(BEN, ADA, number.to_bytes(2)), 0.0)
        arrived = list(delays.arrived(1.0))
        each = len(frame(ADA, BEN, b"12")) - 10
        lost = (4000 - len(arrived)) * each
        assert list(delays.lost()) == [(ADA, BEN, lost), (BEN, ADA, 0)]
        return arrived

    first = survivors(1)
    assert 4000 - len(first) == pytest.approx(200, abs=5 * 13.4)
    assert survivors(1) == first != survivors(2)


def test_what_belongs_to_no_way_is_forgotten():
    delays = line(Way(ADA, BEN, 0.0))
    for each in (frame(ADA, CARL), b"", b"short", bytes(44)):
        delays.admit(each, 0.0)
    assert delays.next_deadline() is None
