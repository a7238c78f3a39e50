"""The handler of the bulk socket: what nodes want goes to the file server, what they send to the collector.

A node that sends faster than the disk writes is paused, so that a checkpoint never piles up in memory.
"""

import asyncio
import logging

from brigade.coordinator.collector import Collector
from brigade.coordinator.file_server import FileServer
from brigade.wire.connection import Connection
from brigade.wire.encoding import Message
from brigade.wire.messages import FilePart, FileWanted
from brigade.wire.verdict import Verdict

logger = logging.getLogger(__name__)

MOST_UNWRITTEN_BYTES = 32 * 1024 * 1024  # of one connection


class BulkHandler:
    """See the module; `Handler` of `brigade.wire.connection`."""

    def __init__(self, files: FileServer, collector: Collector, loop: asyncio.AbstractEventLoop) -> None:
        self._files = files
        self._collector = collector
        self._loop = loop
        self._unwritten: dict[Connection, int] = {}
        self._paused: set[Connection] = set()

    def opened(self, connection: Connection) -> None:
        """Begin to count what is not written."""
        self._unwritten[connection] = 0

    def received(self, connection: Connection, message: Message, frames: list[memoryview]) -> None:
        """Serve a wish, or take a part."""
        match message, frames:
            case FileWanted(), []:
                self._files.wanted(connection, message)
            case FilePart(), [data]:
                self._take(connection, message, data)
            case _:
                connection.close(f"{type(message).__name__} has no business on the bulk socket", "protocol")

    def closed(self, connection: Connection, verdict: Verdict) -> None:
        """Forget a connection; what it has sent is still written."""
        logger.debug("bulk connection %s closed: %s", connection.label, verdict.reason)
        self._unwritten.pop(connection, None)
        self._paused.discard(connection)

    def _take(self, connection: Connection, part: FilePart, data: memoryview) -> None:
        count = data.nbytes
        self._unwritten[connection] = self._unwritten.get(connection, 0) + count
        if self._unwritten[connection] > MOST_UNWRITTEN_BYTES and connection not in self._paused:
            self._paused.add(connection)
            connection.pause()
        node_id = connection.remote_id

        def write() -> None:
            try:
                self._collector.write(node_id, part.name, part.offset, part.size, data)
            finally:
                self._loop.call_soon_threadsafe(self._written, connection, count)

        self._collector.submit(write)

    def _written(self, connection: Connection, count: int) -> None:
        if connection not in self._unwritten:
            return
        self._unwritten[connection] -= count
        if connection in self._paused and self._unwritten[connection] <= MOST_UNWRITTEN_BYTES // 2:
            self._paused.discard(connection)
            connection.resume()
