"""How long a step of a split will take: the line that it makes, with all that is known of it, run on paper."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from brigade.partition.cost_tables import Measurements
from brigade.partition.course import Course, set_course
from brigade.partition.fixed_order import Split
from brigade.partition.line import Access, HopTime, Line, PortTime, StageTime
from brigade.partition.simulation.run import Tie, UpdateRound

MESSAGE_BYTES = 750.0  # header, targets, encryption, acknowledgement: measured over all hops of four lab scenarios
STEADY_STEPS = 2  # after a flush the second step is like all others


@dataclass(frozen=True, slots=True)
class Trunk:
    """A line between the accesses of nodes that all links named here share, by node id: (from, to)."""

    bytes_per_s: float
    links: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """Seconds of a processor that everything costs beside the arithmetic of blocks.

    Encoding and decoding are for one value: a fixed part, and so much a byte of the uncompressed value; they come on
    top of what nodes have reported.
    """

    encode_s: float = 0.0
    encode_s_per_byte: float = 0.0
    decode_s: float = 0.0
    decode_s_per_byte: float = 0.0
    message_s: float = 0.0  # from thread to thread and through the sockets of both ends, once a value
    turn_s: float = 0.0  # between two pieces of work of one device
    round_s: float = 0.0  # once a step: norm, decision, the next step's beginning
    optimizer_s: float = 0.0  # once a step, on top of what blocks say


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a prediction knows besides blocks and single links, by node id.

    The access of a node that is not named is inferred: it sends as much as its best link carries, and receives as much.
    Without the ways to the coordinator the round through it takes no time.
    """

    accesses: Mapping[str, Access] = field(default_factory=dict)
    trunks: tuple[Trunk, ...] = ()
    coordinator_way_s: Mapping[str, float] = field(default_factory=dict)
    handling: Handling = Handling()
    message_bytes: float = 0.0  # on the line with each value


PLAIN = Surroundings()


def predict_step_s(
    measured: Measurements, split: Split, surroundings: Surroundings = PLAIN, steps: int = STEADY_STEPS
) -> float:
    """Return the seconds between two commits, over so many steps on paper."""
    return lay_course(measured, split, surroundings, steps).step_s


def lay_course(
    measured: Measurements, split: Split, surroundings: Surroundings = PLAIN, steps: int = STEADY_STEPS
) -> Course:
    """Return how steps would follow each other over a split."""
    return set_course(
        lay_line(measured, split, surroundings),
        lay_round(measured, split, surroundings),
        measured.pipeline,
        measured.microbatches,
        most_in_flight(measured, split),
        steps,
    )


def most_in_flight(measured: Measurements, split: Split) -> tuple[int, ...]:
    """Return for each stage how many microbatches fit into its node's memory."""
    cuts = pairwise(split.cuts)
    return tuple(
        measured.most_in_flight(node, first, end) for node, (first, end) in zip(split.order, cuts, strict=True)
    )


def lay_line(measured: Measurements, split: Split, surroundings: Surroundings) -> Line:
    """Return the stages of a split and what lies between them."""
    order, cuts = split.order, split.cuts
    hops = [
        _hop(measured, near, far, cut, surroundings)
        for (near, far), cut in zip(pairwise(order), cuts[1:-1], strict=True)
    ]
    return Line(
        stages=tuple(
            _stage(measured, node, first, end, surroundings.handling)
            for node, (first, end) in zip(order, pairwise(cuts), strict=True)
        ),
        hops=tuple(hop.time for hop in hops),
        ports=_ports(measured, order, hops, surroundings),
        trunks=tuple(hop.trunks for hop in hops),
    )


def lay_round(measured: Measurements, split: Split, surroundings: Surroundings) -> UpdateRound:
    """Return what a split has to wait for between two steps."""
    ways = surroundings.coordinator_way_s
    ids = [measured.contacts[node].node_id for node in split.order]
    return UpdateRound(
        coordinator_way_s=tuple(ways.get(node_id, 0.0) for node_id in ids) if ways else (),
        lag_s=surroundings.handling.round_s,
        ties=tuple(_ties(measured, split, surroundings)),
    )


def stage_of(split: Split, parameter: str) -> int:
    """Return the stage that holds a tied parameter, which begins with the number of its block."""
    return bisect_right(split.cuts, int(parameter.partition(".")[0])) - 1


@dataclass(frozen=True, slots=True)
class _Hop:
    time: HopTime
    trunks: tuple[int, int]
    activation_bytes: float
    gradient_bytes: float


