"""Small fleets with round costs, and the plan of each by brute force, in plain Python."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations

from hypothesis import strategies as st

from brigade.partition.cost_tables import Measurements
from brigade.wire.costs import BlockCost, ChainReport, DeviceReport, LinkReport
from brigade.wire.plan import Boundary, LeafSpec, NodeContact, Plan, TiedParameter
from brigade.wire.run_spec import CompressionSpec, GptSpec, PipelineSpec, RunSpec, TextData, TrainingSpec


@dataclass
class Fleet:
    """Nodes by number; every list is indexed by node, block or both."""

    forward_s: list[list[float]]  # [node][block]
    backward_s: list[list[float]]
    persistent_bytes: list[int]  # [block]
    saved_bytes: list[int]
    output_bytes: list[int]
    memory_bytes: list[int]  # [node]
    bytes_per_s: dict[tuple[int, int], float] = field(default_factory=dict)
    rtt_s: dict[tuple[int, int], float] = field(default_factory=dict)
    broken: set[tuple[int, int]] = field(default_factory=set)
    schedule: str = "1f1b"
    microbatches: int = 4
    tied: tuple[TiedParameter, ...] = ()
    codecs: CompressionSpec = field(default_factory=CompressionSpec)

    @property
    def nodes(self) -> int:
        return len(self.forward_s)

    @property
    def blocks(self) -> int:
        return len(self.persistent_bytes)

    def contacts(self) -> list[NodeContact]:
        return [
            NodeContact(node_id=f"id{node}", name=name(node), public_key="", endpoint="") for node in range(self.nodes)
        ]

    def devices(self) -> dict[str, DeviceReport]:
        return {
            f"id{node}": DeviceReport(kind="cpu", name="", memory_bytes=memory, host=f"h{node}", threads=1, software="")
            for node, memory in enumerate(self.memory_bytes)
        }

    def chains(self) -> dict[str, ChainReport]:
        return {f"id{node}": self._chain(node) for node in range(self.nodes)}

    def _chain(self, node: int) -> ChainReport:
        costs = tuple(
            BlockCost(
                forward_s=self.forward_s[node][block],
                backward_s=self.backward_s[node][block],
                optimizer_s=0.0,
                parameter_bytes=self.persistent_bytes[block],
                gradient_bytes=0,
                optimizer_bytes=0,
                saved_bytes=self.saved_bytes[block],
                output_bytes=self.output_bytes[block],
            )
            for block in range(self.blocks)
        )
        return ChainReport(
            fingerprint="f",
            blocks=costs,
            boundaries=tuple(boundary(block) for block in range(self.blocks - 1)),
            tied=self.tied,
        )

    def links(self) -> dict[tuple[str, str], LinkReport]:
        return {
            (f"id{a}", f"id{b}"): LinkReport(
                to=f"id{b}",
                rtt_s=self.rtt_s.get((a, b), 0.0),
                bytes_per_s=self.bytes_per_s.get((a, b), 1e12),
                error="unreachable" if (a, b) in self.broken else "",
            )
            for a in range(self.nodes)
            for b in range(self.nodes)
            if a != b
        }

    def spec(self, stages: int | None = None) -> RunSpec:
        return RunSpec(
            name="run",
            model=GptSpec(),
            data=TextData(path="x"),
            training=TrainingSpec(max_steps=1, batch_size=64, microbatches=self.microbatches),
            pipeline=PipelineSpec(nodes=self.nodes, stages=stages, schedule=self.schedule),
            compression=self.codecs,
        )

    def measurements(self) -> Measurements:
        return Measurements(
            self.contacts(),
            self.devices(),
            self.chains(),
            self.links(),
            self.spec(),
            self.microbatches,
            lambda _: 1.0,
        )


def name(node: int) -> str:
    return ("ada", "bob", "cyd", "dan", "eve", "fay", "gil", "hal")[node]


def boundary(block: int) -> Boundary:
    return Boundary(structure=0, leaves=(LeafSpec(dtype="float32", fixed=(0, block), per_sample=(1, 0)),))


def even_fleet(nodes: int, blocks: int, **changes: object) -> Fleet:
    """Equal nodes and blocks: 1 s forward, 2 s backward, no transfer time."""
    settings: dict[str, object] = {
        "forward_s": [[1.0] * blocks for _ in range(nodes)],
        "backward_s": [[2.0] * blocks for _ in range(nodes)],
        "persistent_bytes": [100] * blocks,
        "saved_bytes": [10] * blocks,
        "output_bytes": [0] * blocks,
        "memory_bytes": [10**9] * nodes,
    }
    return Fleet(**(settings | changes))  # type: ignore[arg-type]


numbers = st.integers(1, 30)


@st.composite
def fleets(draw: st.DrawFn, most_nodes: int = 4, most_blocks: int = 8) -> Fleet:
    nodes, blocks = draw(st.integers(1, most_nodes)), draw(st.integers(1, most_blocks))

    def several(count: int, values: st.SearchStrategy[int] = numbers) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    return Fleet(
        forward_s=[[float(s) for s in several(blocks)] for _ in range(nodes)],
        backward_s=[[float(s) for s in several(blocks)] for _ in range(nodes)],
        persistent_bytes=several(blocks),
        saved_bytes=several(blocks),
        output_bytes=several(blocks, st.integers(0, 60)),
        memory_bytes=several(nodes, st.integers(100, 1500)),
        bytes_per_s={pair: float(draw(st.sampled_from([0.5, 1.0, 4.0, 1e6]))) for pair in pairs},
        rtt_s={pair: float(draw(st.integers(0, 20))) for pair in pairs},
        broken={pair for pair in pairs if draw(st.integers(0, 9)) == 0},
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
        microbatches=draw(st.integers(1, 6)),
    )


def every_cut(blocks: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, blocks), stages - 1):
        yield (0, *inner, blocks)


def every_order(nodes: int, stages: int) -> Iterator[tuple[int, ...]]:
    return permutations(range(nodes), stages)


def price(fleet: Fleet, order: tuple[int, ...], cuts: tuple[int, ...]) -> tuple[float, float] | None:
    """Return bottleneck and passage of these cuts by their definition; None when they do not fit or links fail."""
    bottleneck = passage = 0.0
    for k, node in enumerate(order):
        first, end = cuts[k], cuts[k + 1]
        seconds = sum(fleet.forward_s[node][first:end]) + sum(fleet.backward_s[node][first:end])
        bottleneck = max(bottleneck, seconds)
        passage += seconds
        in_flight = fleet.microbatches if fleet.schedule == "gpipe" else min(fleet.microbatches, len(order) - k)
        incoming = fleet.output_bytes[first - 1] if first > 0 else 0
        outgoing = fleet.output_bytes[end - 1] if end < fleet.blocks else 0
        needed = (
            sum(fleet.persistent_bytes[first:end])
            + (in_flight + 1) * sum(fleet.saved_bytes[first:end])
            + 4 * (incoming + outgoing)
        )
        if needed > int(0.9 * fleet.memory_bytes[node]):
            return None
        if k + 1 < len(order):
            there, back = (node, order[k + 1]), (order[k + 1], node)
            if there in fleet.broken or back in fleet.broken:
                return None
            activation = outgoing / fleet.bytes_per_s.get(there, 1e12)
            gradient = outgoing / fleet.bytes_per_s.get(back, 1e12)
            bottleneck = max(bottleneck, activation, gradient)
            latency = (fleet.rtt_s.get(there, 0.0) + fleet.rtt_s.get(back, 0.0)) / 2
            passage += activation + gradient + latency
    return bottleneck, passage


def check_is_whole(plan: Plan, fleet: Fleet) -> None:
    """Assert what holds for every plan: all blocks in order, one stage a node, boundaries that fit the cuts."""
    cuts = [0, *(stage.end_block for stage in plan.stages)]
    assert [stage.first_block for stage in plan.stages] == cuts[:-1]
    assert cuts[-1] == fleet.blocks
    assert all(a < b for a, b in pairwise(cuts))
    nodes = [stage.contact.node_id for stage in plan.stages] + [spare.node_id for spare in plan.spares]
    assert sorted(nodes) == sorted(contact.node_id for contact in fleet.contacts())
    assert plan.boundaries == tuple(boundary(cut - 1) for cut in cuts[1:-1])
    assert abs(sum(stage.compute_share for stage in plan.stages) - 1) < 1e-9
