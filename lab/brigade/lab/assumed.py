"""What nodes and links of a scenario cost, without asking them: the costs that the coordinator of a lab plans with.

A pretended device takes what its operations take, exactly; a line carries what the scenario says. Bytes are those of
the real blocks, which are run once here; so are the seconds of hosts that compute as this machine does. The same
scenario gives the same costs, but for such hosts.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import psutil
import torch

from brigade.coordinator.costs import Costs, LinkCosts, NodeCosts, TrunkCosts, access_costs
from brigade.coordinator.costs import microbatch_samples as samples_of
from brigade.lab.bound import access_of
from brigade.lab.fabric import Fabric, make_fabric
from brigade.lab.scenario import Scenario, speed_of
from brigade.lab.scenario_spec import COORDINATOR, HostSpec
from brigade.node.building import measure_device
from brigade.node.byte_size import parse_byte_size
from brigade.node.datasets import open_source
from brigade.node.emulated_speed import EmulatedSpeed
from brigade.node.emulation import BACKWARD_SHARE, forward_gflop
from brigade.partition.chain import build_chain
from brigade.partition.prediction import Handling
from brigade.wire.costs import BlockCost, ChainReport

NO_CHANGE: Mapping[str, Any] = MappingProxyType({})
OWN_SPEED = EmulatedSpeed(factor=1.0)
LOOPBACK_BYTES_PER_S = 250e6  # where nothing limits a link: encryption, and a relay that has one core
# What a lab costs beside the arithmetic of blocks on two cores of a cloud machine, four to eight nodes on them: means
# over the timelines of four scenarios (docs/results/simulator.md). Plans need numbers that are always the same.
TYPICAL = Handling(
    encode_s=1.1e-3,
    encode_s_per_byte=2e-9,
    decode_s=0.75e-3,
    decode_s_per_byte=1.5e-9,
    message_s=3.2e-3,
    turn_s=0.45e-3,
    round_s=6.5e-3,
    optimizer_s=2e-3,
)


class Assumption:
    """A scenario whose blocks have been run once here; takes about as long as a node takes to time them."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        spec = scenario.run.spec
        source = scenario.run.data or open_source(spec.data)
        samples = samples_of(spec, source.train_count)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as nodes of a lab have it
        try:
            self._here: ChainReport = measure_device(spec, source.inputs, torch.device("cpu"))
        finally:
            torch.set_num_threads(threads)
        self._gflop = forward_gflop(build_chain(spec.model), source.inputs, samples)
        self._samples = samples

    def costs(
        self,
        slowed: Mapping[str, float] = NO_CHANGE,
        rates: Mapping[str, tuple[str | None, str | None]] = NO_CHANGE,
        handling: Handling = TYPICAL,
    ) -> Costs:
        """Return the costs of the scenario, or of what has become of it.

        `slowed` says how many times slower hosts have become, `rates` which rates up and down they have now (None: the
        same as before).
        """
        hosts = [_with_rates(host, rates.get(host.name, (None, None))) for host in self._scenario.hosts]
        fabric = make_fabric(hosts, self._scenario.spec.coordinator, self._scenario.spec.pair)
        pairs = [(a.name, b.name) for a in hosts for b in hosts if a is not b]
        return Costs(
            fingerprint=self._here.fingerprint,
            microbatch_samples=self._samples,
            boundaries=self._here.boundaries,
            tied=self._here.tied,
            nodes={
                host.name: NodeCosts(
                    blocks=self._blocks((speed_of(host) or OWN_SPEED).slowed(slowed.get(host.name, 1.0))),
                    memory_bytes=memory_of(host),
                    coordinator_way_s=fabric.route(host.name, COORDINATOR).delay_s,
                )
                for host in hosts
            },
            links=tuple(_link(fabric, a, b) for a, b in pairs),
            accesses={host.name: access_costs(access_of(host)) for host in hosts},
            trunks=_trunks(fabric, pairs),
            handling=handling,
        )

    def _blocks(self, speed: EmulatedSpeed) -> tuple[BlockCost, ...]:
        return tuple(
            replace(
                block,
                forward_s=speed.seconds(block.forward_s, count),
                backward_s=speed.seconds(block.backward_s, BACKWARD_SHARE * count),
                optimizer_s=speed.seconds(block.optimizer_s, 0.0),
            )
            for block, count in zip(self._here.blocks, self._gflop, strict=True)
        )


def memory_of(host: HostSpec) -> int:
    """Return the memory that a node may use: what the scenario says, or all that this machine has."""
    return parse_byte_size(host.memory) if host.memory else psutil.virtual_memory().total


def _with_rates(host: HostSpec, rates: tuple[str | None, str | None]) -> HostSpec:
    up, down = rates
    return msgspec.structs.replace(host, up=up or host.up, down=down or host.down)


def _link(fabric: Fabric, source: str, target: str) -> LinkCosts:
    there, back = fabric.route(source, target), fabric.route(target, source)
    return LinkCosts(
        source=source,
        target=target,
        rtt_s=there.delay_s + back.delay_s,
        bytes_per_s=min(there.slowest_rate or LOOPBACK_BYTES_PER_S, LOOPBACK_BYTES_PER_S),
    )


def _trunks(fabric: Fabric, pairs: list[tuple[str, str]]) -> tuple[TrunkCosts, ...]:
    """Return the lines between accesses, with all links that each carries."""
    links: dict[int, list[tuple[str, str]]] = {}
    rates: dict[int, float] = {}
    for pair in pairs:
        for line in fabric.route(*pair).later[:-1]:
            if line.rate is not None:
                links.setdefault(id(line), []).append(pair)
                rates[id(line)] = line.rate
    return tuple(TrunkCosts(bytes_per_s=rates[key], links=tuple(carried)) for key, carried in links.items())