def _stage(measured: Measurements, node: int, first: int, end: int, handling: Handling) -> StageTime:
    blocks = measured.blocks[node][first:end]
    last = len(measured.blocks[node])
    sizes = [measured.blocks[node][cut - 1].output_bytes for cut in (first, end) if 0 < cut < last]
    size = max(sizes, default=0)
    largest = max((block.output_bytes for block in measured.blocks[node][:-1]), default=0)
    share = size / largest if largest else 0.0
    encode_s, decode_s = (seconds * share for seconds in measured.codec_s[node])
    return StageTime(
        forward_s=sum(block.forward_s for block in blocks) + handling.turn_s,
        backward_s=sum(block.backward_s for block in blocks) + handling.turn_s,
        optimizer_s=sum(block.optimizer_s for block in blocks) + handling.optimizer_s,
        encode_s=encode_s + handling.encode_s + handling.encode_s_per_byte * size,
        decode_s=decode_s + handling.decode_s + handling.decode_s_per_byte * size,
    )


def _hop(measured: Measurements, near: int, far: int, cut: int, surroundings: Surroundings) -> _Hop:
    time = measured.hop_time(near, far, cut)
    there, back = measured.link(near, far), measured.link(far, near)
    activation_bytes = time.activation_s * there.bytes_per_s + surroundings.message_bytes
    gradient_bytes = time.gradient_s * back.bytes_per_s + surroundings.message_bytes
    way_s = time.one_way_s + surroundings.handling.message_s
    trunks = (_trunk(measured, near, far, surroundings), _trunk(measured, far, near, surroundings))
    return _Hop(
        HopTime(activation_bytes / there.bytes_per_s, gradient_bytes / back.bytes_per_s, way_s),
        trunks,
        activation_bytes,
        gradient_bytes,
    )


def _trunk(measured: Measurements, sender: int, receiver: int, surroundings: Surroundings) -> int:
    """Return the number of the slowest trunk between two nodes; -1 where there is none."""
    link = (measured.contacts[sender].node_id, measured.contacts[receiver].node_id)
    taken = [number for number, trunk in enumerate(surroundings.trunks) if link in trunk.links]
    return min(taken, key=lambda number: surroundings.trunks[number].bytes_per_s, default=-1)


def _ports(
    measured: Measurements, order: tuple[int, ...], hops: list[_Hop], surroundings: Surroundings
) -> tuple[PortTime, ...]:
    ports = []
    for k, node in enumerate(order):
        access = surroundings.accesses.get(measured.contacts[node].node_id) or _infer_access(measured, node)
        before, after = hops[k - 1] if k > 0 else None, hops[k] if k < len(hops) else None
        ports.append(
            PortTime(
                activation_out_s=after.activation_bytes / access.up_bytes_per_s if after else 0.0,
                gradient_out_s=before.gradient_bytes / access.up_bytes_per_s if before else 0.0,
                activation_in_s=before.activation_bytes / access.down_bytes_per_s if before else 0.0,
                gradient_in_s=after.gradient_bytes / access.down_bytes_per_s if after else 0.0,
                half_duplex=access.half_duplex,
            )
        )
    return tuple(ports)


def _infer_access(measured: Measurements, node: int) -> Access:
    others = [other for other in range(len(measured.contacts)) if measured.link_works(node, other)]
    return Access(
        max((measured.link(node, other).bytes_per_s for other in others), default=math.inf),
        max((measured.link(other, node).bytes_per_s for other in others), default=math.inf),
    )


def _ties(measured: Measurements, split: Split, surroundings: Surroundings) -> list[Tie]:
    """Return what tied parameters hold up; each travels as large as its block's parameters at most."""
    ties = []
    for tied in measured.chain.tied:
        owner = stage_of(split, tied.owner)
        for parameter in tied.followers:
            follower = stage_of(split, parameter)
            if follower == owner:
                continue
            block = measured.chain.blocks[int(tied.owner.partition(".")[0])]
            size = block.parameter_bytes + surroundings.message_bytes
            there = measured.link(split.order[follower], split.order[owner])
            back = measured.link(split.order[owner], split.order[follower])
            way_s = (there.rtt_s + back.rtt_s) / 4 + surroundings.handling.message_s
            ties.append(Tie(owner, follower, size / there.bytes_per_s + way_s, size / back.bytes_per_s + way_s))
    return ties
