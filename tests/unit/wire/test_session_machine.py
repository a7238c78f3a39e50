"""Sessions under random schedules: hypothesis looks for one that loses, doubles or reorders a message."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.wire.session_pair import Pair

from brigade.wire.session_events import DeliveryPaused, DeliveryResumed, PacketArrived, SessionOptions

WINDOW = 4096
FRAGMENT_COST = WINDOW // 8 + 64 * 65 + 8 * 20
SIDES = st.sampled_from(["a", "b"])


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(SessionOptions(window_bytes=WINDOW))
        self.random = random.Random(7)
        self.count = 0
        self.paused = set()
        self.pair.open()

    def side(self, name):
        return self.pair.a if name == "a" else self.pair.b

    @rule(
        name=SIDES,
        priority=st.integers(0, 3),
        sizes=st.lists(st.sampled_from([0, 1, 5, 300, 512, 2000, 9000]), max_size=5),
    )
    def submit(self, name, priority, sizes):
        self.count += 1
        pieces = [b"%d" % self.count, *(self.random.randbytes(size) for size in sizes)]
        self.pair.submit(self.side(name), pieces, priority)

    @rule(name=SIDES, most=st.integers(1, 12))
    def send(self, name, most):
        self.pair.send(self.side(name), most)

    @rule(name=SIDES, most=st.integers(1, 12))
    def arrive(self, name, most):
        self.pair.arrive(self.side(name), most)

    @precondition(lambda self: self.pair.connected)
    @rule(b_notices=st.booleans())
    def cut(self, b_notices):
        self.pair.cut(b_notices)

    @precondition(lambda self: not self.pair.connected)
    @rule(steps=st.integers(0, 4))
    def reconnect(self, steps):
        self.pair.advance(2.0)
        self.pair.connect()
        for _ in range(steps):
            for side in (self.pair.a, self.pair.b):
                self.pair.send(side)
                self.pair.arrive(self.pair.other(side))

    @precondition(lambda self: self.pair.connected)
    @rule(name=SIDES, sent=st.integers(1, 9), arrived=st.integers(0, 9))
    def cut_in_the_middle(self, name, sent, arrived):
        self.pair.send(self.side(name), sent)
        self.pair.arrive(self.pair.other(self.side(name)), arrived)
        self.pair.cut()

    @precondition(lambda self: self.pair.connected and self.pair.b_has_route)
    @rule(name=SIDES, data=st.data())
    def repeat_an_old_packet(self, name, data):
        side = self.side(name)
        if side.history:
            packet = data.draw(st.sampled_from(side.history[-20:]))
            self.pair.feed(self.pair.other(side), PacketArrived(packet))

    @precondition(lambda self: self.pair.connected)
    @rule(name=SIDES)
    def exchange_a_little(self, name):
        for _ in range(6):
            self.pair.send(self.side(name), 3)
            self.pair.arrive(self.pair.other(self.side(name)), 3)

    @rule(name=SIDES)
    def pause(self, name):
        self.paused.add(name)
        self.pair.feed(self.side(name), DeliveryPaused())

    @rule(name=SIDES)
    def resume(self, name):
        self.paused.discard(name)
        self.pair.feed(self.side(name), DeliveryResumed())

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.3, 1.0]))
    def wait(self, seconds):
        self.pair.advance(seconds)
        # A minute of nothing would rightly end the sessions.
        if self.pair.now - min(self.pair.a.session.heard_at, self.pair.b.session.heard_at) > 5.0:
            self.heal()

    def heal(self):
        for name in ("a", "b"):
            self.resume(name)
        self.pair.settle()

    @invariant()
    def nothing_is_lost_doubled_or_reordered(self):
        for side in (self.pair.a, self.pair.b):
            assert side.verdict is None
            got, sent = self.pair.other(side).delivered, side.submitted
            assert all(got[p] == sent[p][: len(got[p])] for p in range(4))

    @invariant()
    def bytes_are_bounded(self):
        for side in (self.pair.a, self.pair.b):
            assert side.session.outbox.in_flight_bytes <= WINDOW + FRAGMENT_COST
            assert side.session.inbox.unconsumed_bytes <= WINDOW + FRAGMENT_COST

    def teardown(self):
        self.heal()
        self.pair.check_all_delivered()
        assert self.pair.a.session.outbox.queued_bytes == 0


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
