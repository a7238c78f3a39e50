"""Files on the bulk socket: whole or not at all, resumed where they stopped, bounded by what was announced."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brigade.node.files import PART_BYTES, FileExchange, FileFetch, describe, sha256_of
from brigade.wire.errors import CheckpointError, RemoteProtocolError
from brigade.wire.message_parts import FileSpec
from brigade.wire.messages import FilePart, FileWanted


class Wire:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, list[bytes]]] = []

    def send(self, message: Any, frames: Any = (), priority: int = 0) -> None:
        self.sent.append((message, [bytes(frame) for frame in frames]))


def source(tmp_path: Path, size: int) -> tuple[Path, FileSpec]:
    path = tmp_path / "source.bin"
    path.write_bytes(bytes(i * 31 % 251 for i in range(size)))
    return path, describe(path, "data/source.bin")


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 17])
def test_what_is_sent_arrives_whole(tmp_path: Path, size: int) -> None:
    async def scenario() -> None:
        path, spec = source(tmp_path, size)
        wire = Wire()
        sender, receiver = FileExchange(tmp_path / "a"), FileExchange(tmp_path / "b")
        sender.connected(wire)  # type: ignore[arg-type]
        sender.send(path, spec.name)
        receiver.connected(Wire())  # type: ignore[arg-type]
        fetching = asyncio.create_task(receiver.fetch(spec))
        await asyncio.sleep(0)
        for part, frames in wire.sent:
            if not fetching.done() and size:
                receiver.received(part, [memoryview(frames[0])])
        target = await fetching
        assert sha256_of(target) == spec.sha256
        assert target.name == "source.bin"
        assert await receiver.fetch(spec) == target  # from the cache, without a connection's help

    asyncio.run(scenario())


def test_a_broken_fetch_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, spec = source(tmp_path, 1000)
        target = tmp_path / "cache" / "x"
        FileFetch(spec, target).add(FilePart(name=spec.name, offset=0, size=1000), memoryview(path.read_bytes())[:400])
        again = FileFetch(spec, target)
        assert again.wanted() == FileWanted(name=spec.name, offset=400)
        again.add(FilePart(name=spec.name, offset=400, size=1000), memoryview(path.read_bytes())[400:])
        assert (await again.done).read_bytes() == path.read_bytes()

    asyncio.run(scenario())


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        target = tmp_path / "x"
        fetch = FileFetch(FileSpec(name="data/x", size=3, sha256="0" * 64), target)
        fetch.add(FilePart(name="data/x", offset=0, size=3), memoryview(b"abc"))
        with pytest.raises(CheckpointError, match="wrong checksum"):
            await fetch.done

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "size", "data"), [(1, 3, b"a"), (0, 4, b"a"), (0, 3, b"abcd"), (-1, 3, b"a"), (0, 2**60, b"abc")]
)
def test_parts_that_do_not_continue_the_file_are_the_senders_fault(
    tmp_path: Path, offset: int, size: int, data: bytes
) -> None:
    async def scenario() -> None:
        fetch = FileFetch(FileSpec(name="data/x", size=3, sha256="0" * 64), tmp_path / "x")
        with pytest.raises(RemoteProtocolError, match="does not continue"):
            fetch.add(FilePart(name="data/x", offset=offset, size=size), memoryview(data))

    asyncio.run(scenario())


def test_a_part_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="nobody asked for"):
        FileExchange(tmp_path).received(FilePart(name="data/x", offset=0, size=1), [memoryview(b"a")])


def test_a_lost_connection_ends_the_fetch_with_its_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = FileExchange(tmp_path)
        exchange.connected(Wire())  # type: ignore[arg-type]
        fetching = asyncio.create_task(exchange.fetch(FileSpec(name="data/x", size=3, sha256="0" * 64)))
        await asyncio.sleep(0)
        exchange.disconnected()
        with pytest.raises(CheckpointError, match="connection was lost"):
            await fetching

    asyncio.run(scenario())
