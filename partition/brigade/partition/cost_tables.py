"""Turns what nodes measured into the arrays that the solver works on."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from brigade.partition.course import is_sized, least_versions, overlaps
from brigade.partition.fixed_order import CostTables, Seconds
from brigade.partition.line import HopTime, StageTime
from brigade.partition.memory import needed_bytes, usable_bytes
from brigade.partition.schedule import build, peak_in_flight
from brigade.wire.costs import BlockCost, ChainReport, DeviceReport, LinkReport
from brigade.wire.plan import NodeContact
from brigade.wire.run_spec import RunSpec

MOST_IN_FLIGHT = 4096  # more is never wanted
ENDLESS_STEPS = 100  # where steps overlap the way through all stages counts once a run, or hardly

Links = Mapping[tuple[str, str], LinkReport]


class Measurements:
    """What was measured, by node number, with the settings of the run that bear on costs.

    `codec_ratio` tells how many times smaller a codec makes a boundary value.
    """

    def __init__(
        self,
        contacts: Sequence[NodeContact],
        devices: Mapping[str, DeviceReport],
        chains: Mapping[str, ChainReport],
        links: Links,
        spec: RunSpec,
        microbatches: int,
        codec_ratio: Callable[[str], float],
    ) -> None:
        self.contacts = tuple(contacts)
        self.chain = chains[contacts[0].node_id]  # but for its costs, the same on all nodes
        self.blocks = [chains[contact.node_id].blocks for contact in contacts]
        self.codec_s = [(chains[contact.node_id].encode_s, chains[contact.node_id].decode_s) for contact in contacts]
        self.memory_bytes = [devices[contact.node_id].memory_bytes for contact in contacts]
        self.pipeline = spec.pipeline
        self.recompute = spec.training.gradient_checkpointing
        self.microbatches = microbatches
        self._reports = [[_report(links, near, far) for far in contacts] for near in contacts]
        self._forward_ratio = codec_ratio(spec.compression.forward)
        self._backward_ratio = codec_ratio(spec.compression.backward)
        self.needed = cache(self._needed)
        self.in_flight = cache(self._in_flight)
        self._seconds = cache(self._stage_seconds)
        self._most_in_flight = cache(self._holds)

    def _needed(self, node: int, in_flight: int) -> NDArray[np.int64]:
        return needed_bytes(self.blocks[node], in_flight, least_versions(self.pipeline), overlaps(self.pipeline))

    def _in_flight(self, stages: int) -> tuple[int, ...]:
        schedule = "1f1b" if is_sized(self.pipeline) else self.pipeline.schedule  # less cannot keep all stages busy
        return peak_in_flight(build(schedule, stages, self.microbatches))

    @property
    def beats(self) -> int:
        """Return how many microbatches follow each other before all stages wait for one to pass."""
        return self.microbatches * (ENDLESS_STEPS if overlaps(self.pipeline) else 1)

    def most_in_flight(self, node: int, first: int, end: int) -> int:
        """Return how many microbatches fit into a node's memory beside blocks [first, end)."""
        empty, one = (int(self.needed(node, count)[first, end]) for count in (0, 1))
        return min(MOST_IN_FLIGHT, (usable_bytes(self.memory_bytes[node]) - empty) // max(1, one - empty))

    def shortfall(self, node: int, in_flight: int) -> NDArray[np.int64]:
        """Return the bytes that a node lacks for blocks [a, b), at [a, b]; 0 where they fit."""
        return np.maximum(self.needed(node, in_flight) - usable_bytes(self.memory_bytes[node]), 0)

    def tables(self) -> CostTables:
        """Return the arrays that the solver works on."""
        count, boundaries = len(self.blocks), len(self.blocks[0]) + 1
        transfer = np.full((count, count, boundaries), np.inf)
        hop = np.full((count, count, boundaries), np.inf)
        bytes_out = np.array(
            [[0, *(block.output_bytes for block in blocks)] for blocks in self.blocks], dtype=np.float64
        )
        for node in range(count):
            for following in range(count):
                if self.link_works(node, following):  # as in `hop_time`, at all boundaries at once
                    there, back = self.link(node, following), self.link(following, node)
                    activation = bytes_out[node] / self._forward_ratio / there.bytes_per_s
                    gradient = bytes_out[node] / self._backward_ratio / back.bytes_per_s
                    transfer[node, following] = np.maximum(activation, gradient)
                    hop[node, following] = activation + gradient + (there.rtt_s + back.rtt_s) / 2
        return CostTables(
            nodes=count,
            blocks=boundaries - 1,
            microbatches=self.beats,
            stage_s=cache(self._stage_s),
            transfer_s=transfer,
            hop_s=hop,
            in_flight=self.in_flight,
        )

    def _stage_s(self, node: int, in_flight: int) -> Seconds:
        """Return [a, b]; the same array for numbers in flight that rule out the same stages."""
        return self._seconds(node, (self._most_in_flight(node) >= in_flight).tobytes())

    def _holds(self, node: int) -> NDArray[np.int64]:
        """Return how many microbatches in flight fit into a node's memory beside blocks [a, b), at [a, b]; -1: none."""
        room = usable_bytes(self.memory_bytes[node]) - self.needed(node, 0)
        each = self.needed(node, 1) - self.needed(node, 0)
        fits = np.where(each > 0, room // np.maximum(each, 1), np.where(room >= 0, np.iinfo(np.int64).max, -1))
        return np.where(np.triu(np.ones(fits.shape, dtype=np.bool_), k=1), fits, -1)

    def _stage_seconds(self, node: int, possible: bytes) -> Seconds:
        prefix = np.concatenate([[0.0], np.cumsum([sum(self._block_seconds(block)) for block in self.blocks[node]])])
        seconds = prefix[None, :] - prefix[:, None]
        return np.where(np.frombuffer(possible, dtype=np.bool_).reshape(seconds.shape), seconds, np.inf)

    def _block_seconds(self, block: BlockCost) -> tuple[float, float]:
        """Forward and backward of one microbatch; the backward bears its part of the optimizer's once a step."""
        return block.forward_s, block.backward_s + block.optimizer_s / self.microbatches

    def stage_time(self, node: int, first: int, end: int) -> StageTime:
        """Return what one microbatch takes in blocks [first, end) on a node."""
        seconds = [self._block_seconds(block) for block in self.blocks[node][first:end]]
        return StageTime(sum(forward for forward, _ in seconds), sum(backward for _, backward in seconds))

    def hop_time(self, node: int, following: int, boundary: int) -> HopTime:
        """Return what one microbatch takes across a boundary, from one node to the next, over a link that works."""
        there, back = self.link(node, following), self.link(following, node)
        size = self.blocks[node][boundary - 1].output_bytes if boundary > 0 else 0
        return HopTime(
            size / self._forward_ratio / there.bytes_per_s,
            size / self._backward_ratio / back.bytes_per_s,
            (there.rtt_s + back.rtt_s) / 4,
        )

    def link(self, node: int, other: int) -> LinkReport:
        """Return what the link carries; a link that nobody measured is reported as an error."""
        return self._reports[node][other]

    def link_works(self, node: int, other: int) -> bool:
        """Tell whether two nodes can be neighbours: both directions carry data."""
        return node != other and all(
            not link.error and link.bytes_per_s > 0 for link in (self.link(node, other), self.link(other, node))
        )


def _report(links: Links, near: NodeContact, far: NodeContact) -> LinkReport:
    unknown = LinkReport(to=far.node_id, rtt_s=0.0, bytes_per_s=0.0, error="not measured")
    return links.get((near.node_id, far.node_id), unknown)
