"""Sizes anew, while a run trains, how many microbatches each stage keeps in flight: from what steps really took.

A core without I/O. More in flight costs memory only, less costs time: what is too little is raised at once, what is too
much is lowered by one at a time.
"""

from collections.abc import Mapping
from itertools import pairwise

from brigade.partition.line import HopTime, Line, StageTime
from brigade.partition.schedule import LATENCY_SIZED
from brigade.partition.sizing import size_in_flight
from brigade.wire.costs import LinkReport
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import Plan

MICROBATCHES = 50  # between one look and the next
UNLIMITED = 1 << 30


class Pacing:
    """The warm-ups of one plan; `links` is what was measured before it, by (from, to)."""

    def __init__(self, plan: Plan, links: Mapping[tuple[str, str], LinkReport]) -> None:
        self._plan = plan
        self._warm_ups = plan.warm_ups
        self._told = plan.warm_ups
        self._microbatches = 0
        self._seen: list[tuple[StageStatistics, ...]] = []
        ids = [stage.contact.node_id for stage in plan.stages]
        self._links = [(links.get((a, b)), links.get((b, a))) for a, b in pairwise(ids)]
        measured = all(there is not None and back is not None for there, back in self._links)
        self._in_use = plan.schedule == LATENCY_SIZED and bool(plan.warm_ups) and measured

    def take(self, statistics: tuple[StageStatistics, ...], microbatches: int) -> None:
        """Take note of what one step took at each stage."""
        if not self._in_use:
            return
        self._seen.append(statistics)
        self._microbatches += microbatches
        if self._microbatches >= MICROBATCHES:
            self._resize()
            self._microbatches = 0
            self._seen.clear()

    def take_news(self) -> tuple[int, ...]:
        """Return the warm-ups if they are not those that the stages were told last; else nothing."""
        if self._warm_ups == self._told:
            return ()
        self._told = self._warm_ups
        return self._warm_ups

    def _resize(self) -> None:
        plan = self._plan
        line = self._line()
        if not any(stage.compute_s > 0 for stage in line.stages):
            return
        batches = 1 if plan.mode != "async" else plan.versions - 1
        most = [stage.most_in_flight or UNLIMITED for stage in plan.stages]
        wanted = size_in_flight(line, most, batches * plan.microbatches).warm_ups
        self._warm_ups = tuple(
            want if want > now else max(want, now - 1) for want, now in zip(wanted, self._warm_ups, strict=True)
        )

    def _line(self) -> Line:
        """Return the line as the last steps saw it; links carry what they carried before the run."""
        stages, hops = [], []
        for k in range(len(self._plan.stages)):
            values = self._microbatches * ((k > 0) + (k + 1 < len(self._plan.stages)))  # sent, and as many received
            stages.append(
                StageTime(
                    forward_s=self._total(k, "forward_s") / self._microbatches,
                    backward_s=self._total(k, "backward_s") / self._microbatches,
                    encode_s=self._total(k, "encode_s") / values if values else 0.0,
                    decode_s=self._total(k, "decode_s") / values if values else 0.0,
                )
            )
        for k, (there, back) in enumerate(self._links):
            assert there is not None
            assert back is not None
            hops.append(
                HopTime(
                    activation_s=self._total(k, "forward_bytes") / self._microbatches / there.bytes_per_s,
                    gradient_s=self._total(k + 1, "backward_bytes") / self._microbatches / back.bytes_per_s,
                    one_way_s=(there.rtt_s + back.rtt_s) / 4,
                )
            )
        return Line(tuple(stages), tuple(hops))

    def _total(self, stage: int, name: str) -> float:
        return float(sum(getattr(statistics[stage], name) for statistics in self._seen))
