"""Connections that this side opens: one socket for each attempt, and the reason when an attempt fails."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace

import zmq

from brigade.wire.connection import Connection, Handler
from brigade.wire.endpoint import Endpoint, source_for
from brigade.wire.keys import KeyPair
from brigade.wire.monitor import Monitor, Noticed
from brigade.wire.network import Network
from brigade.wire.probe import probe
from brigade.wire.resolve import UnknownHostError, resolve
from brigade.wire.session import Session
from brigade.wire.session_events import PacketArrived, RouteFailed, RouteOpened, RouteProgressed, SessionOptions
from brigade.wire.session_packets import Buffer
from brigade.wire.sockets import LoopSocket
from brigade.wire.verdict import Code, Verdict

_log = logging.getLogger(__name__)

# A handshake that broke once may have met a network that broke: a key is called wrong when it happens again.
_STRIKES = 2


def dial(
    network: Network,
    keys: KeyPair,
    endpoint: Endpoint,
    remote_key: str,
    handler: Handler,
    *,
    deadline_s: float = 9.0,
    label: str = "",
    awaits_admission: bool = False,
    options: SessionOptions | None = None,
    source_host: str = "",
) -> Connection:
    """Start to connect to a listener and return at once; `opened` or `closed` of the handler tells how it went.

    `awaits_admission`: the listener will admit this key soon, so go on trying until the deadline.
    `source_host`: the address of ours to connect from, where it can reach the other one; any when empty.
    """
    network.check_thread()
    options = replace(options or SessionOptions(), greeting_deadline_s=deadline_s)
    shown = label or endpoint.address
    loop = asyncio.get_running_loop()
    session = Session(secrets.token_bytes(16), True, shown, options, loop.time())
    dialer = Dialer(network, keys, endpoint, remote_key, shown, deadline_s, awaits_admission, source_host)
    connection = Connection(
        network, session, dialer, handler, remote_key=remote_key, remote_host=endpoint.host, label=shown
    )
    dialer.connection = connection
    network.opened(connection)
    # Not before the caller has the connection: handlers compare it.
    loop.call_soon(connection.wake)
    return connection


class Dialer:
    """Carries the packets of one session over one attempt after the other."""

    connection: Connection

    def __init__(
        self,
        network: Network,
        keys: KeyPair,
        endpoint: Endpoint,
        remote_key: str,
        label: str,
        deadline_s: float,
        awaits_admission: bool,
        source_host: str,
    ) -> None:
        self._network = network
        self._keys = keys
        self._endpoint = endpoint
        self._remote_key = remote_key
        self._label = label
        self._deadline_s = deadline_s
        self._awaits_admission = awaits_admission
        self._source_host = source_host
        self._attempt: Attempt | None = None
        self._task: asyncio.Task[None] | None = None
        self._attempts = 0
        self._strikes = 0

    # --- for the session ------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """There is a route and it takes a packet."""
        return self._attempt is not None and self._attempt.stuck is None

    def send(self, frames: Sequence[Buffer]) -> None:
        """Take one packet; keep it if the socket is full."""
        if self._attempt is not None and self._attempt.socket.send(frames) != "sent":
            self._attempt.stuck = frames

    def open_route(self) -> None:
        """Dial once more."""
        self.close_route()
        self._task = asyncio.get_running_loop().create_task(self._dial(), name=f"dial {self._label}")

    def close_route(self) -> None:
        """Give up the present attempt."""
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def drop(self) -> None:
        """Forget the session."""
        self.close_route()
        self._network.forget(self.connection)

    # --- attempts -------------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        try:
            addresses = await resolve(self._endpoint)
        except UnknownHostError as error:
            self._task = None
            # Before the first success a name that nobody knows is a mistake; later it is an outage.
            self._fail("unreachable", f"{self._label}: {error}", final=not self._opened_before())
            return
        self._task = None
        if self._network.closed:
            return
        address = addresses[self._attempts % len(addresses)]
        self._attempts += 1
        # With several addresses one that swallows packets must leave time for the others.
        connect_timeout_s = self._deadline_s / (len(addresses) + 1) if len(addresses) > 1 else 0.0
        # A handshake takes three round trips and a half, each of which may be long; only other addresses limit it.
        handshake_s = self._deadline_s / len(addresses)
        try:
            source = source_for(self._source_host, address)
            self._attempt = Attempt(self, address, source, connect_timeout_s, handshake_s)
        except zmq.ZMQError as error:  # no file descriptor left, or an address of a kind that this machine lacks
            self._fail("unreachable", f"cannot connect to {self._label}: {(error.strerror or str(error)).lower()}")
            return
        self.connection.feed(RouteOpened())

    def make_socket(self) -> "zmq.Socket[bytes]":
        """Return a socket that expects the listener's key."""
        socket = self._network.socket(zmq.DEALER)
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()
        socket.curve_serverkey = self._remote_key.encode()
        return socket

    def packet_arrived(self, frames: list[zmq.Frame]) -> None:
        """Hand frames to the session."""
        self.connection.feed(PacketArrived([frame.buffer for frame in frames]))

    def noticed(self, attempt: "Attempt", event: Noticed) -> None:
        """Take note of how far the attempt has come, or why it goes no further."""
        if attempt is not self._attempt:
            return
        label = self._label
        match event.kind:
            case "connected":
                attempt.connected = True
                said = f"{label} accepts connections but did not answer the handshake"
                self.connection.feed(RouteProgressed(said, "silent"))
            case "secured":
                attempt.secured = True
                self._strikes = 0
                said = f"{label} let us in but did not greet: it is busy or hangs"
                self.connection.feed(RouteProgressed(said, "silent"))
            case "connect_failed":
                self._investigate(attempt)
            case "handshake_failed":
                attempt.failure = event.failure
            case "disconnected":
                self._on_disconnected(attempt)
            case _:
                pass

    def _on_disconnected(self, attempt: "Attempt") -> None:
        label = self._label
        if attempt.secured:
            self._end_attempt()
            self._fail("unreachable", f"the connection to {label} broke")
            return
        match attempt.failure:
            case "not_admitted":
                self._end_attempt()
                self._fail("not_admitted", f"{label} does not admit our key", final=not self._awaits_admission)
            case "plaintext":
                self._end_attempt()
                self._fail("plaintext", f"{label} speaks ZeroMQ without encryption", final=True)
            case "timeout":
                self._end_attempt()
                self._fail("silent", f"{label} accepts connections but did not answer the handshake")
            case "cryptographic":
                self._end_attempt()
                self._strike()
            case _:
                self._investigate(attempt)

    def _investigate(self, attempt: "Attempt") -> None:
        """Find out what is there by its first bytes; the attempt is over."""
        self._end_attempt()
        task = self._probe(attempt.address, attempt.connected)
        self._task = asyncio.get_running_loop().create_task(task, name=f"probe {self._label}")

    async def _probe(self, address: Endpoint, connected: bool) -> None:
        label = self._label
        try:
            found = await probe(address, source_host=source_for(self._source_host, address))
        except OSError as error:
            self._task = None
            why = error.strerror or str(error)
            self._fail("unreachable", f"nothing can be reached at {label}: {_plain_cause(why)}")
            return
        self._task = None
        if found == "stranger":
            self._fail("stranger", f"what listens at {label} is not Bucket Brigade", final=not self._opened_before())
        elif found == "plaintext":
            self._fail("plaintext", f"{label} speaks ZeroMQ without encryption", final=True)
        elif found == "curve" and connected:
            self._strike()
        else:
            self._fail("silent", f"{label} accepts connections but says nothing")

    def _strike(self) -> None:
        self._strikes += 1
        reason = f"{self._label} has another key than the one we were given for it"
        self._fail("wrong_key", reason, final=self._strikes >= _STRIKES)

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    def _fail(self, code: Code, reason: str, final: bool = False) -> None:
        _log.debug("attempt %d: %s: %s", self._attempts, code, reason)
        self.connection.feed(RouteFailed(Verdict(code, reason), final))

    def _opened_before(self) -> bool:
        return self.connection.is_open


