"""The three sockets of a coordinator, and the numbers by which its core knows their connections."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from brigade.coordinator.run_events import ConnectionClosed, ConnectionOpened, MessageArrived, RunEvent
from brigade.wire.connection import Connection, Handler
from brigade.wire.encoding import Message
from brigade.wire.endpoint import Endpoint
from brigade.wire.errors import ConfigError
from brigade.wire.keys import KeyPair
from brigade.wire.listener import Listener
from brigade.wire.network import Admits, Network
from brigade.wire.session_events import SessionOptions
from brigade.wire.verdict import Verdict

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Switchboard:
    """Gives connections numbers, passes their news to the core, and carries its messages to them."""

    feed: Callable[[RunEvent], None]
    connections: dict[int, Connection] = field(default_factory=dict)
    _numbers: dict[Connection, int] = field(default_factory=dict)
    _next: "count[int]" = field(default_factory=lambda: count(1))

    def opened(self, socket: Literal["control", "pulse"], connection: Connection) -> None:
        """Give a connection a number and tell the core."""
        number = next(self._next)
        self.connections[number] = connection
        self._numbers[connection] = number
        opened = ConnectionOpened(
            connection=number,
            socket=socket,
            node_id=connection.remote_id,
            public_key=connection.remote_key,
            host=connection.remote_host,
        )
        self.feed(opened)

    def received(self, connection: Connection, message: Message) -> None:
        """Tell the core what a connection says."""
        if (number := self._numbers.get(connection)) is not None:
            self.feed(MessageArrived(connection=number, message=message))

    def closed(self, connection: Connection, reason: str) -> None:
        """Tell the core that a connection is over."""
        if (number := self._numbers.pop(connection, None)) is not None:
            self.connections.pop(number, None)
            self.feed(ConnectionClosed(connection=number, reason=reason))


@dataclass(slots=True)
class NumberedHandler:
    """The handler of the control or the pulse socket."""

    socket: Literal["control", "pulse"]
    switchboard: Switchboard

    def opened(self, connection: Connection) -> None:
        """See `Handler`."""
        self.switchboard.opened(self.socket, connection)

    def received(self, connection: Connection, message: Message, frames: list[memoryview]) -> None:
        """See `Handler`; no message on these sockets has frames."""
        if frames:
            connection.close("frames on a socket that carries none", "protocol")
            return
        self.switchboard.received(connection, message)

    def closed(self, connection: Connection, verdict: Verdict) -> None:
        """See `Handler`."""
        self.switchboard.closed(connection, verdict.reason)


async def listen_at_first(
    network: Network,
    keys: KeyPair,
    candidates: list[Endpoint],
    admits: Admits,
    handler: Handler,
    options: SessionOptions | None = None,
) -> Listener:
    """Listen at the first endpoint that is free.

    Raises ConfigError, about the last one, when none is.
    """
    for endpoint in candidates[:-1]:
        listener = Listener(network, keys, endpoint, admits, handler, options=options)
        try:
            await listener.start()
        except ConfigError as error:
            logger.info("%s; trying another", error)
            continue
        return listener
    listener = Listener(network, keys, candidates[-1], admits, handler, options=options)
    await listener.start()
    return listener


def neighbours_of(control: Endpoint, asked: Endpoint, distance: int) -> list[Endpoint]:
    """Return where the pulse or bulk socket may listen: `distance` above the control port, or anywhere."""
    anywhere = Endpoint(control.host, 0)
    if asked.port == 0 or control.port + distance > 65535:
        return [anywhere]
    return [Endpoint(control.host, control.port + distance), anywhere]
