"""How sessions begin and end: silence, refusals, broken protocol, goodbyes."""

import os

import pytest
from tests.unit.wire.session_pair import BROKE, Pair

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
    Farewell,
    Greeting,
    Versions,
    pack_ack,
    pack_farewell,
    pack_greeting,
)
from brigade.wire.verdict import Verdict

ONE = Versions(1, 1)


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
