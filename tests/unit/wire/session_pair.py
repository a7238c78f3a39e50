"""Two session cores back to back in virtual time, over routes that lose, repeat and delay."""

import math
import os
from collections import deque
from collections.abc import Sequence

from brigade.wire.session import Session
from brigade.wire.session_events import (
    AnnounceClosed,
    AnnounceOpened,
    CloseRoute,
    Command,
    DeadlinePassed,
    DeliverMessage,
    DropSession,
    Event,
    MessageSubmitted,
    OpenRoute,
    PacketArrived,
    RouteFailed,
    RouteOpened,
    RouteReady,
    SendPacket,
    SessionOptions,
)
from brigade.wire.session_packets import Data, Versions, parse_packet
from brigade.wire.verdict import Verdict

BROKE = RouteFailed(Verdict("unreachable", "the route broke"))


class Side:
    """One core and what it has said and heard."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.outgoing: deque[list[bytes]] = deque()  # on the wire, towards the other side
        self.history: list[list[bytes]] = []  # every data packet that was ever sent
        self.submitted: dict[int, list[list[bytes]]] = {p: [] for p in range(4)}
        self.delivered: dict[int, list[list[bytes]]] = {p: [] for p in range(4)}
        self.delivery_order: list[int] = []
        self.opened = 0
        self.verdict: Verdict | None = None
        self.dropped = False
        self.wants_route = False
        self.gave_up_route = False


class Pair:
    """The dialling side `a` and the listening side `b`."""

    def __init__(self, options: SessionOptions | None = None, b_options: SessionOptions | None = None) -> None:
        self.now = 0.0
        options = options or SessionOptions()
        session_id = os.urandom(16)
        self.a = Side(Session(session_id, True, "tcp://b:1", options, self.now))
        self.b = Side(Session(session_id, False, "a", b_options or options, self.now))
        self.connected = False
        self.b_has_route = False

    def other(self, side: Side) -> Side:
        return self.b if side is self.a else self.a

    def feed(self, side: Side, event: Event) -> list[Command]:
        commands = side.session.handle(event, self.now)
        for command in commands:
            match command:
                case SendPacket():
                    packet = [bytes(frame) for frame in command.frames]
                    side.outgoing.append(packet)
                    if isinstance(parse_packet(packet, Versions(0, 99)), Data):
                        side.history.append(packet)
                case DeliverMessage():
                    side.delivered[command.priority].append([bytes(piece) for piece in command.pieces])
                    side.delivery_order.append(command.priority)
                case AnnounceOpened():
                    side.opened += 1
                case AnnounceClosed():
                    assert side.verdict is None
                    side.verdict = command.verdict
                case OpenRoute():
                    side.wants_route = True
                case CloseRoute():
                    side.gave_up_route = True
                case DropSession():
                    assert not side.dropped
                    side.dropped = True
        return commands

    def submit(self, side: Side, pieces: Sequence[bytes], priority: int = 0) -> None:
        side.submitted[priority].append(list(pieces))
        self.feed(side, MessageSubmitted(pieces, priority))

    def connect(self) -> None:
        """Open a route for the dialling side; the listening side gets it with the greeting."""
        assert not self.connected
        self.connected, self.b_has_route = True, False
        self.a.wants_route = self.a.gave_up_route = False
        self.a.outgoing.clear()
        self.b.outgoing.clear()
        self.feed(self.a, RouteOpened())

    def send(self, side: Side, most: int = 1) -> int:
        """Let a side put packets on the wire."""
        if not self.connected or (side is self.b and not self.b_has_route):
            return 0
        count = 0
        while count < most and self.feed(side, RouteReady()):
            count += 1
        return count

    def arrive(self, side: Side, most: int = 1) -> int:
        """Take packets off the wire, at `side`."""
        sender = self.other(side)
        count = 0
        while count < most and sender.outgoing:
            packet = sender.outgoing.popleft()
            if side is self.b and not self.b_has_route:
                self.b_has_route = True
                self.feed(self.b, RouteOpened())
            self.feed(side, PacketArrived(packet))
            count += 1
        return count

    def cut(self, b_notices: bool = True) -> None:
        """Break the route; what is on the wire is lost."""
        assert self.connected
        self.connected = False
        self.a.outgoing.clear()
        self.b.outgoing.clear()
        self.feed(self.a, BROKE)
        if b_notices and self.b_has_route:
            self.feed(self.b, BROKE)
        self.b_has_route = False

    def advance(self, seconds: float) -> None:
        """Let time pass, with every deadline at its time."""
        end = self.now + seconds
        while True:
            times = [t for s in (self.a, self.b) if (t := s.session.next_deadline()) is not None]
            at = min(times, default=math.inf)
            if at > end:
                break
            self.now = max(self.now, at)
            for side in (self.a, self.b):
                deadline = side.session.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self.feed(side, DeadlinePassed())
                    after = side.session.next_deadline()
                    assert after is None or after > self.now or side.wants_route or side.dropped, (
                        "a deadline that stays"
                    )
        self.now = end

    def exchange(self) -> int:
        """Carry packets both ways until both sides are silent."""
        total = 0
        while moved := sum(self.send(s, 1000) + self.arrive(self.other(s), 1000) for s in (self.a, self.b)):
            total += moved
        return total

    def open(self) -> "Pair":
        """Dial and greet."""
        self.advance(0.0)
        assert self.a.wants_route
        self.connect()
        self.exchange()
        return self

    def settle(self) -> None:
        """Heal everything and go on until nothing is left to send."""
        for _ in range(200):
            if not self.connected and self.a.wants_route:
                self.connect()
            self.exchange()
            if self.connected and self.a.session.outbox.idle and self.b.session.outbox.idle:
                return
            self.advance(0.5)
        raise AssertionError("the sessions do not come to rest")

    def check_all_delivered(self) -> None:
        for side in (self.a, self.b):
            assert self.other(side).delivered == side.submitted
