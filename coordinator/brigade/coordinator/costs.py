"""What nodes and links cost, as a file: what a plan was made of, and what a plan is made of instead of measuring.

Nodes go by their names, so that a file outlives their keys. JSON; where a rate is `null`, nothing limits it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from brigade.coordinator.run_events import MakePlan
from brigade.coordinator.run_file import RunFile
from brigade.coordinator.table_errors import explain
from brigade.partition.batching import Batching
from brigade.partition.line import Access
from brigade.partition.prediction import Handling, Surroundings, Trunk
from brigade.wire.costs import BlockCost, ChainReport, DeviceReport, LinkReport
from brigade.wire.errors import ConfigError, PlanError
from brigade.wire.plan import Boundary, NodeContact, TiedParameter
from brigade.wire.run_spec import RunSpec

COSTS_NAME = "costs.json"


class NodeCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What blocks cost on one node, and where it is."""

    blocks: tuple[BlockCost, ...]
    memory_bytes: int
    encode_s: float = 0.0  # of a value of the largest boundary
    decode_s: float = 0.0
    coordinator_way_s: float | None = None  # one way; None: not known


class AccessCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node can send and receive in all; `half_duplex`: both together over one pipe."""

    up_bytes_per_s: float | None
    down_bytes_per_s: float | None
    half_duplex: bool = False


class LinkCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One directed link."""

    source: str
    target: str
    rtt_s: float
    bytes_per_s: float
    error: str = ""


class TrunkCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that several links share: pairs of source and target."""

    bytes_per_s: float
    links: tuple[tuple[str, str], ...]


class Costs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a plan depends on, besides the run file."""

    version: Literal[1] = 1
    fingerprint: str  # of the model
    microbatch_samples: int  # that the seconds and bytes of blocks are for
    boundaries: tuple[Boundary, ...]
    tied: tuple[TiedParameter, ...] = ()
    nodes: dict[str, NodeCosts]
    links: tuple[LinkCosts, ...]
    accesses: dict[str, AccessCosts] = {}  # of nodes that are not named they are inferred from the links
    trunks: tuple[TrunkCosts, ...] = ()
    handling: Handling = Handling()

    def to_json(self) -> bytes:
        """Return the content of a costs file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


@dataclass(frozen=True, slots=True)
class GivenCosts:
    """Costs that were given instead of being measured, and where they come from."""

    costs: Costs
    source: str  # the file, for people

    def chain(self, name: str, reported: ChainReport) -> ChainReport:
        """Return what the model costs on a node that has built it on paper; PlanError if it is another model."""
        known = self._node(name)
        if reported.fingerprint != self.costs.fingerprint:
            raise PlanError(
                f"{self.source} is about another model than the one on node {name} (fingerprints"
                f" {self.costs.fingerprint[:12]} and {reported.fingerprint[:12]}); leave out --costs to measure"
            )
        return replace(
            reported,
            blocks=known.blocks,
            boundaries=self.costs.boundaries,
            tied=self.costs.tied,
            encode_s=known.encode_s,
            decode_s=known.decode_s,
        )

    def device(self, name: str, device: DeviceReport) -> DeviceReport:
        """Return a node's device with the memory that the costs were noted for."""
        return replace(device, memory_bytes=self._node(name).memory_bytes)

    def links(self, contacts: Sequence[NodeContact]) -> dict[tuple[str, str], LinkReport]:
        """Return the links between these nodes, by node id."""
        ids = {contact.name: contact.node_id for contact in contacts}
        return {
            (ids[link.source], ids[link.target]): LinkReport(
                to=ids[link.target], rtt_s=link.rtt_s, bytes_per_s=link.bytes_per_s, error=link.error
            )
            for link in self.costs.links
            if link.source in ids and link.target in ids
        }

    def surroundings(self, contacts: Sequence[NodeContact]) -> Surroundings:
        """Return what else is known of these nodes, by node id."""
        ids = {contact.name: contact.node_id for contact in contacts}
        costs = self.costs
        ways = {name: node.coordinator_way_s for name, node in costs.nodes.items() if name in ids}
        trunks = (
            Trunk(trunk.bytes_per_s, frozenset((ids[a], ids[b]) for a, b in trunk.links if a in ids and b in ids))
            for trunk in costs.trunks
        )
        return Surroundings(
            accesses={
                ids[name]: Access(
                    _unlimited(access.up_bytes_per_s), _unlimited(access.down_bytes_per_s), access.half_duplex
                )
                for name, access in costs.accesses.items()
                if name in ids
            },
            trunks=tuple(trunk for trunk in trunks if trunk.links),
            coordinator_way_s={ids[name]: way_s for name, way_s in ways.items() if way_s is not None},
            handling=costs.handling,
        )

    def _node(self, name: str) -> NodeCosts:
        known = self.costs.nodes.get(name)
        if known is None:
            raise PlanError(
                f"{self.source} says nothing of node {name}; it knows {', '.join(sorted(self.costs.nodes))}"
            )
        return known


