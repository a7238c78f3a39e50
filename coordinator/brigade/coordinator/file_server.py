"""Serves files to nodes on the bulk socket: those that were offered, and no others."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from brigade.coordinator.checkpoint_manifest import folder_name, parse_wire_name
from brigade.wire.connection import Connection
from brigade.wire.message_parts import FileSpec
from brigade.wire.messages import FilePart, FileWanted

logger = logging.getLogger(__name__)

PART_BYTES = 1024 * 1024
MOST_QUEUED_BYTES = 8 * PART_BYTES
BULK_PRIORITY = 3


DATA_NAME = "data/corpus"  # on the wire; what a file is called on this machine is nobody's business


class FileServer:
    """Sends offered files in parts, never more at a time than the connection takes."""

    def __init__(self, checkpoints_dir: Path, data_path: Path | None) -> None:
        self._checkpoints_dir = checkpoints_dir
        self._data_path = data_path
        self._offered: dict[str, FileSpec] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, files: Iterable[FileSpec]) -> None:
        """Serve these files from now on, and no others."""
        self._offered = {file.name: file for file in files}

    def wanted(self, connection: Connection, request: FileWanted) -> None:
        """Begin to send a file; a request for anything that was not offered ends the connection."""
        file, path = self._offered.get(request.name), self._path_of(request.name)
        if file is None or path is None or not 0 <= request.offset <= file.size:
            connection.close(f"no such file is offered: {request.name[:80]!r} from byte {request.offset}")
            return
        task = asyncio.get_running_loop().create_task(self._send(connection, path, file, request.offset))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop sending."""
        for task in self._tasks:
            task.cancel()

    def _path_of(self, name: str) -> Path | None:
        if self._data_path is not None and name == DATA_NAME:
            return self._data_path
        if (place := parse_wire_name(name)) is not None:
            return self._checkpoints_dir / folder_name(place[0]) / place[1]
        return None

    async def _send(self, connection: Connection, path: Path, file: FileSpec, offset: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            with path.open("rb") as stream:
                stream.seek(offset)
                while True:
                    data = await loop.run_in_executor(None, stream.read, PART_BYTES)
                    if not data and offset < file.size:
                        connection.close(f"{file.name} ended at byte {offset} of {file.size}")
                        return
                    if not await connection.room(MOST_QUEUED_BYTES):
                        return
                    connection.send(FilePart(name=file.name, offset=offset, size=file.size), [data], BULK_PRIORITY)
                    offset += len(data)
                    if offset >= file.size:
                        return
        except OSError as error:
            logger.warning("cannot serve %s: %s", path, error.strerror)
            connection.close(f"the coordinator cannot read {file.name}: {error.strerror}")
