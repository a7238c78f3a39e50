"""Sessions between two cores: each message once and in order, whatever happens to the routes."""

import os

import pytest
from tests.unit.wire.session_pair import BROKE, Pair

from brigade.wire.errors import LocalProtocolError
from brigade.wire.session_events import (
    AnnounceClosed,
    CloseRequested,
    DeliveryPaused,
    DeliveryResumed,
    DropSession,
    MessageSubmitted,
    PacketArrived,
    RouteFailed,
    RouteOpened,
    RouteProgressed,
    SessionOptions,
)
from brigade.wire.session_packets import (
    FRAGMENT_BYTES,
    Ack,
    Data,
    Farewell,
    Greeting,
    Ping,
    Versions,
    pack_ack,
    pack_farewell,
    pack_greeting,
    pack_ping,
    parse_packet,
)
from brigade.wire.verdict import Verdict

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


def test_closing_tells_the_other_side_and_ends_both():
    pair = Pair().open()
    pair.feed(pair.a, CloseRequested(Verdict("closed", "work is done")))
    assert pair.a.verdict == Verdict("closed", "work is done")
    pair.exchange()
    assert pair.b.verdict.code == "closed"
    assert "work is done" in pair.b.verdict.reason
    assert pair.a.dropped
    assert pair.a.gave_up_route
    pair.cut()
    assert pair.b.dropped


def test_a_listener_that_closes_is_rid_of_the_session_when_the_dialler_goes():
    pair = Pair().open()
    pair.feed(pair.b, CloseRequested(Verdict("not_admitted", "your key was revoked")))
    pair.exchange()
    assert pair.a.verdict == Verdict("not_admitted", "tcp://b:1 closed the connection: your key was revoked")
    assert pair.a.dropped
    pair.feed(pair.b, BROKE)
    assert pair.b.dropped


def test_closing_takes_a_second_if_nobody_answers():
    pair = Pair().open()
    pair.feed(pair.a, CloseRequested(Verdict("closed", "bye")))
    pair.advance(0.99)
    assert not pair.a.dropped
    pair.advance(0.02)
    assert pair.a.dropped
    assert pair.a.session.next_deadline() is None


def test_nothing_happens_after_the_end():
    pair = Pair().open()
    pair.feed(pair.a, CloseRequested(Verdict("closed", "bye")))
    pair.exchange()
    for event in (RouteOpened(), BROKE, PacketArrived([b""]), MessageSubmitted([b"x"], 0), DeliveryResumed()):
        assert pair.feed(pair.a, event) == []


def test_no_version_in_common_names_both_versions_on_both_sides():
    pair = Pair(SessionOptions(versions=Versions(1, 1)), SessionOptions(versions=Versions(3, 4)))
    pair.advance(0.0)
    pair.connect()
    pair.exchange()
    for side in (pair.a, pair.b):
        assert side.verdict.code == "version"
        assert "version 1" in side.verdict.reason
        assert "versions 3 to 4" in side.verdict.reason
        assert side.opened == 0


def test_an_unanswered_greeting_is_silence_after_the_deadline():
    pair = Pair()
    pair.advance(0.0)
    pair.connect()
    pair.feed(pair.a, RouteProgressed("b let us in but did not greet", "silent"))
    pair.advance(9.9)
    assert pair.a.verdict is None
    pair.advance(0.2)
    assert pair.a.verdict == Verdict("silent", "b let us in but did not greet")


def test_the_last_failure_explains_why_the_other_side_is_unreachable():
    pair = Pair()
    dials = 0
    for _ in range(1000):
        pair.advance(0.05)
        if pair.a.wants_route:
            dials += 1
            pair.a.wants_route = False
            pair.feed(pair.a, RouteFailed(Verdict("unreachable", "the connection is refused")))
    assert pair.a.verdict == Verdict("unreachable", "the connection is refused")
    assert pair.a.dropped
    assert 5 < dials < 15  # with growing pauses


def test_a_final_failure_ends_at_once():
    pair = Pair()
    pair.advance(0.0)
    pair.connect()
    commands = pair.feed(pair.a, RouteFailed(Verdict("wrong_key", "another key"), final=True))
    assert commands == [AnnounceClosed(Verdict("wrong_key", "another key")), DropSession()]


def test_silence_on_an_open_session_ends_it_after_the_limit_on_both_sides():
    pair = Pair().open()
    pair.advance(29.0)
    assert pair.a.verdict is None
    assert pair.b.verdict is None
    pair.advance(1.5)
    assert pair.b.verdict.code == "silent"
    assert pair.a.verdict is not None


def test_pings_keep_an_idle_session_open_and_measure_the_way():
    pair = Pair().open()
    for _ in range(400):
        pair.exchange()
        pair.advance(0.5)
    assert pair.a.verdict is None
    assert pair.b.verdict is None
    assert pair.a.session.rtt_s == 0.0
    pair.advance(5.0)
    pair.send(pair.a, 10)
    pair.advance(0.25)
    pair.exchange()
    assert pair.a.session.rtt_s == pytest.approx(0.25, abs=1e-3)


def test_the_dialler_gives_up_a_route_that_carries_nothing_and_dials_again():
    pair = Pair().open()
    pair.submit(pair.a, [b"first after healing"])
    pair.send(pair.a, 10)
    pair.a.outgoing.clear()  # a link that swallows everything, without a word from TCP
    pair.advance(13.0)
    assert pair.a.gave_up_route
    assert pair.a.wants_route
    assert pair.a.verdict is None
    pair.connected = False
    pair.settle()
    pair.check_all_delivered()


def test_a_listener_that_forgot_what_it_had_is_found_out():
    pair = Pair().open()
    pair.submit(pair.a, [b"one"])
    pair.settle()
    pair.cut()
    pair.advance(1.0)
    pair.feed(pair.a, RouteOpened())
    greeting = Greeting(ONE, pair.a.session.session_id, 0, 1 << 20, False)
    pair.feed(pair.a, PacketArrived(pack_greeting(greeting)))
    assert pair.a.verdict.code == "lost_session"


@pytest.mark.parametrize("code", ["lost_session", "not_admitted", "protocol", "no such code"])
def test_a_refusal_keeps_its_code_and_a_code_of_later_versions_is_closed(code):
    pair = Pair()
    pair.advance(0.0)
    pair.connect()
    pair.feed(pair.a, PacketArrived(pack_farewell(Farewell(ONE, code, "so it is"))))
    assert pair.a.verdict.code == (code if code != "no such code" else "closed")
    assert "so it is" in pair.a.verdict.reason


def test_whoever_breaks_the_protocol_is_told_and_loses_the_session():
    for wrong in (
        [b"\xff"],
        [b""],
        pack_ack(Ack(10, 0)),  # acknowledges what was never sent
        pack_greeting(Greeting(ONE, bytes(16), 0, 0, False)),  # another session
    ):
        pair = Pair().open()
        pair.feed(pair.b, PacketArrived(wrong))
        assert pair.b.verdict.code == "protocol"
        pair.exchange()
        assert pair.a.verdict.code == "protocol"


def test_sending_beyond_the_credit_is_against_the_protocol():
    pair = Pair(SessionOptions(window_bytes=1 << 16)).open()
    pair.feed(pair.b, DeliveryPaused())
    pair.a.session.outbox.grant(1 << 30)  # a dishonest sender
    pair.a.session.outbox._window_bytes = 1 << 30
    pair.submit(pair.a, [os.urandom(3 * FRAGMENT_BYTES)], 2)
    pair.exchange()
    assert pair.b.verdict.code == "protocol"
    assert "credit" in pair.b.verdict.reason


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