def microbatch_samples(spec: RunSpec, train_samples: int) -> int:
    """Return the samples of the largest microbatch of a run."""
    training = spec.training
    sizes = Batching(train_samples, training.batch_size, training.microbatches, spec.seed)
    return sizes.microbatch_samples


def read_costs(path: Path, run_file: RunFile) -> GivenCosts:
    """Return the costs in a file; ConfigError if it is no such file, or is about microbatches of another size."""
    spec = run_file.spec
    samples = microbatch_samples(spec, run_file.data.train_count if run_file.data else spec.training.batch_size)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        table = msgspec.json.decode(data)
        costs = msgspec.convert(table, Costs)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {explain(Costs, table, str(error))}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no costs file: {error}") from error
    if costs.microbatch_samples != samples:
        raise ConfigError(
            f"{path}: microbatch_samples is {costs.microbatch_samples}, but the run {spec.name} has"
            f" {samples} samples in a microbatch; leave out --costs to measure"
        )
    for complaint in _unsound(costs):
        raise ConfigError(f"{path}: {complaint}")
    return GivenCosts(costs, str(path))


def record_costs(order: MakePlan, samples: int) -> Costs:
    """Return what a plan is made of."""
    names = {contact.node_id: contact.name for contact in order.contacts}
    around = order.surroundings
    first = order.chains[order.contacts[0].node_id]
    return Costs(
        fingerprint=first.fingerprint,
        microbatch_samples=samples,
        boundaries=first.boundaries,
        tied=first.tied,
        nodes={
            name: NodeCosts(
                blocks=order.chains[node_id].blocks,
                memory_bytes=order.devices[node_id].memory_bytes,
                encode_s=order.chains[node_id].encode_s,
                decode_s=order.chains[node_id].decode_s,
                coordinator_way_s=around.coordinator_way_s.get(node_id),
            )
            for node_id, name in sorted(names.items(), key=lambda item: item[1])
        },
        links=tuple(
            LinkCosts(source=a, target=b, rtt_s=link.rtt_s, bytes_per_s=link.bytes_per_s, error=link.error)
            for a, b, link in sorted(
                ((names[a], names[b], link) for (a, b), link in order.links.items()), key=lambda each: each[:2]
            )
        ),
        accesses={
            names[node_id]: access_costs(access) for node_id, access in around.accesses.items() if node_id in names
        },
        trunks=tuple(
            TrunkCosts(bytes_per_s=trunk.bytes_per_s, links=tuple(sorted((names[a], names[b]) for a, b in trunk.links)))
            for trunk in around.trunks
        ),
        handling=around.handling,
    )


def access_costs(access: Access) -> AccessCosts:
    """Return an access as it is written down."""
    rates = [rate if math.isfinite(rate) else None for rate in (access.up_bytes_per_s, access.down_bytes_per_s)]
    return AccessCosts(up_bytes_per_s=rates[0], down_bytes_per_s=rates[1], half_duplex=access.half_duplex)


def _unlimited(rate: float | None) -> float:
    return math.inf if rate is None else rate


def _unsound(costs: Costs) -> list[str]:
    """Return what is valid by itself and cannot be."""
    blocks = len(costs.boundaries) + 1
    complaints = [
        f"nodes.{name}.blocks: expected {blocks}, one more than boundaries; found {len(node.blocks)}"
        for name, node in costs.nodes.items()
        if len(node.blocks) != blocks
    ]
    complaints += [
        f"nodes.{name}.blocks[{index}]: seconds and bytes are not negative; found {block}"
        for name, node in costs.nodes.items()
        for index, block in enumerate(node.blocks)
        if min(block.forward_s, block.backward_s, block.optimizer_s, block.output_bytes, block.saved_bytes) < 0
    ]
    complaints += [
        f"links[{index}]: a link without an error carries more than 0 bytes a second; found {link.bytes_per_s:g}"
        for index, link in enumerate(costs.links)
        if not link.error and not link.bytes_per_s > 0
    ]
    return complaints
