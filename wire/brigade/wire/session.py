"""One side of a session: messages arrive once and in order although routes break.

A session outlives the TCP connections (routes) that carry it. The dialler opens routes; on each, both sides greet with
what they have received, and everything after that is sent again. This is the only reason to send again, besides a gap
that the receiver reports: never a timer.

States: `greeting` (not open yet), `open` (with or without a route), `leaving` (the farewell is on its way), `over`.
"""

from typing import Literal, assert_never

from brigade.wire.errors import RemoteProtocolError
from brigade.wire.inbox import Inbox
from brigade.wire.outbox import Outbox
from brigade.wire.session_events import (
    AnnounceClosed,
    AnnounceOpened,
    CloseRequested,
    CloseRoute,
    Command,
    DeadlinePassed,
    DeliverMessage,
    DeliveryPaused,
    DeliveryResumed,
    DropSession,
    Event,
    MessageSubmitted,
    OpenRoute,
    PacketArrived,
    RouteDoubted,
    RouteFailed,
    RouteOpened,
    RouteProgressed,
    RouteReady,
    SendPacket,
    SessionOptions,
)
from brigade.wire.session_packets import (
    Ack,
    Buffer,
    Data,
    Farewell,
    ForeignGreeting,
    Greeting,
    Ping,
    Pong,
    Versions,
    pack_ack,
    pack_data,
    pack_farewell,
    pack_greeting,
    pack_ping,
    parse_packet,
)
from brigade.wire.verdict import Verdict, code_of

State = Literal["greeting", "open", "leaving", "over"]


