"""Files on the bulk socket: fetch them piece by piece, verified; send them piece by piece.

A fetched file appears under its name only when its checksum is right; a broken fetch goes on where it stopped.
"""

import asyncio
import hashlib
import mmap
import shutil
from collections.abc import Sequence
from pathlib import Path

from brigade.wire.connection import Connection
from brigade.wire.errors import CheckpointError, RemoteProtocolError
from brigade.wire.message_parts import FileSpec
from brigade.wire.messages import FilePart, FileWanted

PART_BYTES = 1024 * 1024
BULK_PRIORITY = 3
CHECKPOINTS = "checkpoint"  # what the names of their files begin with; data stay in the cache, these do not


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(path: Path, name: str) -> FileSpec:
    """Return the name, size and checksum of a file, as they are announced."""
    return FileSpec(name=name, size=path.stat().st_size, sha256=sha256_of(path))


class FileFetch:
    """One file on its way to this node: parts are appended in order, the whole is verified."""

    def __init__(self, spec: FileSpec, target: Path) -> None:
        self.spec = spec
        self.target = target
        self.partial = target.with_name(target.name + ".partial")
        self.done: asyncio.Future[Path] = asyncio.get_running_loop().create_future()
        target.parent.mkdir(parents=True, exist_ok=True)
        self.offset = self.partial.stat().st_size if self.partial.exists() else 0
        if self.offset > spec.size:
            self.partial.unlink()
            self.offset = 0

    def wanted(self) -> FileWanted:
        """Return the request for the rest of the file."""
        return FileWanted(name=self.spec.name, offset=self.offset)

    def add(self, part: FilePart, data: memoryview) -> None:
        """Append one part; raises RemoteProtocolError when it does not continue the file."""
        if self.done.done():
            return
        if part.size != self.spec.size or part.offset != self.offset or part.offset + data.nbytes > part.size:
            raise RemoteProtocolError(
                f"part at {part.offset} (+{data.nbytes}) of {part.size} does not continue {self.spec.name!r} "
                f"at {self.offset} of {self.spec.size}"
            )
        try:
            with self.partial.open("ab") as file:
                file.write(data)
            self.offset += data.nbytes
            if self.offset == self.spec.size:
                self._finish()
        except OSError as error:
            self.done.set_exception(CheckpointError(f"cannot store {self.partial}: {error.strerror}"))

    def _finish(self) -> None:
        if sha256_of(self.partial) != self.spec.sha256:
            self.partial.unlink()
            self.done.set_exception(CheckpointError(f"{self.spec.name!r} arrived with a wrong checksum"))
            return
        self.partial.replace(self.target)
        self.done.set_result(self.target)


class FileExchange:
    """All files between this node and the coordinator's bulk socket."""

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        self._connection: Connection | None = None
        self._fetches: dict[str, FileFetch] = {}

    def connected(self, connection: Connection) -> None:
        """Use this connection from now on, and ask again for what is under way."""
        self._connection = connection
        for fetch in self._fetches.values():
            connection.send(fetch.wanted(), priority=BULK_PRIORITY)

    def disconnected(self) -> None:
        """Forget the connection and everything that was under way."""
        self._connection = None
        for fetch in self._fetches.values():
            if not fetch.done.done():
                fetch.done.set_exception(CheckpointError(f"the connection was lost while fetching {fetch.spec.name!r}"))
        self._fetches.clear()

    def forget_checkpoints(self, keep: Sequence[FileSpec]) -> None:
        """Remove cached parts of checkpoints but these: of builds that were cut off, and as large as a model."""
        kept = {spec.sha256 for spec in keep}
        for folder in (self.cache_dir / CHECKPOINTS).glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    async def fetch(self, spec: FileSpec) -> Path:
        """Return the path of a verified copy, from the cache where it is there already.

        Raises CheckpointError when it cannot be had whole.
        """
        kind = CHECKPOINTS if spec.name.startswith(f"{CHECKPOINTS}/") else "data"
        target = self.cache_dir / kind / spec.sha256 / spec.name.rpartition("/")[2]
        if target.exists() and target.stat().st_size == spec.size and sha256_of(target) == spec.sha256:
            return target
        if self._connection is None:
            raise CheckpointError(f"no bulk connection to fetch {spec.name!r} from")
        fetch = self._fetches[spec.name] = FileFetch(spec, target)
        if spec.size == fetch.offset:
            fetch.add(FilePart(name=spec.name, offset=fetch.offset, size=spec.size), memoryview(b""))
        else:
            self._connection.send(fetch.wanted(), priority=BULK_PRIORITY)
        try:
            return await fetch.done
        finally:
            self._fetches.pop(spec.name, None)

    def received(self, part: FilePart, frames: Sequence[memoryview]) -> None:
        """Take one part; raises RemoteProtocolError for parts that nobody asked for."""
        fetch = self._fetches.get(part.name)
        if fetch is None or len(frames) != 1:
            raise RemoteProtocolError(f"a part of {part.name!r} came that nobody asked for")
        fetch.add(part, frames[0])

    def send(self, path: Path, name: str) -> None:
        """Queue a whole file in parts; the file is mapped, not read, and may be unlinked afterwards."""
        if self._connection is None:
            return  # the coordinator is gone: its new process will ask for a new save
        size = path.stat().st_size
        if size == 0:
            self._connection.send(FilePart(name=name, offset=0, size=0), [b""], BULK_PRIORITY)
            return
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for offset in range(0, size, PART_BYTES):
            part = FilePart(name=name, offset=offset, size=size)
            self._connection.send(part, [view[offset : offset + PART_BYTES]], BULK_PRIORITY)
