"""Sessions between two cores: each message once and in order, whatever happens to the routes."""

import os

import pytest
from tests.unit.wire.session_pair import Pair

from brigade.wire.errors import LocalProtocolError
from brigade.wire.session_events import (
    DeliveryPaused,
    DeliveryResumed,
    MessageSubmitted,
    PacketArrived,
    SessionOptions,
)
from brigade.wire.session_packets import (
    FRAGMENT_BYTES,
    Ack,
    Data,
    Greeting,
    Ping,
    Versions,
    pack_ping,
    parse_packet,
)

ONE = Versions(1, 1)


def packets_on_wire(side):
    return [parse_packet(packet, ONE) for packet in side.outgoing]


def test_both_sides_open_once_and_only_after_both_greeted():
    pair = Pair()
    pair.advance(0.0)
    pair.connect()
    pair.submit(pair.a, [b"early"])
    assert pair.send(pair.a, 10) == 1  # nothing but the greeting before the other side has greeted
    assert isinstance(packets_on_wire(pair.a)[0], Greeting)
    assert (pair.a.opened, pair.b.opened) == (0, 0)
    pair.exchange()
    assert (pair.a.opened, pair.b.opened) == (1, 1)
    pair.cut()
    pair.advance(1.0)
    pair.connect()
    pair.exchange()
    assert (pair.a.opened, pair.b.opened) == (1, 1)
    pair.check_all_delivered()


def test_pieces_arrive_as_they_were_whatever_their_sizes():
    pair = Pair().open()
    for sizes in [
        (1,),
        (0,),
        (5, 0, 0),
        (0, 7),
        (FRAGMENT_BYTES,),
        (3, FRAGMENT_BYTES, 3),
        (10, 3 * FRAGMENT_BYTES + 1),
    ]:
        pair.submit(pair.a, [os.urandom(size) for size in sizes], 2)
    pair.submit(pair.a, [], 3)
    pair.submit(pair.b, [b"x"] * 1000, 1)
    pair.settle()
    pair.check_all_delivered()


def test_no_packet_carries_more_than_a_fragment():
    pair = Pair().open()
    pair.submit(pair.a, [os.urandom(1000), os.urandom(1_500_000), os.urandom(1000)], 3)
    pair.settle()
    sizes = [sum(map(len, packet[1:])) for packet in pair.a.history]
    assert max(sizes) == FRAGMENT_BYTES
    assert sum(sizes) == 1_502_000


def test_higher_priority_overtakes_between_fragments():
    pair = Pair().open()
    pair.submit(pair.a, [os.urandom(4 * FRAGMENT_BYTES)], 3)
    pair.send(pair.a, 2)
    pair.submit(pair.a, [os.urandom(2 * FRAGMENT_BYTES)], 2)
    pair.send(pair.a, 1)
    pair.submit(pair.a, [b"control"], 0)
    pair.submit(pair.a, [b"gradient"], 1)
    pair.settle()
    assert pair.b.delivery_order == [0, 1, 2, 3]
    priorities = [parse_packet(packet, ONE).priority for packet in pair.a.history]
    assert priorities == [3, 3, 2, 0, 1, 2, 3, 3]


@pytest.mark.parametrize("after", range(14))
@pytest.mark.parametrize("b_notices", [True, False])
def test_a_cut_after_any_packet_loses_and_doubles_nothing(after, b_notices):
    pair = Pair()
    pair.advance(0.0)
    pair.connect()
    pair.submit(pair.a, [b"head", os.urandom(2 * FRAGMENT_BYTES + 17)], 2)
    pair.submit(pair.a, [b"small"], 0)
    pair.submit(pair.b, [os.urandom(FRAGMENT_BYTES + 1)], 1)
    moved = 0
    while moved < after:
        step = pair.send(pair.a) + pair.arrive(pair.b) + pair.send(pair.b) + pair.arrive(pair.a)
        if not step:
            break
        moved += step
    # Packets of both sides are on the wire when it breaks.
    pair.send(pair.a)
    pair.send(pair.b)
    pair.cut(b_notices)
    pair.settle()
    pair.check_all_delivered()
    assert pair.a.verdict is None
    assert pair.b.verdict is None


def test_nothing_is_sent_again_without_a_reconnect_or_a_gap_report():
    pair = Pair().open()
    pair.submit(pair.a, [os.urandom(5 * FRAGMENT_BYTES)], 2)
    pair.send(pair.a, 100)
    sent = len(pair.a.history)
    for _ in range(8):  # the packets are on their way for two minutes; pongs keep the session alive
        pair.advance(4.0)
        pair.feed(pair.a, PacketArrived(pack_ping(Ping(1))))
        pair.send(pair.a, 100)
    assert len(pair.a.history) == sent
    assert pair.a.session.outbox.resent_packets == 0


def test_a_gap_is_reported_once_and_filled():
    pair = Pair().open()
    pair.submit(pair.a, [os.urandom(6 * FRAGMENT_BYTES)], 2)
    pair.send(pair.a, 6)
    pair.a.outgoing.popleft()
    pair.arrive(pair.b, 10)
    assert pair.b.session.inbox.gaps == 5
    pair.send(pair.b, 10)
    reports = [p for p in packets_on_wire(pair.b) if isinstance(p, Ack) and p.gap]
    assert len(reports) == 1
    pair.settle()
    pair.check_all_delivered()
    assert pair.a.session.outbox.resent_packets == 6


