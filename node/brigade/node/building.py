"""What the compute thread does before training: time the chain, build the stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from brigade.node.codec_times import time_codec
from brigade.node.datasets import open_source
from brigade.node.emulated_speed import SpeedSource
from brigade.node.emulation import EmulatedStageCompute, emulated_report, forward_gflop
from brigade.node.microbatches import Microbatches
from brigade.node.stage_compute import StageCompute
from brigade.node.tied import tied_roles
from brigade.partition.batching import Batching
from brigade.partition.chain import build_chain
from brigade.partition.measure import describe_chain, measure_chain
from brigade.wire.costs import ChainReport
from brigade.wire.messages import LoadStage
from brigade.wire.plan import Boundary
from brigade.wire.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class StageParts:
    """A stage that stands, and the stages that it exchanges tensors with."""

    compute: StageCompute
    microbatches: Microbatches
    linked_stages: tuple[int, ...]


def measure_device(
    spec: RunSpec,
    inputs: Boundary | None,
    device: torch.device,
    emulated: SpeedSource | None = None,
    *,
    timed: bool = True,
) -> ChainReport:
    """Time the blocks of the run's chain on this device; data of a factory is opened for its shape and its size.

    `emulated`: say what the device that is pretended would need. Without `timed` nothing is computed, and costs are 0.
    """
    source = None
    if inputs is None:
        source = open_source(spec.data)
        inputs = source.inputs
    training = spec.training
    samples = source.train_count if source is not None else training.batch_size
    sizes = Batching(
        samples=samples, batch_size=training.batch_size, microbatches=training.microbatches, seed=spec.seed
    )
    chain = build_chain(spec.model)
    if timed:
        measured = measure_chain(chain, inputs, training, sizes.microbatch_samples, device)
        measured = _with_codec(measured, sizes.microbatch_samples, spec)
    else:
        measured = describe_chain(chain, inputs)
    if timed and emulated is not None:
        gflop = forward_gflop(chain, inputs, sizes.microbatch_samples)
        measured = emulated_report(measured, gflop, emulated.now())
    if source is None:
        return measured
    return replace(measured, train_samples=source.train_count, validation_samples=source.validation_count)


def _with_codec(report: ChainReport, samples: int, spec: RunSpec) -> ChainReport:
    """Add how long the largest value between two blocks is encoded and decoded."""
    sizes = [block.output_bytes for block in report.blocks[:-1]]
    if not sizes:
        return report
    boundary = report.boundaries[sizes.index(max(sizes))]
    encode_s, decode_s = time_codec(boundary, samples, spec.compression.forward)
    return replace(report, encode_s=encode_s, decode_s=decode_s)


def build_stage(
    spec: RunSpec,
    order: LoadStage,
    checkpoint: Sequence[Path],
    data: Path | None,
    device: torch.device,
    emulated: SpeedSource | None = None,
) -> StageParts:
    """Build a stage from the seed, or from the files of a checkpoint."""
    plan, stage = order.plan, order.stage
    chain = build_chain(spec.model)
    if emulated is None:
        compute = StageCompute(chain, plan, stage, spec, device)
    else:
        compute = EmulatedStageCompute(chain, plan, stage, spec, device, emulated)
    if checkpoint:
        compute.load_files(checkpoint, order.first_step)
    else:
        compute.load_initial()
    microbatches = Microbatches(spec, plan)
    if stage == 0:
        microbatches.open(data)
    roles = tied_roles(plan, stage)
    linked = {stage - 1, stage + 1, *roles.owned.values(), *roles.followed.values()}
    return StageParts(compute, microbatches, tuple(sorted(k for k in linked if 0 <= k < len(plan.stages))))
