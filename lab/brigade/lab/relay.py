"""The relay: listens at the outer address of every host and passes connections on to the inner one, as the links allow.

It shapes streams of bytes: no packet headers, no slow start, no congestion control. Rates are payload.
"""

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Iterable, Mapping
from random import Random

from brigade.lab.fabric import CutState, Fabric, Route
from brigade.lab.hosts import Place
from brigade.lab.precise_loop import Agenda
from brigade.lab.relay_flow import Flow, Gate
from brigade.wire.errors import ConfigError

BACKLOG = 128
RECEIVE_S = 0.03  # of the slowest line that the system may hold for us: the rest stays with the program that sends
LEAST_RECEIVE = 64 * 1024
MOST_RECEIVE = 4 * 1024 * 1024
RESET = struct.pack("ii", 1, 0)  # linger for 0 s: closing resets


class Relay:
    """All connections of a lab; one event loop."""

    def __init__(self, places: Mapping[str, Place], fabric: Fabric, seed: int = 0) -> None:
        self._places = places
        self._hosts = {place.inner_host: name for name, place in places.items()}
        self._fabric = fabric
        self._random = Random(seed)  # noqa: S311 - jitter is no secret
        self._loop = asyncio.get_running_loop()
        self.agenda = Agenda(self._loop)
        self._gates = {name: Gate(uplink, self.agenda) for name, uplink in fabric.uplinks.items()}
        self._listeners: list[socket.socket] = []
        self._connections: set[Connection] = set()

    def open(self) -> None:
        """Listen for every host. Raises ConfigError where a port is in use or loopback has one address only."""
        try:
            for place in self._places.values():
                for port in place.ports:
                    self._listen(place, port)
        except OSError as error:
            self.close()
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"{place.outer_host}:{port} is in use") from error
            raise ConfigError(
                f"{place.outer_host} cannot be listened on ({error.strerror}): a lab needs all of 127.0.0.0/8"
                " on loopback, as Linux has it"
            ) from error

    def _listen(self, place: Place, port: int) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place.outer_host, port))
        listener.listen(BACKLOG)
        self._loop.add_reader(listener.fileno(), self._accept, listener, place, port)

    def close(self) -> None:
        """Stop listening and reset every connection."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        for connection in tuple(self._connections):
            connection.abort()

    # --- what a person may do to the links ------------------------------------------------------------------------

    def cut(self, host: str, other: str = "", *, both: bool = True, state: CutState = "silent") -> None:
        """Cut what a host sends, and with `both` what it receives: held until `heal`, or reset."""
        routes = self._fabric.cut(host, other, state, both=both)
        if state == "reset":
            for connection in self._on(routes):
                connection.abort()

    def heal(self, host: str, other: str = "") -> None:
        """Make both directions whole again."""
        routes = self._fabric.cut(host, other, "whole", both=True)
        for connection in self._on(routes):
            connection.heal(self._loop.time())

    def change_rate(self, host: str, up: str | None, down: str | None) -> None:
        """Give a host another uplink or downlink."""
        self._fabric.change_rate(host, up, down, self._loop.time())

    def corrupt(self, source: str, target: str, pieces: int = 1) -> None:
        """Change one byte in each of the next pieces."""
        self._fabric.route(source, target).corrupt_next += pieces

    def routes(self) -> Iterable[Route]:
        """Return the ways that were used or asked for, with their counters."""
        return self._fabric.routes.values()

    def _on(self, routes: Iterable[Route]) -> list["Connection"]:
        ways = {id(route) for route in routes}
        return [each for each in self._connections if {id(each.forth.route), id(each.back.route)} & ways]

    # --- connections ------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, place: Place, port: int) -> None:
        try:
            accepted, (address, _) = listener.accept()
        except OSError:
            return
        source = self._hosts.get(address)
        if source is None or source == place.name:
            _reset(accepted)
            return
        forth, back = self._fabric.route(source, place.name), self._fabric.route(place.name, source)
        if "reset" in (forth.cut, back.cut):
            _reset(accepted)
            return
        accepted.setblocking(False)
        _tune(accepted, forth)
        connection = Connection(self, accepted, (place.inner_host, port), self._places[source].outer_host, forth, back)
        self._connections.add(connection)
        connection.call()

    def make_flow(self, route: Route, connection: "Connection") -> Flow:
        """Return one direction of a connection."""
        return Flow(self._loop, self.agenda, self._gates[route.source], route, self._random, connection)

    def forget(self, connection: "Connection") -> None:
        """It is closed."""
        self._connections.discard(connection)


class Connection:
    """One connection: the socket that was accepted and the one that goes on to the inner address."""

    def __init__(
        self,
        relay: Relay,
        accepted: socket.socket,
        target: tuple[str, int],
        source_host: str,
        forth: Route,
        back: Route,
    ) -> None:
        self._relay = relay
        self._accepted = accepted
        self._onward = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._target = target
        self._source_host = source_host
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._waits_for_heal = False
        self._open_flows = 2
        self._closed = False
        self.forth = relay.make_flow(forth, self)
        self.back = relay.make_flow(back, self)

    def call(self) -> None:
        """Let the other side know, one delay later."""
        self._relay.agenda.at(self._loop.time() + self.forth.route.delay_s, self._ring)

    def _ring(self, _moment: float) -> None:
        if self._closed:
            return
        self._waits_for_heal = {self.forth.route.cut, self.back.route.cut} != {"whole"}
        if not self._waits_for_heal:
            self._task = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        _tune(self._onward, self.back.route)
        try:
            self._onward.bind((self._source_host, 0))
            await self._loop.sock_connect(self._onward, self._target)
        except OSError:
            self.abort()
            return
        if not self._closed:
            self.forth.start(self._accepted, self._onward)
            self.back.start(self._onward, self._accepted)

    def heal(self, now: float) -> None:
        """The links of this connection are whole again."""
        if self._waits_for_heal:
            self.call()
        else:
            self.forth.heal(now)
            self.back.heal(now)

    def flow_ended(self) -> None:
        """One direction has delivered its end."""
        self._open_flows -= 1
        if self._open_flows == 0:
            self._shut()
            self._accepted.close()
            self._onward.close()

    def sink_lost(self, flow: Flow) -> None:
        """One direction cannot deliver: the other side hears of it behind what is on its way there."""
        (self.back if flow is self.forth else self.forth).reset_behind(self._loop.time())

    def abort(self) -> None:
        """Reset both sides."""
        if not self._closed:
            self._shut()
            _reset(self._accepted)
            _reset(self._onward)

    def _shut(self) -> None:
        self._closed = True
        self.forth.close()
        self.back.close()
        if self._task is not None:
            self._task.cancel()
        self._relay.forget(self)


def _tune(connection: socket.socket, route: Route) -> None:
    """Send small pieces at once; hold little of what comes, so that a program's own queue is where it waits."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if (rate := route.slowest_rate) is not None:
        size = min(MOST_RECEIVE, max(LEAST_RECEIVE, int(rate * RECEIVE_S)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()
