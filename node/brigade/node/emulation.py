"""A stage on a pretended device: computes in earnest, then sleeps until the device would be done.

What took longer than the device would have is made up for in the next pieces of work, so that a machine that many
nodes share is right on average as long as it keeps up at all.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from brigade.node.autograd_stage import Gradients
from brigade.node.emulated_speed import EmulatedSpeed, SpeedSource
from brigade.node.loss import count_samples
from brigade.node.stage_compute import StageCompute
from brigade.partition import boundaries, tree
from brigade.partition.chain import Chain
from brigade.wire.costs import ChainReport
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Boundary, Plan
from brigade.wire.run_spec import RunSpec

BACKWARD_SHARE = 2.0  # operations of a backward, as a multiple of the forward's
GIGA = 1e9


def forward_gflop(chain: Chain, inputs: Boundary, samples: int) -> list[float]:
    """Return the 10^9 operations of each block's forward, counted on paper (matrix products and attention)."""
    return _count(chain.blocks, boundaries.example(inputs, samples, "meta"))


def _count(blocks: Iterable[nn.Module], value: Any) -> list[float]:
    """Count on paper: what real tensors run on counts otherwise, or not at all (attention on a processor)."""
    counts = []
    for block in blocks:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            value = block(value)
        counts.append(counter.get_total_flops() / GIGA)
    return counts


def emulated_report(report: ChainReport, gflop: Sequence[float], speed: EmulatedSpeed) -> ChainReport:
    """Return what the pretended device would have measured: it is never faster than the arithmetic here."""
    blocks = tuple(
        replace(
            block,
            forward_s=max(block.forward_s, speed.seconds(block.forward_s, count)),
            backward_s=max(block.backward_s, speed.seconds(block.backward_s, BACKWARD_SHARE * count)),
            optimizer_s=max(block.optimizer_s, speed.seconds(block.optimizer_s, 0.0)),
        )
        for block, count in zip(report.blocks, gflop, strict=True)
    )
    return replace(report, blocks=blocks)


def _on_paper(value: Any) -> Any:
    """Return a value of the same shapes without numbers."""
    leaves, structure = tree.flatten(value)
    return tree.unflatten(structure, [leaf.to("meta") for leaf in leaves])


class EmulatedStageCompute(StageCompute):
    """A stage whose seconds are those of another device."""

    def __init__(
        self,
        chain: Chain,
        plan: Plan,
        stage: int,
        spec: RunSpec,
        device: torch.device | str,
        source: SpeedSource,
    ) -> None:
        super().__init__(chain, plan, stage, spec, device)
        self._source = source
        own = plan.stages[stage]
        self._paper = chain.blocks[own.first_block : own.end_block]
        self._gflop_per_sample: float | None = None  # of a forward; counted at the first one
        self._sizes: dict[Slot, int] = {}
        self._debt_s = 0.0  # worked longer than the device would have

    def forward(
        self, slot: Slot, inputs: Any, targets: Any, *, step_target_count: int, samples: Sequence[int] = ()
    ) -> Any:
        """See `StageCompute`."""
        self._sizes[slot] = len(samples) or count_samples(targets)
        if self._gflop_per_sample is None:
            self._gflop_per_sample = sum(_count(self._paper, _on_paper(inputs))) / self._sizes[slot]
        with self._paced("forward", self._sizes[slot]):
            return super().forward(slot, inputs, targets, step_target_count=step_target_count, samples=samples)

    def backward(self, slot: Slot, gradients: Sequence[Tensor | None] | None) -> Gradients:
        """See `StageCompute`."""
        with self._paced("backward", BACKWARD_SHARE * self._sizes.pop(slot)):
            return super().backward(slot, gradients)

    def evaluate(self, slot: Slot, inputs: Any, targets: Any) -> Any:
        """See `StageCompute`."""
        with self._paced("", count_samples(targets)):
            return super().evaluate(slot, inputs, targets)

    def apply(self, step: int, learning_rate: float, gradient_scale: float, skip: bool) -> None:
        """See `StageCompute`."""
        with self._paced("optimizer", 0.0):
            super().apply(step, learning_rate, gradient_scale, skip)

    def drop_step(self) -> None:
        """See `StageCompute`."""
        self._sizes.clear()
        super().drop_step()

    @contextmanager
    def _paced(self, what: str, forwards: float) -> Iterator[None]:
        """Make the work inside take the device's time; `forwards` is its size, in forwards of one sample."""
        began, computed = time.perf_counter(), time.thread_time()
        yield
        gflop = forwards * (self._gflop_per_sample or 0.0)
        target_s = self._source.now().seconds(time.thread_time() - computed, gflop)
        left_s = target_s - (time.perf_counter() - began)
        if left_s <= 0:
            self._debt_s = min(self._debt_s - left_s, target_s)
            return
        pad_s = max(0.0, left_s - self._debt_s)
        self._debt_s = max(0.0, self._debt_s - left_s)
        asleep = time.perf_counter()
        time.sleep(pad_s)
        slept_s = time.perf_counter() - asleep
        self._debt_s = min(self._debt_s + max(0.0, slept_s - pad_s), target_s)  # a busy machine wakes us late
        if what:
            self._seconds[what] += slept_s
