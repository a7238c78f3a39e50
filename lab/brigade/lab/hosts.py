"""Where the hosts of a lab are: addresses on loopback, which need no root on Linux, or in namespaces of their own.

On loopback host i has two addresses. Its processes listen at, and dial from, the inner one; everybody else reaches it
at the outer one, where the relay listens on the same ports. By the inner address a connection comes from the relay
knows the host. In a namespace it has one address for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from brigade.lab.scenario_spec import COORDINATOR
from brigade.wire.endpoint import Endpoint

INNER_NETWORK = "127.77.1"
OUTER_NETWORK = "127.77.2"
NAMESPACE_NETWORK = "10.77.0"
COORDINATOR_NUMBER = 254
COORDINATOR_PORTS = 3  # control, pulse and bulk, one after the other


@dataclass(frozen=True, slots=True)
class Place:
    """One host: its name, its addresses, and the ports that its processes listen on."""

    name: str
    number: int
    ports: tuple[int, ...]
    inner_network: str = INNER_NETWORK
    outer_network: str = OUTER_NETWORK

    @property
    def inner_host(self) -> str:
        """The address of its processes."""
        return f"{self.inner_network}.{self.number}"

    @property
    def outer_host(self) -> str:
        """The address under which other hosts reach it."""
        return f"{self.outer_network}.{self.number}"

    @property
    def listen(self) -> str:
        """What its process is told to listen on."""
        return str(Endpoint(self.inner_host, self.ports[0]))


def place_hosts(
    names: Sequence[str], first_port: int, inner_network: str = INNER_NETWORK, outer_network: str = OUTER_NETWORK
) -> dict[str, Place]:
    """Return the places of these hosts and of the coordinator, by name."""
    ports = tuple(range(first_port, first_port + COORDINATOR_PORTS))
    numbered = [(name, number, ports[:1]) for number, name in enumerate(names, start=1)]
    numbered.append((COORDINATOR, COORDINATOR_NUMBER, ports))
    return {name: Place(name, number, own, inner_network, outer_network) for name, number, own in numbered}