class Attempt:
    """One TCP connection: a socket that never reconnects by itself, and its monitor."""

    def __init__(
        self, dialer: Dialer, address: Endpoint, source: str, connect_timeout_s: float, handshake_s: float
    ) -> None:
        self.address = address
        self.connected = False
        self.secured = False
        self.failure: str | None = None
        self.stuck: Sequence[Buffer] | None = None
        self._dialer = dialer
        raw = dialer.make_socket()
        raw.setsockopt(zmq.RECONNECT_IVL, -1)
        raw.setsockopt(zmq.HANDSHAKE_IVL, max(100, int(1000 * handshake_s)))
        raw.setsockopt(zmq.CONNECT_TIMEOUT, int(1000 * connect_timeout_s))
        self._monitor = Monitor(raw, self._on_noticed)
        self.socket = LoopSocket(raw, dialer.packet_arrived, self._on_writable)
        try:
            # ZeroMQ's notation: where from, then where to
            raw.connect(f"tcp://{Endpoint(source, 0)};{address}" if source else address.address)
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        """Close socket and monitor at once."""
        self._monitor.close()
        self.socket.close()

    def _on_noticed(self, event: Noticed) -> None:
        if event.kind == "disconnected":
            # What was said before the connection broke comes first.
            self.socket.drain()
        self._dialer.noticed(self, event)

    def _on_writable(self) -> None:
        if self.stuck is not None and self.socket.send(self.stuck) == "sent":
            self.stuck = None
            self._dialer.connection.pump()


def _plain_cause(why: str) -> str:
    # asyncio: "Connect call failed ('127.0.0.1', 1)" hides the system's own words behind the address.
    return "the connection is refused" if "onnect call failed" in why else why.lower()
