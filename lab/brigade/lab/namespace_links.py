"""Links through network namespaces: real TCP over devices that the kernel shapes. Needs root and iproute2.

What is made is written down before, and taken down at the end; what a lab that was killed has left, the next one takes
down.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from brigade.lab.fabric import make_fabric
from brigade.lab.fleet import Fleet, OwnMember
from brigade.lab.hosts import NAMESPACE_NETWORK, Place, place_hosts
from brigade.lab.links import LinkOrder
from brigade.lab.namespace_entry import NAMESPACES
from brigade.lab.namespace_network import FAR, Batch, NamespaceNetwork
from brigade.lab.namespace_orders import Failed, Open, Order, Report, Reported, read_answer, write_line
from brigade.lab.namespace_packets import Way
from brigade.lab.namespace_record import Record, new_record, ownerless
from brigade.lab.relay_orders import ChangeRate, Counted, Cut, Heal, RouteCount
from brigade.lab.scenario_spec import HostSpec, LinkSpec, PairSpec
from brigade.wire.errors import BrigadeError, ConfigError

FIRST_PORT = 20000  # every namespace has all ports to itself
PROGRAMS = ("ip", "tc", "ss")


class NamespaceError(BrigadeError):
    """The kernel or iproute2 refuses what a network of namespaces needs."""


class NamespaceLinks:
    """A network of namespaces that is open."""

    def __init__(self, network: NamespaceNetwork, places: dict[str, Place], record: Record) -> None:
        self.places = places
        self._network = network
        self._record = record
        self.delay_line: OwnMember | None = None
        self._closed = False

    @property
    def hub(self) -> str:
        """The namespace that joins all others; their names begin with its name."""
        return self._network.hub

    def ways(self) -> tuple[Way, ...]:
        """Return the ways that are long or lossy."""
        return self._network.ways()

    async def open(self, fleet: Fleet, seed: int, errors: Path) -> None:
        """Make the network and start its delay line, if it needs one."""
        self._record.write(self._network.namespaces)
        for batch in self._network.build():
            await _carry_out(batch)
        if ways := self.ways():
            self.delay_line = await fleet.start(
                "the delay line", "brigade.lab.namespace_delay", output=None, errors=errors
            )
            answer = await self._ask(Open(self._network.hub, FAR, ways, seed))
            if isinstance(answer, Failed):
                raise NamespaceError(answer.reason)

    async def order(self, order: LinkOrder) -> None:
        """See `Links`. Corruption is not to be had: TCP would notice, and repeat the packet."""
        network = self._network
        match order:
            case Cut():
                batches = network.cut(order)
            case Heal():
                batches = network.heal(order)
            case ChangeRate():
                batches = network.change_rate(order)
            case _:
                raise NamespaceError('links = "namespaces" corrupt nothing: TCP repeats what was corrupted')
        for batch in batches:
            await _carry_out(batch)
        for source, target in sorted(network.refused()) if isinstance(order, Cut) else ():
            await self._end_connections(source, target)

    async def _end_connections(self, source: str, target: str) -> None:
        await _run("ss", "-N", self.namespace_of(source), "-K", "-t", "dst", self.places[target].outer_host)

    async def count(self) -> Counted:
        """Return bytes as the hub has seen them: packets with their headers, a train of them with one header."""
        shown = (await _carry_out(self._network.counting(), "-s", "-j")).splitlines()
        accepted = self._network.read_counts(map(msgspec.json.decode, shown))
        report = await self._ask(Report()) if self.delay_line is not None else None
        reported = report if isinstance(report, Reported) else Reported((), 0.0, 0.0)
        name_of = {place.outer_host: name for name, place in self.places.items()}
        lost = {(name_of[each.source], name_of[each.target]): each.lost_bytes for each in reported.lost}
        routes = [
            RouteCount(*way, accepted=passed, delivered=max(0, passed - lost.get(way, 0)))
            for way, passed in accepted.items()
            if passed
        ]
        return Counted(tuple(routes), reported.late_mean_s, reported.late_most_s)

    def namespace_of(self, host: str) -> str:
        """See `Links`."""
        return self._network.namespace_of(host)

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """See `Links`."""
        return ["ip", "netns", "exec", self.namespace_of(host), *arguments]

    async def close(self) -> None:
        """Take everything down."""
        if not self._closed:
            self._closed = True
            await _take_down(self._record)

    async def _ask(self, order: Order) -> object:
        assert self.delay_line is not None
        stdin, stdout = self.delay_line.process.stdin, self.delay_line.process.stdout
        assert stdin is not None
        assert stdout is not None
        line = b""
        with suppress(ConnectionError):
            stdin.write(write_line(order))
            await stdin.drain()
            line = await stdout.readline()
        if not line:
            raise NamespaceError("the delay line has gone")
        return read_answer(line)


async def open_namespaces(
    fleet: Fleet, hosts: Sequence[HostSpec], coordinator: LinkSpec, pairs: Sequence[PairSpec], seed: int, errors: Path
) -> NamespaceLinks:
    """Make a network of namespaces for some hosts; it is taken down once the processes of the fleet have ended.

    Raises ConfigError where this machine or this user cannot, NamespaceError when the kernel refuses something.
    """
    if missing := missing_support():
        raise ConfigError(f'links = "namespaces" need {missing}; links = "relay" do without')
    for left in ownerless():
        await _take_down(left)
    places = place_hosts([host.name for host in hosts], FIRST_PORT, NAMESPACE_NETWORK, NAMESPACE_NETWORK)
    record = new_record()
    network = NamespaceNetwork(make_fabric(hosts, coordinator, pairs), places, record.prefix)
    links = NamespaceLinks(network, places, record)
    fleet.afterwards.push_async_callback(links.close)
    await links.open(fleet, seed, errors)
    return links


def missing_support() -> str:
    """Return what namespaces need and is not here; empty when all is."""
    if not sys.platform.startswith("linux"):
        return "Linux"
    if os.geteuid() != 0:
        return "root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"iproute2 ({', '.join(absent)} not found)" if absent else ""


async def _take_down(record: Record) -> None:
    """Delete the namespaces of a record, and with them their devices; then forget the record."""
    there = [name for name in record.namespaces if (NAMESPACES / name).exists()]
    try:
        if there:
            await _carry_out(Batch("ip", "", tuple(f"netns del {name}" for name in there)))
    except BaseException:
        record.release()
        raise
    record.erase()


async def _carry_out(batch: Batch, *options: str) -> str:
    where = ("-n", batch.namespace) if batch.namespace else ()
    return await _run(batch.tool, *where, *options, "-batch", "-", lines=batch.lines)


async def _run(program: str, *arguments: str, lines: Iterable[str] = ()) -> str:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await process.communicate("".join(f"{line}\n" for line in lines).encode())
    if process.returncode != 0:
        command = " ".join((program, *arguments))
        raise NamespaceError(f"{command}: {complaint.decode(errors='replace').strip().partition(chr(10))[0]}")
    return said.decode()
