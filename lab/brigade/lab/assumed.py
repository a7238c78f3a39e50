"""What nodes and links of a scenario cost, without asking them: the costs that the coordinator of a lab plans with.

A pretended device takes what its operations take, exactly; a line carries what the scenario says. Bytes are those of
the real blocks, which are run once here; so are the seconds of hosts that compute as this machine does. The same
scenario gives the same costs, but for such hosts.
"""

from dataclasses import replace

import psutil
import torch

from brigade.coordinator.costs import Costs, LinkCosts, NodeCosts, TrunkCosts, access_costs
from brigade.coordinator.costs import microbatch_samples as samples_of
from brigade.lab.fabric import Fabric, make_fabric
from brigade.lab.quantities import parse_rate
from brigade.lab.scenario import Scenario, speed_of
from brigade.lab.scenario_spec import COORDINATOR, HostSpec, LinkSpec
from brigade.node.building import measure_device
from brigade.node.byte_size import parse_byte_size
from brigade.node.datasets import open_source
from brigade.node.emulated_speed import EmulatedSpeed
from brigade.node.emulation import BACKWARD_SHARE, forward_gflop
from brigade.partition.chain import build_chain
from brigade.partition.line import Access
from brigade.partition.prediction import Handling
from brigade.wire.costs import BlockCost, ChainReport

OWN_SPEED = EmulatedSpeed(factor=1.0)
LOOPBACK_BYTES_PER_S = 250e6  # where nothing limits a link: encryption, and a relay that has one core
# What a lab costs beside the arithmetic of blocks on two cores of a cloud machine, four to eight nodes on them: medians
# over the timelines of home4 and two-sites8 (docs/results/simulator.md). Plans need numbers that are always the same.
TYPICAL = Handling(
    encode_s=0.8e-3,
    encode_s_per_byte=2e-9,
    decode_s=0.55e-3,
    decode_s_per_byte=1.5e-9,
    message_s=1.3e-3,
    turn_s=0.3e-3,
    round_s=3.5e-3,
    optimizer_s=1.5e-3,
)


def assume_costs(scenario: Scenario, handling: Handling = TYPICAL) -> Costs:
    """Return the costs of a scenario; takes about as long as a node takes to time its blocks."""
    here, gflop = _measure_here(scenario)
    spec = scenario.run.spec
    train_samples = scenario.run.data.train_count if scenario.run.data else here.train_samples
    fabric = make_fabric(scenario.hosts, scenario.spec.coordinator, scenario.spec.pair)
    names = [host.name for host in scenario.hosts]
    pairs = [(a, b) for a in names for b in names if a != b]
    return Costs(
        fingerprint=here.fingerprint,
        microbatch_samples=samples_of(spec, train_samples or spec.training.batch_size),
        boundaries=here.boundaries,
        tied=here.tied,
        nodes={
            host.name: NodeCosts(
                blocks=_blocks(here, gflop, speed_of(host) or OWN_SPEED),
                memory_bytes=memory_of(host),
                coordinator_way_s=fabric.route(host.name, COORDINATOR).delay_s,
            )
            for host in scenario.hosts
        },
        links=tuple(_link(fabric, a, b) for a, b in pairs),
        accesses={host.name: access_costs(access_of(host)) for host in scenario.hosts},
        trunks=_trunks(fabric, pairs),
        handling=handling,
    )


def access_of(link: LinkSpec) -> Access:
    """Return what a host can send and receive."""
    up, down = (parse_rate(link.up) or float("inf"), parse_rate(link.down) or float("inf"))
    shared = link.pipe == "shared"
    return Access(up, up if shared else down, shared)


def memory_of(host: HostSpec) -> int:
    """Return the memory that a node may use: what the scenario says, or all that this machine has."""
    return parse_byte_size(host.memory) if host.memory else psutil.virtual_memory().total


def _measure_here(scenario: Scenario) -> tuple[ChainReport, list[float]]:
    """Return what the blocks cost here with one thread, as nodes of a lab have it, and their 10^9 operations."""
    spec = scenario.run.spec
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source = scenario.run.data or open_source(spec.data)
        report = measure_device(spec, source.inputs, torch.device("cpu"))
        samples = samples_of(spec, source.train_count)
        return report, forward_gflop(build_chain(spec.model), source.inputs, samples)
    finally:
        torch.set_num_threads(threads)


def _blocks(here: ChainReport, gflop: list[float], speed: EmulatedSpeed) -> tuple[BlockCost, ...]:
    return tuple(
        replace(
            block,
            forward_s=speed.seconds(block.forward_s, count),
            backward_s=speed.seconds(block.backward_s, BACKWARD_SHARE * count),
            optimizer_s=speed.seconds(block.optimizer_s, 0.0),
        )
        for block, count in zip(here.blocks, gflop, strict=True)
    )


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
