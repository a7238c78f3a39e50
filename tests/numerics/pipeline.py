"""All stages of a pipeline in one thread: what nodes, links and the coordinator do, without processes and sockets."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
from torch import Tensor

from brigade.compression.codec import build_codec
from brigade.compression.tensors import pack, unpack
from brigade.node.datasets import load_tensors
from brigade.node.stage_compute import StageCompute, StepSums
from brigade.node.state_files import read, write
from brigade.partition import tree
from brigade.partition.batching import Batching
from brigade.partition.boundaries import trace
from brigade.partition.chain import build_chain
from brigade.partition.measure import measure_chain
from brigade.partition.samples import Source
from brigade.partition.schedule import FORWARD, build
from brigade.partition.sequencer import Sequencer
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Boundary, NodeContact, Plan, StagePlan
from brigade.wire.run_spec import RunSpec


@dataclass(frozen=True)
class Row:
    """What the coordinator would note about a step."""

    loss: float
    grad_norm: float
    skipped: bool
    samples: tuple[int, ...]


def even_splits(blocks: int, stages: int) -> list[int]:
    """First blocks of the stages, and the end."""
    return [blocks * k // stages for k in range(stages + 1)]


class Pipeline:
    def __init__(
        self,
        spec: RunSpec,
        source: Source,
        cuts: Sequence[int],
        *,
        learning_rate: Callable[[int], float],
        codec: str = "raw",
        interleaving: int | None = None,
        files: Path | None = None,
    ) -> None:
        training = spec.training
        self.spec, self.source, self.learning_rate = spec, source, learning_rate
        self.batching = Batching(
            source.train_count, training.batch_size, training.microbatches, spec.seed, training.shuffle
        )
        chain = build_chain(spec.model)
        assert cuts[0] == 0
        assert cuts[-1] == len(chain.blocks)
        leaving: Sequence[Boundary]
        if training.bf16:  # autocast decides about dtypes on the real device
            leaving = measure_chain(chain, source.inputs, training, 2, torch.device("cpu")).boundaries
        else:
            leaving = trace(chain.blocks, source.inputs)
        self.plan = Plan(
            run_id="run",
            generation=0,
            stages=tuple(
                StagePlan(contact=_contact(k), first_block=cuts[k], end_block=cuts[k + 1]) for k in range(len(cuts) - 1)
            ),
            schedule=spec.pipeline.schedule,
            microbatches=training.microbatches,
            train_samples=source.train_count,
            validation_samples=source.validation_count,
            boundaries=tuple(leaving[end - 1] for end in cuts[1:-1]),
            tied=chain.tied,
        )
        self.stages = [StageCompute(chain, self.plan, k, spec) for k in range(len(cuts) - 1)]
        for k, stage in enumerate(self.stages):
            if files is None:
                stage.load_initial()
            else:
                blocks = range(cuts[k], cuts[k + 1])
                stage.load_files([path for path in sorted(files.iterdir()) if int(path.name[6:9]) in blocks])
        self.codec = build_codec(codec)
        self.random = None if interleaving is None else random.Random(interleaving)
        self.poison: Callable[[int, StageCompute], None] = lambda step, stage: None

    # --- what travels ----------------------------------------------------------------------------------------------

    def travel(self, value: Any, boundary: Boundary | None = None, samples: int = 0) -> Any:
        leaves, structure = tree.flatten(value)
        headers, frames = pack(leaves, self.codec if boundary else build_codec("raw"), seed=samples)
        structure = msgpack.unpackb(msgpack.packb(structure))
        expected = boundary and [(leaf.dtype, leaf.shape(samples)) for leaf in boundary.leaves]
        arrived = unpack(headers, [bytearray(frame) for frame in frames], expected)
        tree.check(structure, len(arrived))
        return tree.unflatten(structure, arrived)

    # --- one step --------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Row:
        count = self.batching.microbatch_count(step)
        data = [load_tensors(self.source, "train", np.asarray(self.batching.microbatch(step, i))) for i in range(count)]
        targets_of_step = sum(self.stages[0].count_targets(targets) for _, targets in data)
        last = len(self.stages) - 1
        schedule = build(self.plan.schedule, last + 1, count)
        walks = [Sequencer(order, first=k == 0, last=k == last) for k, order in enumerate(schedule)]
        activations: list[dict[int, Any]] = [{} for _ in self.stages]
        gradients: list[dict[int, Any]] = [{} for _ in self.stages]
        activations[0] = {i: inputs for i, (inputs, _) in enumerate(data)}
        remaining = sum(map(len, schedule))
        while remaining:
            order = list(range(last + 1))
            if self.random is not None:
                self.random.shuffle(order)
            for k in order:
                action = walks[k].next(activations[k], gradients[k])
                if action is not None:
                    break
            else:
                raise AssertionError("deadlock")
            remaining -= 1
            slot = Slot(step=step, index=action.index)
            if action.kind == FORWARD:
                ids = tuple(self.batching.microbatch(step, action.index).tolist())
                output = self.stages[k].forward(
                    slot,
                    activations[k].pop(action.index),
                    self.travel(data[action.index][1]),
                    step_target_count=targets_of_step,
                    samples=ids,
                )
                assert (output is None) == (k == last)
                if k < last:
                    activations[k + 1][action.index] = self.travel(output, self.plan.boundaries[k], len(ids))
            else:
                back = self.stages[k].backward(slot, gradients[k].pop(action.index, None))
                if k > 0:
                    gradients[k - 1][action.index] = self.travel(back)
        return self.finish(step)

    def finish(self, step: int) -> Row:
        for stage in self.stages:
            self.poison(step, stage)
        for stage in self.stages:
            for key, gradient in stage.tied_gradients(step).items():
                owner = self.owner_of(key)
                assert owner.tied_parameter(key).shape == gradient.shape
                owner.add_tied_gradient(key, self.travel(gradient))
        sums: list[StepSums] = [stage.end_of_step(step) for stage in self.stages]
        skip = not all(each.finite for each in sums)
        norm = math.sqrt(sum(each.squared_norm for each in sums))
        limit = self.spec.training.max_grad_norm
        scale = min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
        for stage in self.stages:
            stage.apply(step, self.learning_rate(step), scale, skip)
        for stage in self.stages:
            for key, weight in stage.tied_weights().items():
                self.stage_of(key).set_tied_weight(key, self.travel(weight))
        assert all(not each.samples for each in sums[:-1])
        loss = sums[-1].loss_sum / max(1, sums[-1].target_count)
        return Row(loss, norm, skip, sums[-1].samples)

    def run(self, steps: range) -> list[Row]:
        return [self.step(step) for step in steps]

    def evaluate(self, step: int, batches: Sequence[Any]) -> float:
        for index, ids in enumerate(batches):
            slot = Slot(step=step, index=index, evaluation=True)
            value, targets = load_tensors(self.source, "validation", ids)
            for k, stage in enumerate(self.stages):
                value = stage.evaluate(slot, value, targets)
                if k < len(self.stages) - 1:
                    value = self.travel(value, self.plan.boundaries[k], len(ids))
        total, count = self.stages[-1].end_of_evaluation()
        return total / count

    # --- state -----------------------------------------------------------------------------------------------------

    def owner_of(self, follower: str) -> StageCompute:
        return self.stage_of(next(tie.owner for tie in self.plan.tied if follower in tie.followers))

    def stage_of(self, key: str) -> StageCompute:
        block = int(key.partition(".")[0])
        stages = zip(self.plan.stages, self.stages, strict=True)
        return next(stage for plan, stage in stages if plan.first_block <= block < plan.end_block)

    def state(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by `"<block>.<name>"`."""
        files = {name: file for stage in self.stages for name, file in stage.snapshot().items()}
        return {
            f"{file.facts['block']}.{key}": tensor
            for name, file in files.items()
            if ".optimizer" not in name
            for key, tensor in file.tensors.items()
        }

    def save(self, directory: Path) -> None:
        for stage in self.stages:
            for spec in write(directory, stage.snapshot()):
                assert (directory / spec.name).stat().st_size == spec.size
                read(directory / spec.name)


def _contact(stage: int) -> NodeContact:
    return NodeContact(node_id=f"node{stage}", name=f"node{stage}", public_key="", endpoint="")