def test_a_gap_report_that_is_lost_is_given_again_after_a_ping():
    pair = Pair().open()
    pair.submit(pair.a, [os.urandom(3 * FRAGMENT_BYTES)], 2)
    pair.send(pair.a, 3)
    pair.a.outgoing.popleft()
    pair.arrive(pair.b, 10)
    pair.send(pair.b, 10)
    pair.b.outgoing.clear()
    pair.settle()
    pair.check_all_delivered()


def test_duplicates_are_counted_and_dropped():
    pair = Pair().open()
    for n in range(5):
        pair.submit(pair.a, [b"%d" % n])
    pair.settle()
    for packet in pair.a.history * 2:
        pair.feed(pair.b, PacketArrived(packet))
    pair.settle()
    pair.check_all_delivered()
    assert pair.b.session.inbox.duplicate_packets == 10


def test_packets_of_the_old_route_that_come_after_the_new_greeting_do_no_harm():
    pair = Pair().open()
    for n in range(20):
        pair.submit(pair.a, [b"%d" % n], n % 4)
    pair.send(pair.a, 20)
    late = list(pair.a.outgoing)
    pair.arrive(pair.b, 7)
    pair.cut()
    pair.advance(1.0)
    pair.connect()
    pair.send(pair.a)
    pair.arrive(pair.b)
    for packet in reversed(late):
        pair.feed(pair.b, PacketArrived(packet))
    pair.settle()
    pair.check_all_delivered()


def test_a_receiver_that_takes_nothing_stops_the_sender_at_the_window():
    window = 1 << 20
    pair = Pair(SessionOptions(window_bytes=window)).open()
    pair.feed(pair.b, DeliveryPaused())
    for _ in range(100):
        pair.submit(pair.a, [os.urandom(100_000)], 2)
    for _ in range(50):
        pair.exchange()
        pair.advance(0.1)
    assert pair.b.delivered[2] == []
    assert window / 2 < pair.b.session.inbox.unconsumed_bytes < window
    assert pair.a.session.outbox.in_flight_bytes == 0  # all acknowledged, and no credit for more
    assert pair.a.session.outbox.queued_bytes >= 9_000_000
    # Control still passes: bulk may not use the last eighth.
    pair.submit(pair.a, [b"control"], 0)
    sent = len(pair.a.history)
    pair.exchange()
    assert len(pair.a.history) == sent + 1
    pair.feed(pair.b, DeliveryResumed())
    pair.settle()
    pair.check_all_delivered()


def test_bytes_in_flight_are_bounded_when_nothing_is_acknowledged():
    window = 1 << 20
    pair = Pair(SessionOptions(window_bytes=window)).open()
    pair.submit(pair.a, [os.urandom(10 * window)], 3)
    pair.send(pair.a, 10_000)
    assert pair.a.session.outbox.in_flight_bytes <= window
    pair.settle()
    pair.check_all_delivered()


def test_a_message_many_windows_long_goes_through():
    pair = Pair(SessionOptions(window_bytes=64 * 1024)).open()
    pair.submit(pair.a, [b"header", os.urandom(3_000_000), os.urandom(70_000)], 3)
    pair.settle()
    pair.check_all_delivered()


def test_acknowledgements_are_few():
    pair = Pair().open()
    pair.submit(pair.a, [os.urandom(40 * 1024 * 1024)], 2)
    pair.settle()
    acks = 0
    pair.b.outgoing.clear()
    pair.submit(pair.a, [os.urandom(40 * 1024 * 1024)], 2)
    while pair.send(pair.a, 4):
        pair.arrive(pair.b, 4)
        pair.send(pair.b, 10)
        acks += sum(isinstance(p, Ack) for p in packets_on_wire(pair.b))
        pair.arrive(pair.a, 10)
    assert acks <= 40 // 4 + 1


def test_a_message_that_is_too_big_is_an_error_of_its_sender():
    pair = Pair(SessionOptions(max_message_bytes=1000, max_pieces=3)).open()
    for pieces in ([bytes(1001)], [b"a", b"b", b"c", b"d"]):
        with pytest.raises(LocalProtocolError):
            pair.submit(pair.a, pieces)
    with pytest.raises(LocalProtocolError):
        pair.feed(pair.a, MessageSubmitted([b"x"], 4))
    with pytest.raises(LocalProtocolError):
        pair.feed(pair.a, MessageSubmitted([memoryview(bytes(10))[::2]], 0))


def test_resent_packets_refer_to_the_buffers_of_the_sender():
    pair = Pair().open()
    payload = bytearray(os.urandom(FRAGMENT_BYTES))
    pair.submit(pair.a, [payload], 2)
    outbox = pair.a.session.outbox
    first = outbox.next_packet()
    outbox.rewind()
    again = outbox.next_packet()
    assert again is first
    payload[0] ^= 0xFF
    assert first.fragment.parts[0][0] == payload[0]


def test_a_whole_piece_is_taken_without_copying():
    pair = Pair().open()
    pair.submit(pair.a, [b"header", b"payload"], 2)
    pair.send(pair.a, 10)
    packet = next(p for p in pair.a.outgoing if isinstance(parse_packet(p, ONE), Data))
    frames = [bytearray(frame) for frame in packet]
    (delivery,) = pair.b.session.handle(PacketArrived(frames), pair.now)
    frames[2][0] = ord("P")
    assert bytes(delivery.pieces[1]) == b"Payload"
