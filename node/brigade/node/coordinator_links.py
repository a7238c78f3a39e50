"""The three connections of a node to its coordinator: control, pulse and bulk."""

import asyncio
import logging
from typing import Protocol

from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_delay, wait_random_exponential

from brigade.node.directory import NodeDirectory
from brigade.node.files import FileExchange
from brigade.wire.connection import Connection
from brigade.wire.dialer import dial
from brigade.wire.encoding import Message
from brigade.wire.endpoint import Endpoint, parse_endpoint
from brigade.wire.errors import BrigadeError, RemoteProtocolError
from brigade.wire.invite import Invite
from brigade.wire.messages import FilePart, Hello, Pulse, PulseEcho, Welcome
from brigade.wire.network import Network
from brigade.wire.session_events import SessionOptions
from brigade.wire.verdict import Verdict

log = logging.getLogger(__name__)

JOIN_DEADLINE_S = 8.0
LONGEST_PAUSE_S = 15.0
FINAL = frozenset({"wrong_key", "not_admitted", "version", "plaintext", "stranger"})
ADVICE = {
    "unreachable": "is it running, and may this machine reach it?",
    "wrong_key": "ask the owner of the run for a new invite",
    "not_admitted": "the owner of the run has revoked this node",
    "version": "install the same release on both machines",
    "stranger": "ask the owner of the run for a new invite",
}


class Daemon(Protocol):
    """What these connections report to."""

    def hello(self) -> Hello:
        """Return what a new control connection says first."""

    def pulse(self, number: int) -> Pulse:
        """Return the heartbeat with this number."""

    def coordinator_told(self, message: Message) -> None:
        """Take a message of the coordinator."""

    def coordinator_lost(self, reason: str) -> None:
        """The coordinator cannot be reached any more."""

    def joining_failed(self, verdict: Verdict) -> None:
        """The coordinator cannot be joined, and trying longer would not help."""


