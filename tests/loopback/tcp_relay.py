"""A TCP relay on 127.0.0.1 that cuts, stalls, delays and counts what passes."""

import asyncio
import contextlib
import socket
from typing import Self


class Relay:
    """Listens on a port of its own and passes bytes on to `port`, until told otherwise."""

    def __init__(self, port: int, cut_after: tuple[int, ...] = (), delay_s: float = 0.0) -> None:
        self.target = port
        self.port = 0
        self.connections = 0
        self.cuts = 0
        self.connected = asyncio.Event()
        self._cut_after = list(cut_after)  # bytes from dialler to listener, one number for each connection
        self._delay_s = delay_s  # one way; connecting itself takes no time
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection."""
        self.cuts += bool(self._writers)
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def stall(self) -> None:
        """Read nothing more, but keep every connection."""
        self._flowing.clear()

    def flow(self) -> None:
        """Go on."""
        self._flowing.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connected.set()
        limit = self._cut_after.pop(0) if self._cut_after else None
        try:
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, onward_writer}
        for each in pair:
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writers |= pair
        await asyncio.gather(self._pass(reader, onward_writer, limit), self._pass(onward_reader, writer, None))
        self._writers -= pair

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                passed += len(data)
                if limit is not None and passed > limit:
                    writer.write(data[: limit - passed])
                    await writer.drain()
                    self.cut()
                    return
                if self._delay_s:
                    asyncio.get_running_loop().call_later(self._delay_s, writer.write, data)
                    continue
                writer.write(data)
                await writer.drain()
        asyncio.get_running_loop().call_later(self._delay_s, writer.close)  # after what is on its way
