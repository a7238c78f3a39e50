"""Connections that others open: one bound socket, a session for each greeting, and a word about whoever is refused."""

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence

import zmq

from brigade.wire.arrivals import Arrivals
from brigade.wire.connection import Connection, Handler
from brigade.wire.endpoint import Endpoint
from brigade.wire.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from brigade.wire.keys import KeyPair, node_id
from brigade.wire.monitor import Monitor, Noticed
from brigade.wire.network import Network, plain_host
from brigade.wire.refusals import RefusalFilter
from brigade.wire.resolve import UnknownHostError, resolve
from brigade.wire.session import Session, version_verdict
from brigade.wire.session_events import PacketArrived, RouteDoubted, RouteFailed, RouteOpened, SessionOptions
from brigade.wire.session_packets import Buffer, Farewell, ForeignGreeting, Greeting, pack_farewell, parse_packet
from brigade.wire.sockets import LoopSocket
from brigade.wire.verdict import Verdict

_log = logging.getLogger(__name__)

HANDSHAKE_S = 8.0
SESSIONS_OF_ONE_KEY = 32

OnRefused = Callable[[str, Verdict], None]  # host


class Listener:
    """Listens at an endpoint for those whose key `admits`; reports connections to `handler`.

    `on_refused` hears of everybody else, once a minute for each address and kind; by default the log does.
    """

    def __init__(
        self,
        network: Network,
        keys: KeyPair,
        endpoint: Endpoint,
        admits: Callable[[str], bool],
        handler: Handler,
        *,
        on_refused: OnRefused | None = None,
        options: SessionOptions | None = None,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self.endpoint = endpoint
        self._network = network
        self._keys = keys
        self._admits = admits
        self._handler = handler
        self._on_refused = on_refused or _log_refusal
        self._options = options or SessionOptions()
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._refusals = RefusalFilter()
        self._sessions: dict[tuple[str, bytes], Lane] = {}
        self._lanes: dict[bytes, Lane] = {}  # by ZeroMQ's routing id, one for each TCP connection
        self._blocked: set[Lane] = set()
        self._arrivals = Arrivals(self._refused, self._hung_up)
        self._domain = ""
        self._socket: LoopSocket | None = None
        self._monitor: Monitor | None = None
        self.stray_packets = 0

    @property
    def connections(self) -> list[Connection]:
        """Those that are not closed."""
        return [lane.connection for lane in self._sessions.values() if lane.connection.verdict is None]

    async def start(self) -> int:
        """Bind and return the port; ConfigError names the endpoint and what is wrong with it."""
        self._network.check_thread()
        try:
            addresses = await resolve(self.endpoint)
        except UnknownHostError as error:
            raise ConfigError(f"cannot listen at {self.endpoint}: {error}") from error
        self._domain = self._network.add_domain(self._admits, self._not_admitted)
        raw = self._network.socket(zmq.ROUTER)
        raw.curve_server = True
        raw.curve_publickey = self._keys.public.encode()
        raw.curve_secretkey = self._keys.secret.encode()
        raw.zap_domain = self._domain.encode()
        raw.setsockopt(zmq.ROUTER_MANDATORY, 1)
        raw.setsockopt(zmq.HANDSHAKE_IVL, max(100, int(1000 * self._handshake_s)))
        self._monitor = Monitor(raw, self._noticed)
        self._socket = LoopSocket(raw, self._received, self._retry_blocked)
        try:
            port = _bind(raw, self.endpoint, addresses)
        except ConfigError:
            self._close_sockets()
            raise
        self.endpoint = Endpoint(self.endpoint.host, port)
        self._network.opened(self)
        return port

    async def close(self, reason: str = "the listener closes") -> None:
        """Say goodbye on every connection and stop listening; takes about a second at most."""
        if self._socket is None:
            return
        await asyncio.gather(*(lane.connection.shut(reason) for lane in tuple(self._sessions.values())))
        self._close_sockets()
        self._network.forget(self)

    async def shut(self) -> None:
        """Close, because the network does."""
        await self.close("the program ends")

    def _close_sockets(self) -> None:
        if self._socket is not None and self._monitor is not None:
            self._network.remove_domain(self._domain)
            self._monitor.close()
            self._socket.close()
            self._socket = None

    # --- packets --------------------------------------------------------------------------------------------------

    def send_to(self, routing_id: bytes, frames: Sequence[Buffer]) -> str:
        """Send a packet on one TCP connection."""
        if self._socket is None:
            raise LocalProtocolError("the listener is closed")
        return self._socket.send([routing_id, *frames])

    def block(self, lane: "Lane") -> None:
        """Remember a lane whose packet could not be sent yet."""
        self._blocked.add(lane)

    def forget(self, lane: "Lane") -> None:
        """Drop a session."""
        self._sessions.pop((lane.connection.remote_key, lane.session_id), None)
        self._lanes.pop(lane.routing_id, None)
        self._blocked.discard(lane)

    def _retry_blocked(self) -> None:
        for lane in tuple(self._blocked):
            self._blocked.discard(lane)
            lane.retry()

    def _received(self, frames: list[zmq.Frame]) -> None:
        routing_id = frames[0].bytes
        lane = self._lanes.get(routing_id)
        if lane is not None:
            lane.connection.feed(PacketArrived([frame.buffer for frame in frames[1:]]))
        elif len(frames) > 1:
            self._on_first_packet(routing_id, frames[1:])
        else:
            self.stray_packets += 1

    def _on_first_packet(self, routing_id: bytes, frames: list[zmq.Frame]) -> None:
        key = str(frames[0].get("User-Id"))
        host = plain_host(str(frames[0].get("Peer-Address")))
        fd = int(frames[0].get(zmq.SRCFD))
        self._arrivals.greeted(fd)
        buffers = [frame.buffer for frame in frames]
        who = f"{host} ({node_id(key)})"
        try:
            packet = parse_packet(buffers, self._options.versions)
        except RemoteProtocolError as error:
            self._refuse(routing_id, host, Verdict("protocol", f"{who} broke the protocol: {error}"))
            return
        match packet:
            case ForeignGreeting():
                verdict = version_verdict(who, packet.versions, self._options.versions)
                self._refuse(routing_id, host, verdict)
            case Greeting():
                self._on_greeting(routing_id, fd, key, host, packet, buffers)
            case _:
                # Left over from a session that is gone, or from a connection that another has replaced.
                self.stray_packets += 1

    def _on_greeting(
        self, routing_id: bytes, fd: int, key: str, host: str, greeting: Greeting, buffers: list[memoryview]
    ) -> None:
        lane = self._sessions.get((key, greeting.session_id))
        if lane is None:
            refusal = self._objection(key, host, greeting)
            if refusal is not None:
                self._refuse(routing_id, host, refusal)
                return
            lane = self._new_lane(key, host, greeting.session_id)
        self._lanes.pop(lane.routing_id, None)
        self._blocked.discard(lane)
        lane.take_route(routing_id, fd, host)
        self._lanes[routing_id] = lane
        lane.connection.feed(RouteOpened())
        lane.connection.feed(PacketArrived(buffers))

    def _objection(self, key: str, host: str, greeting: Greeting) -> Verdict | None:
        who = f"{host} ({node_id(key)})"
        if not self._admits(key):
            return Verdict("not_admitted", f"{who} is not admitted here")
        if greeting.resuming:
            return Verdict("lost_session", f"no session of {who} to go on with: this side was started again or gave up")
        if sum(1 for k, _ in self._sessions if k == key) >= SESSIONS_OF_ONE_KEY:
            return Verdict("protocol", f"{who} has {SESSIONS_OF_ONE_KEY} connections already")
        return None

    def _new_lane(self, key: str, host: str, session_id: bytes) -> "Lane":
        label = f"{node_id(key)} at {host}"
        session = Session(session_id, False, label, self._options, self._loop.time())
        lane = Lane(self, session_id)
        lane.connection = Connection(
            self._network, session, lane, self._handler, remote_key=key, remote_host=host, label=label
        )
        self._sessions[(key, session_id)] = lane
        return lane

    # --- strangers ------------------------------------------------------------------------------------------------

    def _refuse(self, routing_id: bytes, host: str, verdict: Verdict) -> None:
        self._refused(host, verdict)
        reason = "" if verdict.code == "version" else verdict.reason
        self.send_to(routing_id, pack_farewell(Farewell(self._options.versions, verdict.code, reason)))

    def _not_admitted(self, host: str, key: str) -> None:
        who = f"{host} ({node_id(key)})" if key else host
        self._refused(host, Verdict("not_admitted", f"{who} knocked at {self.endpoint} with a key not admitted here"))

    def _hung_up(self, host: str, verdict: Verdict) -> None:
        # A probe of our own dialler follows many a failed handshake, and has often gone before the system tells its
        # address: not worth a second line.
        if not self._refusals.heard_lately(None, self._loop.time()):
            self._refused(host, verdict)

    def _refused(self, host: str, verdict: Verdict) -> None:
        now = self._loop.time()
        if verdict.code == "stranger" and self._refusals.heard_lately(host, now):
            return
        if self._refusals.is_news(host, verdict.code, now):
            self._on_refused(host, verdict)

    def _noticed(self, event: Noticed) -> None:
        if event.kind == "disconnected" and self._socket is not None:
            self._socket.drain()
            for lane in tuple(self._lanes.values()):
                # The number may belong to a newer connection by now: who sends will know.
                if lane.fd == event.fd:
                    lane.connection.feed(RouteDoubted())
        self._arrivals.noticed(event, self.endpoint)


class Lane:
    """Carries the packets of one session over whichever TCP connection it has now."""

    connection: Connection

    def __init__(self, listener: Listener, session_id: bytes) -> None:
        self.session_id = session_id
        self.routing_id = b""
        self.fd = -1
        self._listener = listener
        self._stuck: Sequence[Buffer] | None = None

    def take_route(self, routing_id: bytes, fd: int, host: str) -> None:
        """Go on over a new TCP connection."""
        self.routing_id, self.fd, self._stuck = routing_id, fd, None
        self.connection.remote_host = host

    def ready(self) -> bool:
        """There is a route and it takes a packet."""
        return bool(self.routing_id) and self._stuck is None

    def send(self, frames: Sequence[Buffer]) -> None:
        """Take one packet; keep it if the queue is full."""
        result = self._listener.send_to(self.routing_id, frames)
        self._stuck = frames if result == "full" else None
        if result == "full":
            self._listener.block(self)
        elif result == "unreachable":
            self.routing_id = b""
            label = self.connection.label
            self.connection.feed(RouteFailed(Verdict("unreachable", f"the connection to {label} broke")))

    def retry(self) -> None:
        """Send what could not be sent, and then what came after it."""
        if self._stuck is not None:
            frames, self._stuck = self._stuck, None
            self.send(frames)
        self.connection.pump()

    def open_route(self) -> None:
        """Wait for the other side: a listener does not dial."""

    def close_route(self) -> None:
        """Send no more on the present TCP connection; the dialler closes it."""
        self._stuck = None

    def drop(self) -> None:
        """Forget the session."""
        self._listener.forget(self)


def _bind(raw: "zmq.Socket[bytes]", endpoint: Endpoint, addresses: Sequence[Endpoint]) -> int:
    """Bind the first address, and the others of the same name where they have the same port free."""
    first, *others = addresses
    try:
        raw.bind(Endpoint(first.host, endpoint.port).address if endpoint.port else f"{first.address[:-1]}*")
    except zmq.ZMQError as error:
        raise ConfigError(_bind_error(endpoint, error)) from error
    last = raw.getsockopt(zmq.LAST_ENDPOINT)
    port = int(bytes(last).rstrip(b"\0").rpartition(b":")[2])
    for other in others:
        try:
            raw.bind(Endpoint(other.host, port).address)
        except zmq.ZMQError as error:
            _log.info("not listening at %s: %s", Endpoint(other.host, port), error)
    return port


def _bind_error(endpoint: Endpoint, error: zmq.ZMQError) -> str:
    match error.errno:
        case zmq.EADDRINUSE:
            return f"cannot listen at {endpoint}: port {endpoint.port} is in use"
        case zmq.EADDRNOTAVAIL | errno.ENODEV:
            return f"cannot listen at {endpoint}: {endpoint.host} is not an address of this machine"
        case _:
            return f"cannot listen at {endpoint}: {(error.strerror or str(error)).lower()}"


def _log_refusal(host: str, verdict: Verdict) -> None:
    _log.warning("refused: %s", verdict.reason, extra={"code": verdict.code, "host": host})