class Session:
    """Core of one side; `label` names the other side in verdicts ("tcp://10.0.0.2:7700")."""

    def __init__(self, session_id: bytes, dials: bool, label: str, options: SessionOptions, now: float) -> None:
        self.session_id = session_id
        self.state: State = "greeting"
        self.rtt_s: float | None = None
        self.heard_at = now
        self.inbox = Inbox(options.window_bytes, options.max_message_bytes)
        self.outbox = Outbox(options.window_bytes, options.max_message_bytes, options.max_pieces)
        self._dials = dials
        self._label = label
        self._options = options
        self._began_at = now
        self._progress = Verdict("unreachable", f"no answer from {label}")
        # The route: whether there is one, whether both sides have greeted on it, since when.
        self._route = False
        self._greeted = False
        self._route_at = now
        # Small packets to send as soon as the route takes them.
        self._owed_greeting = False
        self._owed_ping = False
        self._owed_pong: int | None = None
        self._farewell: Farewell | None = None
        self._owed_farewell = False
        # Times; None: not set.
        self._redial_at: float | None = now if dials else None
        self._redial_delay_s = options.redial_first_s
        self._ping_at = now + options.ping_interval_s
        self._ack_at: float | None = None
        self._ack_due = False
        self._leave_at: float | None = None

    @property
    def has_route(self) -> bool:
        """Both sides have greeted on a route that is not known to be broken."""
        return self._greeted

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event at time `now` (monotonic seconds) and return what to do."""
        if self.state == "over":
            return []
        match event:
            case RouteReady():
                frames = self._next_packet(now)
                return [] if frames is None else [SendPacket(frames)]
            case PacketArrived():
                return self._on_packet(event, now)
            case MessageSubmitted():
                if self.state in ("greeting", "open"):
                    self.outbox.submit(event.pieces, event.priority)
                return []
            case RouteOpened():
                return self._on_route(now)
            case RouteProgressed():
                self._progress = Verdict(event.code, event.stage)
                return []
            case RouteFailed():
                return self._on_route_failed(event, now)
            case RouteDoubted():
                self._owed_ping = self._greeted
                self._owed_farewell = self.state == "leaving"
                return []
            case DeadlinePassed():
                return self._on_deadline(now)
            case CloseRequested():
                return self._leave(event.verdict, now, tell=True)
            case DeliveryPaused():
                self.inbox.pause()
                return []
            case DeliveryResumed():
                self._ack_due = True
                return [DeliverMessage(a.priority, a.pieces) for a in self.inbox.resume()]
            case _:
                assert_never(event)

    def next_deadline(self) -> float | None:
        """Return when `DeadlinePassed` is due."""
        times = [time for time in (self._leave_at, self._redial_at, self._ack_at) if time is not None]
        if self.state == "greeting":
            times.append(self._began_at + self._options.greeting_deadline_s)
        elif self.state == "open":
            times.append(self.heard_at + self._options.silence_limit_s)
            if self._greeted:
                times.append(self._ping_at)
            if (stale_at := self._stale_at()) is not None:
                times.append(stale_at)
        return min(times, default=None)

    # --- routes ---------------------------------------------------------------------------------------------------

    def _on_route(self, now: float) -> list[Command]:
        self._route, self._greeted, self._route_at = True, False, now
        self._owed_greeting = self.state in ("greeting", "open")
        self._owed_farewell = self.state == "leaving"
        self._owed_pong, self._owed_ping = None, False
        self._redial_at = None
        self.inbox.route_changed()
        return []

    def _on_route_failed(self, event: RouteFailed, now: float) -> list[Command]:
        self._route = self._greeted = False
        if self.state == "leaving":
            return self._end()
        if event.final:
            return self._leave(event.verdict, now, tell=False)
        self._progress = event.verdict
        if self._dials:
            self._redial_at = now + self._redial_delay_s
            self._redial_delay_s = min(2 * self._redial_delay_s, self._options.redial_most_s)
        return []

    def _stale_at(self) -> float | None:
        """When to give up the present route and dial another."""
        if not (self._dials and self._route):
            return None
        if self._greeted:
            return max(self.heard_at, self._route_at) + self._options.stale_route_s
        return self._route_at + self._options.greeting_deadline_s

    # --- deadlines ------------------------------------------------------------------------------------------------

    def _on_deadline(self, now: float) -> list[Command]:
        options = self._options
        if self._leave_at is not None and now >= self._leave_at:
            return self._end()
        if self.state == "greeting" and now >= self._began_at + options.greeting_deadline_s:
            return self._leave(self._progress, now, tell=True)
        if self.state == "open" and now >= self.heard_at + options.silence_limit_s:
            return self._leave(self._silence(), now, tell=True)
        commands: list[Command] = []
        stale_at = self._stale_at()
        if self.state == "open" and stale_at is not None and now >= stale_at:
            self._route = self._greeted = False
            self._redial_at = now
            commands.append(CloseRoute())
        if self._redial_at is not None and now >= self._redial_at:
            self._redial_at = None
            commands.append(OpenRoute())
        if self._ack_at is not None and now >= self._ack_at:
            self._ack_at, self._ack_due = None, True
        if self._greeted and now >= self._ping_at:
            self._owed_ping = True
            self._ping_at = now + options.ping_interval_s
        return commands

    def _silence(self) -> Verdict:
        limit = f"{self._options.silence_limit_s:g} s"
        if self._greeted or not self._dials:
            return Verdict("silent", f"nothing heard from {self._label} for {limit}")
        return Verdict(
            self._progress.code, f"lost {self._label} and could not reach it again in {limit}: {self._progress.reason}"
        )

    # --- incoming -------------------------------------------------------------------------------------------------

    def _on_packet(self, event: PacketArrived, now: float) -> list[Command]:
        try:
            packet = parse_packet(event.frames, self._options.versions, self._options.max_pieces)
            match packet:
                case Farewell():
                    return self._on_farewell(packet, now)
                case ForeignGreeting():
                    return self._leave(version_verdict(self._label, packet.versions, self._options.versions), now, True)
                case Greeting():
                    return self._on_greeting(packet, now)
            if not self._greeted or self.state != "open":
                return []
            self.heard_at = now
            match packet:
                case Data():
                    return self._on_data(packet, now)
                case Ack():
                    self._on_ack(packet)
                case Ping():
                    self._owed_pong = packet.token
                    self.inbox.report_open_gap()
                case Pong():
                    self.rtt_s = max(0.0, now - packet.token / 1e6)
                case _:
                    assert_never(packet)
        except RemoteProtocolError as error:
            return self._leave(Verdict("protocol", f"{self._label} broke the protocol: {error}"), now, tell=True)
        return []

    def _on_greeting(self, greeting: Greeting, now: float) -> list[Command]:
        if self.state not in ("greeting", "open") or not self._route:
            return []
        if greeting.session_id != self.session_id:
            raise RemoteProtocolError("greeting of another session")
        if self._greeted:
            raise RemoteProtocolError("greeted twice")
        if greeting.received < self.outbox.acknowledged:
            reason = f"{self._label} no longer has what it had received: it was started again"
            return self._leave(Verdict("lost_session", reason), now, tell=True)
        self.heard_at = now
        self.outbox.acknowledge(greeting.received)
        self.outbox.grant(greeting.credit)
        self.outbox.rewind()
        self._greeted = True
        self._owed_ping = True
        self._ping_at = now + self._options.ping_interval_s
        self._redial_delay_s = self._options.redial_first_s
        if self.state == "open":
            return []
        self.state = "open"
        return [AnnounceOpened()]

    def _on_data(self, data: Data, now: float) -> list[Command]:
        self.outbox.acknowledge(data.received)
        self.outbox.grant(data.credit)
        arrived = self.inbox.accept(data)
        if self.inbox.owes_ack and self._ack_at is None and not self._ack_due:
            self._ack_at = now + self._options.ack_delay_s
        return [DeliverMessage(a.priority, a.pieces) for a in arrived]

    def _on_ack(self, ack: Ack) -> None:
        self.outbox.acknowledge(ack.received)
        self.outbox.grant(ack.credit)
        if ack.gap:
            self.outbox.rewind()

    def _on_farewell(self, farewell: Farewell, now: float) -> list[Command]:
        if self.state == "leaving":
            return self._end()
        if farewell.code == "version":
            verdict = version_verdict(self._label, farewell.versions, self._options.versions)
        else:
            verdict = Verdict(code_of(farewell.code), f"{self._label} closed the connection: {farewell.reason}")
        # The dialler has to know that its farewell has arrived before it can close its socket; the listener has not.
        return self._leave(verdict, now, tell=not self._dials)

    # --- outgoing -------------------------------------------------------------------------------------------------

    def _next_packet(self, now: float) -> list[Buffer] | None:
        if not self._route:
            return None
        if self._owed_farewell and self._farewell is not None:
            self._owed_farewell = False
            return pack_farewell(self._farewell)
        if self._owed_greeting:
            self._owed_greeting = False
            versions, inbox = self._options.versions, self.inbox
            resuming = self.state == "open"
            self._acknowledged()
            return pack_greeting(Greeting(versions, self.session_id, inbox.received, inbox.credit, resuming))
        if not self._greeted or self.state != "open":
            return None
        if self._owed_pong is not None:
            token, self._owed_pong = self._owed_pong, None
            return pack_ping(Pong(token))
        if self._owed_ping:
            self._owed_ping = False
            return pack_ping(Ping(max(0, int(now * 1e6))))
        return self._next_ack() or self._next_data()

    def _next_ack(self) -> list[Buffer] | None:
        inbox = self.inbox
        if not (self._ack_due or inbox.owes_ack_now or inbox.gap_due):
            return None
        ack = Ack(inbox.received, inbox.credit, inbox.gap_due)
        self._acknowledged()
        return pack_ack(ack)

    def _next_data(self) -> list[Buffer] | None:
        numbered = self.outbox.next_packet()
        if numbered is None:
            return None
        inbox, fragment = self.inbox, numbered.fragment
        frames = pack_data(
            numbered.number,
            inbox.received,
            inbox.credit,
            fragment.priority,
            fragment.sizes,
            fragment.last,
            fragment.parts,
        )
        self._acknowledged()
        return frames

    def _acknowledged(self) -> None:
        self.inbox.told()
        self._ack_at, self._ack_due = None, False

    # --- the end --------------------------------------------------------------------------------------------------

    def _leave(self, verdict: Verdict, now: float, tell: bool) -> list[Command]:
        """Announce the end; stay until the farewell has had its chance, if one is to be said."""
        if self.state == "leaving":
            return []
        commands: list[Command] = [AnnounceClosed(verdict)]
        self.outbox.clear()
        self.inbox.clear()
        self._redial_at = self._ack_at = None
        if not (tell and self._route):
            return commands + self._end()
        self.state = "leaving"
        reason = verdict.reason if verdict.code != "version" else ""
        self._farewell = Farewell(self._options.versions, verdict.code, reason)
        self._owed_farewell = True
        self._owed_greeting = False
        self._leave_at = now + self._options.farewell_deadline_s
        return commands

    def _end(self) -> list[Command]:
        self.state = "over"
        self._leave_at = self._redial_at = self._ack_at = None
        commands: list[Command] = [CloseRoute()] if self._route else []
        self._route = self._greeted = False
        return [*commands, DropSession()]


def version_verdict(label: str, theirs: Versions, ours: Versions) -> Verdict:
    """Return the refusal that names both sides' versions."""
    return Verdict("version", f"{label} speaks protocol {theirs}, this program {ours}: no version in common")
