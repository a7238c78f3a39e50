"""The links of a node to other nodes: its listener, the connections that it dials, and how fast they are."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from brigade.wire.connection import Connection
from brigade.wire.costs import LinkReport
from brigade.wire.dialer import dial
from brigade.wire.encoding import Buffer, Message
from brigade.wire.endpoint import Endpoint, parse_endpoint
from brigade.wire.errors import BrigadeError
from brigade.wire.keys import KeyPair
from brigade.wire.listener import Listener
from brigade.wire.messages import LinkProbe, LinkProbeEcho, MeasureLinks
from brigade.wire.network import Network
from brigade.wire.plan import NodeContact
from brigade.wire.verdict import Verdict

log = logging.getLogger(__name__)

ROUND_TRIPS = 3
PROBE_PRIORITY = 2

OnParcel = Callable[[str, Message, list[memoryview]], None]
OnLost = Callable[[NodeContact, Verdict], None]


class DataLinks:
    """Connections between nodes; only nodes of the roster may connect."""

    def __init__(self, network: Network, keys: KeyPair, on_parcel: OnParcel, on_lost: OnLost) -> None:
        self._network = network
        self._keys = keys
        self._on_parcel = on_parcel
        self._on_lost = on_lost
        self._roster: dict[str, NodeContact] = {}  # by public key
        self._listener: Listener | None = None
        self._source_host = ""  # where we listen is where we dial from
        self._dialled: dict[str, tuple[NodeContact, Connection]] = {}  # by node id
        self._opening: dict[Connection, asyncio.Future[Connection]] = {}
        self._echoes: dict[int, asyncio.Future[None]] = {}
        self._probes = 0

    async def listen(self, endpoint: Endpoint) -> int:
        """Listen for other nodes and return the port."""
        self._source_host = endpoint.host
        self._listener = Listener(self._network, self._keys, endpoint, self._roster.__contains__, self)
        return await self._listener.start()

    def admit(self, roster: Sequence[NodeContact]) -> None:
        """Let these nodes connect, and no others from now on."""
        self._roster.clear()
        self._roster.update((contact.public_key, contact) for contact in roster)

    async def connect(self, contact: NodeContact, deadline_s: float) -> Connection:
        """Return an open connection to another node, dialling it if there is none.

        Raises BrigadeError with the reason when it cannot be reached.
        """
        known = self._dialled.get(contact.node_id)
        if known is not None and known[0] == contact and known[1].is_open:
            return known[1]
        opening: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        connection = dial(
            self._network,
            self._keys,
            parse_endpoint(contact.endpoint, to_dial=True),
            contact.public_key,
            self,
            deadline_s=deadline_s,
            source_host=self._source_host,
        )
        self._opening[connection] = opening
        self._dialled[contact.node_id] = (contact, connection)
        return await opening

    def send(self, contact: NodeContact, message: Message, frames: Sequence[Buffer], priority: int) -> None:
        """Send to a node that is connected; on a closed connection nothing happens (`on_lost` has told)."""
        if (known := self._dialled.get(contact.node_id)) is not None:
            known[1].send(message, frames, priority)

    def hang_up(self) -> None:
        """Close what was dialled."""
        dialled, self._dialled = self._dialled, {}
        for _, connection in dialled.values():
            connection.close("the plan is over")

    async def measure(self, order: MeasureLinks) -> tuple[LinkReport, ...]:
        """Time the links to these nodes, one after the other so that they do not share our uplink."""
        return tuple([await self._measure_one(contact, order) for contact in order.to])

    async def _measure_one(self, contact: NodeContact, order: MeasureLinks) -> LinkReport:
        try:
            async with asyncio.timeout(order.deadline_s):
                # Half the time, so that what keeps a connection from opening is told, not that time is over.
                connection = await self.connect(contact, order.deadline_s / 2)
                rtt_s = min([await self._probe(connection, 1) for _ in range(ROUND_TRIPS)])
                took_s = await self._probe(connection, order.payload_bytes)
        except (BrigadeError, TimeoutError) as error:
            why = str(error) or f"no answer within {order.deadline_s:g} s"
            return LinkReport(to=contact.node_id, rtt_s=0.0, bytes_per_s=0.0, error=why)
        bytes_per_s = order.payload_bytes / max(took_s - rtt_s, took_s / 10)
        return LinkReport(to=contact.node_id, rtt_s=rtt_s, bytes_per_s=bytes_per_s)

    async def _probe(self, connection: Connection, payload_bytes: int) -> float:
        self._probes += 1
        number = self._probes
        echo = self._echoes[number] = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        try:
            connection.send(LinkProbe(number=number), [bytes(payload_bytes)], PROBE_PRIORITY)
            await echo
        finally:
            self._echoes.pop(number, None)
        return time.monotonic() - began

    # --- callbacks of connections ---------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Both sides have greeted."""
        if (opening := self._opening.pop(connection, None)) and not opening.done():
            opening.set_result(connection)

    def received(self, connection: Connection, message: Message, frames: list[memoryview]) -> None:
        """A message of another node has arrived."""
        match message:
            case LinkProbe(number=number):
                connection.send(LinkProbeEcho(number=number))
            case LinkProbeEcho(number=number):
                if (echo := self._echoes.get(number)) and not echo.done():
                    echo.set_result(None)
            case _:
                self._on_parcel(connection.remote_id, message, frames)

    def closed(self, connection: Connection, verdict: Verdict) -> None:
        """A connection is over; only those that we dialled are missed."""
        if (opening := self._opening.pop(connection, None)) and not opening.done():
            opening.set_exception(BrigadeError(verdict.reason))
            return
        for node_id, (contact, dialled) in list(self._dialled.items()):
            if dialled is connection:
                del self._dialled[node_id]
                self._on_lost(contact, verdict)
