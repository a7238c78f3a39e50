"""One connection to another party: a session core, the route that carries it, and the handler that it reports to."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from brigade.wire.drive import Driver
from brigade.wire.encoding import Message, check_frames, decode, encode
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.identity import node_id
from brigade.wire.network import Network
from brigade.wire.session import Session
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
    RouteReady,
    SendPacket,
)
from brigade.wire.session_packets import Buffer
from brigade.wire.verdict import Code, Verdict


class Handler(Protocol):
    """Callbacks of connections; they run in the event loop's thread and must not block."""

    def opened(self, connection: "Connection") -> None:
        """Both sides have greeted; called once."""

    def received(self, connection: "Connection", message: Message, frames: list[memoryview]) -> None:
        """A message has arrived; the frames own their memory."""

    def closed(self, connection: "Connection", verdict: Verdict) -> None:
        """The connection is over, or never came about; called once."""


class Carrier(Protocol):
    """The edge that carries a session's packets: a dialler or a listener."""

    def ready(self) -> bool:
        """There is a route and it takes a packet."""

    def send(self, frames: Sequence[Buffer]) -> None:
        """Take one packet; only when `ready`."""

    def open_route(self) -> None:
        """Dial."""

    def close_route(self) -> None:
        """Give up the present route."""

    def drop(self) -> None:
        """Forget the session."""


class Connection:
    """A connection as its owner sees it; survives broken TCP connections."""

    def __init__(
        self,
        network: Network,
        session: Session,
        carrier: Carrier,
        handler: Handler,
        *,
        remote_key: str,
        remote_host: str,
        label: str,
    ) -> None:
        self.remote_key = remote_key
        self.remote_id = node_id(remote_key)
        self.remote_host = remote_host
        self.label = label
        self.verdict: Verdict | None = None  # set when closed
        self._network = network
        self._session = session
        self._carrier = carrier
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._driver: Driver[Event, Command] = Driver(session, self._carry_out, self.wake)
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.gone = asyncio.Event()  # nothing is left of it, not even a farewell on its way

    def __repr__(self) -> str:
        return f"<connection {self.label} {self.remote_id} {self._session.state}>"

    # --- for its owner --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Both sides have greeted, and neither has closed."""
        return self.verdict is None and self._session.state == "open"

    @property
    def has_route(self) -> bool:
        """There is a TCP connection at present, as far as is known."""
        return self._session.has_route

    @property
    def queued_bytes(self) -> int:
        """Payload bytes accepted by `send` and not yet acknowledged by the other side."""
        return self._session.outbox.queued_bytes

    @property
    def sent_bytes(self) -> int:
        """Payload bytes sent, each counted once."""
        return self._session.outbox.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Payload bytes received, each counted once."""
        return self._session.inbox.received_bytes

    @property
    def rtt_s(self) -> float | None:
        """Seconds that the last ping took there and back; None before the first."""
        return self._session.rtt_s

    def send(self, message: Message, frames: Sequence[Buffer] = (), priority: int = 0) -> None:
        """Queue a message; never blocks.

        Priority 0 is control, 1 gradients, 2 activations, 3 bulk. The frames are not copied: they must not change until
        they are acknowledged (`drained`, `room`). On a closed connection nothing happens.
        """
        self._network.check_thread()
        if self.verdict is None:
            pieces = (encode(message), *frames)
            # Here and not in the core alone: the error belongs to this caller, also from within a callback.
            self._session.outbox.check(pieces, priority)
            self.feed(MessageSubmitted(pieces, priority))

    def close(self, reason: str, code: Code = "closed") -> None:
        """Tell the other side and close; what is not acknowledged yet may be lost, see `drained`."""
        self._network.check_thread()
        if self.verdict is None:
            self.feed(CloseRequested(Verdict(code, reason)))

    def pause(self) -> None:
        """Take no more messages: at most a window of bytes is held back, then the other side has to wait."""
        self.feed(DeliveryPaused())

    def resume(self) -> None:
        """Take messages again."""
        self.feed(DeliveryResumed())

    async def drained(self, timeout_s: float) -> bool:
        """Wait until everything sent has been acknowledged; False if that does not happen in time."""
        return await self._wait(lambda: self._session.outbox.idle, timeout_s)

    async def room(self, most_queued_bytes: int, timeout_s: float | None = None) -> bool:
        """Wait until no more than so many bytes are queued; False if closed or not in time."""
        return await self._wait(lambda: self.queued_bytes <= most_queued_bytes, timeout_s)

    # --- for its edge ---------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Give an event to the session, then send what it has for the route."""
        self._driver.feed(event)
        self.pump()

    def pump(self) -> None:
        """Send while the session has packets and the route takes them."""
        while self._carrier.ready() and self._driver.feed(RouteReady()):
            pass
        if self._waiting:
            self._wake()

    def wake(self) -> None:
        """Feed the deadline that has passed; a dialler's first one is at once, and makes it dial."""
        self.feed(DeadlinePassed())

    async def shut(self, reason: str = "the program ends") -> None:
        """Close, and wait until the farewell is said or its time is over."""
        self.close(reason)
        await self.gone.wait()

    def _carry_out(self, command: Command) -> None:
        match command:
            case SendPacket():
                self._carrier.send(command.frames)
            case DeliverMessage():
                self._deliver(command)
            case OpenRoute():
                self._carrier.open_route()
            case CloseRoute():
                self._carrier.close_route()
            case AnnounceOpened():
                self._handler.opened(self)
            case AnnounceClosed():
                self.verdict = command.verdict
                self._handler.closed(self, command.verdict)
            case DropSession():
                self._driver.stop()
                self._carrier.drop()
                self.gone.set()
            case _:
                assert_never(command)

    def _deliver(self, delivery: DeliverMessage) -> None:
        if self.verdict is not None:
            return
        try:
            header, *frames = delivery.pieces or (b"",)
            message = decode(header)
            check_frames(message, frames)
        except RemoteProtocolError as error:
            self.feed(CloseRequested(Verdict("protocol", f"{self.label} broke the protocol: {error}")))
            return
        self._handler.received(self, message, [memoryview(frame) for frame in frames])

    async def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        if self.verdict is not None or condition():
            return self.verdict is None
        future = self._loop.create_future()
        entry = (condition, future)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
        return self.verdict is None

    def _wake(self) -> None:
        for entry in tuple(self._waiting):
            condition, future = entry
            if (self.verdict is not None or condition()) and not future.done():
                future.set_result(None)
