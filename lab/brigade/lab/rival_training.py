"""What the loops that are not ours share with a run, so that they do the same work: data, loss, optimizer, clipping.

Everything here is torch's own; only which samples make a batch, the initial weights, the parameter groups and the
learning rate come from us, because they define the job.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from msgspec import json
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from brigade.coordinator.learning_rate import learning_rate
from brigade.coordinator.run_file import read_run_file
from brigade.lab.rival_job import Evaluation, Job, Step, write_line
from brigade.node.datasets import load_tensors, open_source
from brigade.node.freezing import freeze
from brigade.node.loss import IGNORED_TARGET, build_loss
from brigade.partition.batching import Batching, evaluation_batches
from brigade.partition.chain import build_chain
from brigade.partition.optimizers import build_optimizers, hidden_matrices
from brigade.wire.errors import ConfigError

LossFunction = Callable[[Tensor, Tensor], Tensor]


class RivalTraining:
    """The job of one process: its blocks, its batches, its update."""

    def __init__(self, job: Job) -> None:
        file = read_run_file(Path(job.run_file))
        self.spec = file.spec
        self.training = file.spec.training
        self.source = open_source(file.spec.data, file.data_path)
        training = self.training
        self.batching = Batching(
            self.source.train_count, training.batch_size, training.microbatches, file.spec.seed, training.shuffle
        )
        chain = build_chain(file.spec.model)
        first, end = ([*job.first_blocks, len(chain.blocks)][job.stage + i] for i in range(2))
        blocks = dict(zip(range(first, end), chain.materialise(first, end, file.spec.seed, "cpu"), strict=True))
        freeze(blocks, training.freeze, chain.tied)
        self.model = nn.Sequential(*blocks.values())
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        keys: dict[nn.Parameter, str] = {}  # a shared parameter goes by its first
        for index, block in blocks.items():
            for name, parameter in block.named_parameters():
                if parameter.requires_grad:
                    keys.setdefault(parameter, f"{index}.{name}")
        named = {key: parameter for parameter, key in keys.items()}
        self._optimizers = build_optimizers(named, training, hidden_matrices(chain.blocks, chain.tied))
        self.summed_loss = summed_loss(training.loss)
        self._count = build_loss(training.loss).count

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a whole step, microbatch after microbatch."""
        inputs, targets = load_tensors(self.source, "train", self.batching.sample_ids(step))
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise ConfigError("data: the yardstick needs one tensor of inputs and one of targets")
        return inputs, targets

    def count(self, targets: Tensor) -> int:
        """Return how many targets the mean is over."""
        return max(1, self._count(targets))

    def squared_norm(self) -> Tensor:
        """Return the squared norm of this process's gradients, as a scalar of float64."""
        gradients = [p.grad for p in self.trained if p.grad is not None]
        if not gradients:
            return torch.zeros((), dtype=torch.float64)
        return torch.nn.utils.get_total_norm(gradients).double().square()

    def update(self, step: int, norm: float) -> None:
        """Clip by the norm of the whole model, update, and forget the gradients."""
        limit = self.training.max_grad_norm
        if 0 < limit < norm:
            torch.nn.utils.clip_grads_with_norm_(self.trained, limit, torch.tensor(norm))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(self.training, step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the held-out loss of the whole model."""
        held_out = evaluation_batches(
            self.source.validation_count, self.batching.microbatch_samples, self.training.eval_batches
        )
        self.model.eval()
        total, count = 0.0, 0
        for ids in held_out:
            inputs, targets = load_tensors(self.source, "validation", ids)
            total += float(self.summed_loss(self.model(inputs), targets))
            count += self._count(targets)
        self.model.train()
        return total / max(1, count)

    def evaluates_after(self, step: int) -> bool:
        """Tell whether the run file wants a held-out loss after this step."""
        every, done = self.training.eval_steps, step + 1
        wanted = done == self.training.max_steps or (every > 0 and done % every == 0)
        return wanted and self.source.validation_count > 0


def summed_loss(name: str) -> LossFunction:
    """Return the loss of a microbatch, summed over its targets, as a torch user would write it."""
    if name == "cross_entropy":
        return lambda output, targets: cross_entropy(
            output.flatten(0, -2), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )
    total: Callable[[Any, Any], Tensor] = build_loss(name).total
    return total


def say(said: Step | Evaluation) -> None:
    """Tell who started this process."""
    sys.stdout.buffer.write(write_line(said))
    sys.stdout.buffer.flush()


def job_of(arguments: Iterable[str]) -> Job:
    """Return the job in the file that the command line names, and end with standard input from now on."""
    (path,) = arguments

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)  # whoever started this process is gone

    threading.Thread(target=watch, daemon=True).start()
    torch.set_num_threads(1)
    return json.decode(Path(path).read_bytes(), type=Job)
