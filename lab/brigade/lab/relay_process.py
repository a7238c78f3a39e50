"""The relay as a process of its own: orders come in on standard input, whose end is its end too."""

import asyncio
import contextlib
import os
import sys

from brigade.lab.fabric import make_fabric
from brigade.lab.hosts import place_hosts
from brigade.lab.precise_loop import make_precise_loop
from brigade.lab.relay import Relay
from brigade.lab.relay_orders import (
    Answer,
    ChangeRate,
    Corrupt,
    Count,
    Counted,
    Cut,
    Failed,
    Heal,
    Open,
    Opened,
    Order,
    RouteCount,
    read_order,
    write_line,
)
from brigade.wire.errors import ConfigError

LONGEST_LINE = 4 * 1024 * 1024  # hundreds of hosts with long names


async def live() -> None:
    """Carry out orders until there are no more."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    relay: Relay | None = None
    while line := await reader.readline():
        order = read_order(line)
        if isinstance(order, Open):
            try:
                relay = open_relay(order)
            except ConfigError as error:
                answer(Failed(reason=str(error)))
            else:
                answer(Opened())
        elif relay is not None:
            carry_out(order, relay)
    if relay is not None:
        relay.close()


def open_relay(order: Open) -> Relay:
    """Return a relay that listens; ConfigError where it cannot."""
    fabric = make_fabric(order.hosts, order.coordinator, order.pairs)
    relay = Relay(place_hosts([host.name for host in order.hosts], order.first_port), fabric, order.seed)
    relay.open()
    return relay


def carry_out(order: Order, relay: Relay) -> None:
    """Do what an order says."""
    match order:
        case Cut(host, other, both, state):
            relay.cut(host, other, both=both, state=state)
        case Heal(host, other):
            relay.heal(host, other)
        case ChangeRate(host, up, down):
            relay.change_rate(host, up, down)
        case Corrupt(source, target, pieces):
            relay.corrupt(source, target, pieces)
        case Count():
            answer(count(relay))


def count(relay: Relay) -> Counted:
    """Return what has passed."""
    routes = [RouteCount(r.source, r.target, r.accepted_bytes, r.delivered_bytes) for r in relay.routes()]
    agenda = relay.agenda
    mean_s = agenda.late_total_s / max(1, agenda.actions)
    return Counted(routes=tuple(routes), late_mean_s=mean_s, late_most_s=agenda.late_most_s)


def answer(message: Answer) -> None:
    """Say something to the lab."""
    sys.stdout.buffer.write(write_line(message))
    sys.stdout.buffer.flush()


def main() -> None:
    """Live as the relay of one lab."""
    with contextlib.suppress(OSError):  # needs root
        os.nice(-5)  # a late relay is a wrong relay
    with asyncio.Runner(loop_factory=make_precise_loop) as runner:
        runner.run(live())


if __name__ == "__main__":
    main()
