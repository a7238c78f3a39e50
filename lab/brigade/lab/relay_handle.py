"""The lab's side of its relay: starts the process, finds ports that are free, gives orders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from brigade.lab.fleet import Fleet, OwnMember
from brigade.lab.hosts import COORDINATOR_PORTS, Place, place_hosts
from brigade.lab.links import LinkOrder
from brigade.lab.relay_orders import Answer, Count, Counted, Failed, Open, Order, read_answer, write_line
from brigade.lab.scenario import Scenario
from brigade.wire.errors import BrigadeError, ConfigError

PORTS = range(20000, 32000, 10)  # below those that systems give out by themselves
TRIES = 20


class RelayError(BrigadeError):
    """The relay has gone, or does not understand us."""


@dataclass(slots=True)
class RelayHandle:
    """A relay that is open, and where everybody is."""

    places: dict[str, Place]
    _member: OwnMember

    async def order(self, order: LinkOrder) -> None:
        """See `Links`."""
        await _send(self._member, order)

    async def count(self) -> Counted:
        """See `Links`."""
        await _send(self._member, Count())
        answer = await _receive(self._member)
        if not isinstance(answer, Counted):
            raise RelayError("the relay gave another answer than asked for")
        return answer

    def namespace_of(self, host: str) -> str:
        """See `Links`: all processes live where the lab does."""
        del host
        return ""

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """See `Links`: a program is on a host by the address that it uses."""
        del host
        return list(arguments)

    async def close(self) -> None:
        """See `Links`: the relay ends with the fleet."""


async def open_relay(fleet: Fleet, scenario: Scenario, seed: int, errors: Path) -> RelayHandle:
    """Start a relay for a scenario at the first ports that are free.

    Raises ConfigError when there are none, or when loopback has one address only.
    """
    member = await fleet.start("the relay", "brigade.lab.relay_process", output=None, errors=errors)
    refusal = ""
    for port in _candidates():
        spec = scenario.spec
        opening = Open(hosts=scenario.hosts, coordinator=spec.coordinator, pairs=spec.pair, first_port=port, seed=seed)
        await _send(member, opening)
        answer = await _receive(member)
        if not isinstance(answer, Failed):
            return RelayHandle(place_hosts([host.name for host in scenario.hosts], port), member)
        refusal = answer.reason
        if "in use" not in refusal:
            break
    raise ConfigError(refusal)


def _candidates() -> Iterator[int]:
    """Yield ports to try: several labs at once should not all begin with the same."""
    ports = Random().sample(PORTS, TRIES)  # noqa: S311 - no secret
    assert PORTS.step > COORDINATOR_PORTS
    yield from ports


async def _send(member: OwnMember, order: Order) -> None:
    stdin = member.process.stdin
    assert stdin is not None
    try:
        stdin.write(write_line(order))
        await stdin.drain()
    except ConnectionError as error:
        raise RelayError("the relay has gone") from error


async def _receive(member: OwnMember) -> Answer:
    stdout = member.process.stdout
    assert stdout is not None
    line = await stdout.readline()
    if not line:
        raise RelayError("the relay has gone")
    return read_answer(line)
