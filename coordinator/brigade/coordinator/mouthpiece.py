"""Carries the core's messages to connections, and never lets one pile up that nobody takes.

A message that cannot be sent is the run's end, with its reason, except when it answers the owner's command line.
"""

import asyncio
from collections.abc import Callable, Mapping

from brigade.coordinator.run_events import HangUp, Tell
from brigade.wire.connection import Connection
from brigade.wire.errors import LocalProtocolError
from brigade.wire.messages import Done, PulseEcho

FAREWELL_S = 3.0  # for the last messages to be acknowledged
MOST_QUEUED_BYTES = 8 * 1024 * 1024  # of one connection; a plan, the largest message by far, has at most 1 MiB
MOST_QUEUED_FOR_ECHO_BYTES = 4 * 1024  # whoever does not take echoes gets no more of them


class Mouthpiece:
    """Sends messages and hangs up; `connections` are those of the switchboard."""

    def __init__(self, connections: Mapping[int, Connection], is_owner: Callable[[int], bool]) -> None:
        self._connections = connections
        self._is_owner = is_owner
        self._farewells: set[asyncio.Task[None]] = set()

    def tell(self, command: Tell) -> None:
        """Send a message.

        Raises LocalProtocolError if it cannot be sent; an owner's command line gets an error answer instead.
        """
        connection = self._connections.get(command.connection)
        if connection is None:
            return
        queued = connection.queued_bytes
        if queued > MOST_QUEUED_BYTES:
            connection.close(f"more than {MOST_QUEUED_BYTES} bytes wait for {connection.label}, which takes none")
            return
        if isinstance(command.message, PulseEcho) and queued > MOST_QUEUED_FOR_ECHO_BYTES:
            return
        try:
            connection.send(command.message)
        except LocalProtocolError as error:
            if not self._is_owner(command.connection):
                raise
            connection.send(Done(ok=False, reason=f"the answer cannot be sent: {str(error)[:500]}"))

    def hang_up(self, command: HangUp) -> None:
        """Close a connection once the other side has what it was told."""
        if (connection := self._connections.get(command.connection)) is not None:
            task = asyncio.get_running_loop().create_task(_close_gently(connection, command.reason))
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)


async def _close_gently(connection: Connection, reason: str) -> None:
    await connection.drained(FAREWELL_S)
    connection.close(reason)
