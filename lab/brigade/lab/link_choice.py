"""Opens the links of a scenario, of the kind that it names."""

from pathlib import Path

from brigade.lab.fleet import Fleet
from brigade.lab.links import Links
from brigade.lab.namespace_links import open_namespaces
from brigade.lab.relay_handle import open_relay
from brigade.lab.scenario import Scenario


async def open_links(fleet: Fleet, scenario: Scenario, seed: int, directory: Path) -> Links:
    """Return open links; what their processes complain of goes to a file in `directory`.

    Raises ConfigError where this machine cannot have them.
    """
    spec = scenario.spec
    if spec.links == "namespaces":
        return await open_namespaces(
            fleet, scenario.hosts, spec.coordinator, spec.pair, seed, directory / "delay-line.txt"
        )
    return await open_relay(fleet, scenario, seed, directory / "relay.txt")
