"""Handlers that record what they are told, and a listener with a dialler to go with it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from brigade.wire.connection import Connection
from brigade.wire.dialer import dial
from brigade.wire.encoding import Message
from brigade.wire.endpoint import Endpoint
from brigade.wire.identity import KeyPair, new_key_pair
from brigade.wire.listener import Listener
from brigade.wire.network import Network
from brigade.wire.session_events import SessionOptions
from brigade.wire.verdict import Verdict

DEADLINE_S = 20.0


class Recorder:
    """A handler whose events can be awaited."""

    def __init__(self, on_message: Callable[[Connection, Message, list[memoryview]], None] | None = None) -> None:
        self.connections: list[Connection] = []
        self.messages: list[tuple[Message, list[memoryview]]] = []
        self.verdicts: list[Verdict] = []
        self._on_message = on_message
        self._changed = asyncio.Event()

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._changed.set()

    def received(self, connection: Connection, message: Message, frames: list[memoryview]) -> None:
        if self._on_message is None:
            self.messages.append((message, frames))
        else:
            self._on_message(connection, message, frames)
        self._changed.set()

    def closed(self, connection: Connection, verdict: Verdict) -> None:
        assert connection.verdict is verdict
        self.verdicts.append(verdict)
        self._changed.set()

    async def until(self, condition: Callable[["Recorder"], object], deadline_s: float = DEADLINE_S) -> None:
        async with asyncio.timeout(deadline_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def until_opened(self) -> Connection:
        await self.until(lambda r: r.connections)
        return self.connections[0]

    async def until_closed(self, deadline_s: float = DEADLINE_S) -> Verdict:
        await self.until(lambda r: r.verdicts, deadline_s)
        return self.verdicts[0]


@dataclass
class House:
    """A network with one listener that admits `admitted`."""

    network: Network
    keys: KeyPair
    listener: Listener
    handler: Recorder
    port: int
    admitted: set[str]
    guest: KeyPair
    refusals: asyncio.Queue[tuple[str, Verdict]] = field(default_factory=asyncio.Queue)

    def dial(
        self,
        handler: Recorder,
        *,
        port: int = 0,
        keys: KeyPair | None = None,
        remote_key: str = "",
        host: str = "127.0.0.1",
        options: SessionOptions | None = None,
        deadline_s: float = 10.0,
        awaits_admission: bool = False,
    ) -> Connection:
        return dial(
            self.network,
            keys or self.guest,
            Endpoint(host, port or self.port),
            remote_key or self.keys.public,
            handler,
            deadline_s=deadline_s,
            options=options,
            awaits_admission=awaits_admission,
        )

    async def refusal(self, code: str) -> tuple[str, Verdict]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                host, verdict = await self.refusals.get()
                if verdict.code == code:
                    return host, verdict


@asynccontextmanager
async def open_house(
    options: SessionOptions | None = None,
    handler: Recorder | None = None,
    host: str = "127.0.0.1",
    handshake_s: float = 10.0,
) -> AsyncIterator[House]:
    network = Network()
    keys, guest = new_key_pair(), new_key_pair()
    admitted = {guest.public}
    handler = handler or Recorder()
    refusals: asyncio.Queue[tuple[str, Verdict]] = asyncio.Queue()
    listener = Listener(
        network,
        keys,
        Endpoint(host, 0),
        lambda key: key in admitted,
        handler,
        on_refused=lambda host, verdict: refusals.put_nowait((host, verdict)),
        options=options,
        handshake_s=handshake_s,
    )
    try:
        port = await listener.start()
        yield House(network, keys, listener, handler, port, admitted, guest, refusals)
    finally:
        async with asyncio.timeout(5.0):
            await network.close()
