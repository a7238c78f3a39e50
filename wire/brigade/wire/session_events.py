"""What happens to a session, what it asks for, and the numbers that it works with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from brigade.wire.limits import DEFAULT_LIMITS
from brigade.wire.session_packets import MAX_PIECES, Buffer, Versions
from brigade.wire.verdict import Code, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Limits and deadlines of one session; seconds and bytes."""

    versions: Versions = field(default_factory=lambda: Versions(1, 1))
    window_bytes: int = 32 * 1024 * 1024  # un-consumed at the receiver, and in flight from the sender
    max_message_bytes: int = DEFAULT_LIMITS.max_message_bytes
    max_pieces: int = MAX_PIECES
    greeting_deadline_s: float = 10.0
    silence_limit_s: float = 30.0
    ping_interval_s: float = 5.0
    ack_delay_s: float = 0.25  # more often only when the window fills: see `Inbox.owes_ack_now`
    redial_first_s: float = 0.1
    redial_most_s: float = 2.0
    farewell_deadline_s: float = 1.0

    @property
    def stale_route_s(self) -> float:
        """Silence after which the dialler tries another route: two pings went unanswered."""
        return 2.5 * self.ping_interval_s


# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteOpened:
    """There is something to send packets into; whether anybody hears them is not known yet."""


@dataclass(frozen=True, slots=True)
class RouteProgressed:
    """The route has come as far as `stage`: a phrase for the verdict if it comes no further."""

    stage: str
    code: Code


@dataclass(frozen=True, slots=True)
class RouteFailed:
    """The route is gone; `final` if another attempt would end in the same way."""

    verdict: Verdict
    final: bool = False


@dataclass(frozen=True, slots=True)
class RouteDoubted:
    """The route may be gone: whoever sends into it will know."""


@dataclass(frozen=True, slots=True)
class RouteReady:
    """The route takes one more packet."""


@dataclass(frozen=True, slots=True)
class PacketArrived:
    """Frames have come in on the present route."""

    frames: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class MessageSubmitted:
    """The owner of this side wants a message to be sent."""

    pieces: Sequence[Buffer]
    priority: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time that `next_deadline` named has come."""


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The owner of this side wants the session to end."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DeliveryPaused:
    """The owner of this side takes no more messages for a while."""


@dataclass(frozen=True, slots=True)
class DeliveryResumed:
    """The owner of this side takes messages again."""


Event = (
    RouteOpened
    | RouteProgressed
    | RouteFailed
    | RouteDoubted
    | RouteReady
    | PacketArrived
    | MessageSubmitted
    | DeadlinePassed
    | CloseRequested
    | DeliveryPaused
    | DeliveryResumed
)

# --- commands -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenRoute:
    """Dial (again)."""


@dataclass(frozen=True, slots=True)
class CloseRoute:
    """Give up the present route."""


@dataclass(frozen=True, slots=True)
class SendPacket:
    """Put these frames into the route."""

    frames: list[Buffer]


@dataclass(frozen=True, slots=True)
class DeliverMessage:
    """Hand a whole message to the owner of this side."""

    priority: int
    pieces: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class AnnounceOpened:
    """The session is open: both sides have greeted."""


@dataclass(frozen=True, slots=True)
class AnnounceClosed:
    """The session is over, for this reason."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DropSession:
    """Nothing more will come from this session: forget it."""


Command = OpenRoute | CloseRoute | SendPacket | DeliverMessage | AnnounceOpened | AnnounceClosed | DropSession