class JoinError(BrigadeError):
    """One attempt to reach the coordinator has failed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class CoordinatorLinks:
    """Dials the coordinator, again and again if need be, and keeps the heartbeat going."""

    def __init__(
        self, network: Network, directory: NodeDirectory, invite: Invite, daemon: Daemon, source_host: str
    ) -> None:
        self._network = network
        self._keys = directory.keys
        self._invite = invite
        self._daemon = daemon
        self._source_host = source_host  # the address that the node listens on
        self.files = FileExchange(directory.cache)
        self._control: Connection | None = None
        self._pulse: Connection | None = None
        self._bulk: Connection | None = None
        self._opening: dict[Connection, asyncio.Future[None]] = {}
        self._host = ""
        self._joining: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    # --- joining --------------------------------------------------------------------------------------------------

    def join(self, patience_s: float) -> None:
        """Connect and say Hello; try for so long as it may help, once at least."""
        self._stop_beating()
        self._joining = asyncio.get_running_loop().create_task(self._join(patience_s))

    async def _join(self, patience_s: float) -> None:
        verdict = Verdict("unreachable", "no address to dial")
        attempts = AsyncRetrying(
            stop=stop_after_delay(patience_s),
            wait=wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE_S),
            retry=retry_if_exception_type(JoinError),
        )
        try:
            async for attempt in attempts:
                with attempt:
                    verdict = await self._join_once()
        except RetryError as error:
            failure = error.last_attempt.exception()
            verdict = failure.verdict if isinstance(failure, JoinError) else verdict
        if self._control is None:
            advice = ADVICE.get(verdict.code)
            reason = f"{verdict.reason}; {advice}" if advice else verdict.reason
            self._daemon.joining_failed(Verdict(verdict.code, reason))

    async def _join_once(self) -> Verdict:
        """Try every address of the invite; return the verdict of success or of a failure that is final."""
        verdict = Verdict("unreachable", "the invite holds no address")
        for address in self._invite.addresses:
            endpoint = parse_endpoint(address, to_dial=True)
            connection = self._dial(endpoint, "the coordinator")
            try:
                await self._opening[connection]
            except JoinError as error:
                verdict = error.verdict
                if verdict.code in FINAL:
                    return verdict
                continue
            self._host = endpoint.host
            self._control = connection
            connection.send(self._daemon.hello())
            return Verdict("closed", "joined")
        raise JoinError(verdict)

    def _dial(self, endpoint: Endpoint, what: str, options: SessionOptions | None = None) -> Connection:
        connection = dial(
            self._network,
            self._keys,
            endpoint,
            self._invite.coordinator_key,
            self,
            deadline_s=JOIN_DEADLINE_S,
            label=f"{what} at {endpoint}",
            options=options,
            source_host=self._source_host,
        )
        self._opening[connection] = asyncio.get_running_loop().create_future()
        return connection

    def enter(self, welcome: Welcome) -> None:
        """Open the pulse and the bulk connection and start the heartbeat."""
        pulse = Endpoint(self._host, welcome.pulse_port)
        silence = SessionOptions(silence_limit_s=welcome.silence_limit_s)
        self._pulse = self._dial(pulse, "the coordinator's pulse socket", silence)
        self._bulk = self._dial(Endpoint(self._host, welcome.bulk_port), "the coordinator's bulk socket")
        for connection in (self._pulse, self._bulk):
            self._opening[connection].add_done_callback(_heard)  # closing is told to `closed`
        self.files.connected(self._bulk)
        self._stop_beating()
        self._beating = asyncio.get_running_loop().create_task(self._beat(self._pulse, welcome.pulse_interval_s))

    async def _beat(self, pulse: Connection, interval_s: float) -> None:
        number = 0
        while True:
            pulse.send(self._daemon.pulse(number))
            number += 1
            await asyncio.sleep(interval_s)

    # --- talking --------------------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Send a control message; without a connection it is lost, as its receiver is."""
        if self._control is not None:
            self._control.send(message)

    def hang_up(self, reason: str) -> None:
        """End the session with a coordinator that breaks the protocol."""
        if self._control is not None:
            self._control.close(reason, "protocol")

    async def farewell(self, timeout_s: float) -> None:
        """Let the last messages go out."""
        if self._control is not None and self._control.is_open:
            await self._control.drained(timeout_s)

    def stop(self) -> None:
        """Dial no more and beat no more."""
        self._stop_beating()
        if self._joining is not None:
            self._joining.cancel()

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    # --- callbacks of connections ---------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Both sides have greeted."""
        if (opening := self._opening.pop(connection, None)) and not opening.done():
            opening.set_result(None)

    def received(self, connection: Connection, message: Message, frames: list[memoryview]) -> None:
        """A message of the coordinator has arrived."""
        match message:
            case PulseEcho():
                pass  # a sign of life: without one the session ends after the run's silence limit
            case FilePart() if connection is self._bulk:
                try:
                    self.files.received(message, frames)
                except RemoteProtocolError as error:
                    connection.close(str(error), "protocol")
            case _ if connection is self._control:
                self._daemon.coordinator_told(message)
            case _:
                connection.close(f"{type(message).__name__} does not belong on this socket", "protocol")

    def closed(self, connection: Connection, verdict: Verdict) -> None:
        """A connection is over: without control, pulse or bulk there is no taking part."""
        if (opening := self._opening.pop(connection, None)) and not opening.done():
            opening.set_exception(JoinError(verdict))
        if connection not in {self._control, self._pulse, self._bulk}:
            return
        lost = [other for other in (self._control, self._pulse, self._bulk) if other not in {None, connection}]
        self._control = self._pulse = self._bulk = None
        self._stop_beating()
        self.files.disconnected()
        for other in lost:
            assert other is not None
            other.close("another connection of the node is over")
        self._daemon.coordinator_lost(verdict.reason)


def _heard(opening: "asyncio.Future[None]") -> None:
    if not opening.cancelled():
        opening.exception()
