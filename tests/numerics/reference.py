"""The same training in a plain torch loop: one process, the whole model, `torch.optim`, `clip_grad_norm_`.

It shares with the pipeline the model's code, initial weights, which samples a microbatch has and the seeds of dropout,
and nothing of how a stage computes.
"""

from collections.abc import Callable
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from brigade.partition.batching import Batching
from brigade.partition.chain import plain_model
from brigade.partition.samples import Source
from brigade.partition.seeds import derive
from brigade.wire.run_spec import RunSpec


class Reference:
    def __init__(self, spec: RunSpec, source: Source, *, learning_rate: Callable[[int], float]) -> None:
        self.spec, self.source, self.learning_rate = spec, source, learning_rate
        training = spec.training
        self.batching = Batching(
            source.train_count, training.batch_size, training.microbatches, spec.seed, training.shuffle
        )
        self.model = plain_model(spec.model, spec.seed)
        for name, parameter in self.model.named_parameters():
            if any(fnmatchcase(name, pattern) for pattern in training.freeze):
                parameter.requires_grad_(False)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in self.trained if p.dim() >= 2], "weight_decay": training.weight_decay},
            {"params": [p for p in self.trained if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer: torch.optim.Optimizer
        if training.optim == "AdamW":
            betas = (training.adam_beta1 or 0.9, training.adam_beta2 or 0.999)
            self.optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=training.adam_epsilon or 1e-8)
        else:
            self.optimizer = getattr(torch.optim, training.optim)(groups, lr=1.0, **training.optim_args)

    def forward(self, value: Any, seed: Callable[[int], int]) -> Any:
        autocast = torch.autocast("cpu", torch.bfloat16) if self.spec.training.bf16 else nullcontext()
        with autocast:
            for index, block in enumerate(self.model):
                torch.default_generator.manual_seed(seed(index))  # as torch.manual_seed does, and fast
                value = block(value)
        return value

    def summed_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.spec.training.loss == "mse":
            return ((output.float() - targets) ** 2).sum()
        logits = output.float().flatten(0, -2)
        return cross_entropy(logits, targets.flatten(), reduction="sum", ignore_index=-100)

    def step(self, step: int) -> tuple[float, float]:
        """Return loss and norm of the gradient before clipping."""
        training = self.spec.training
        data = []
        for index in range(self.batching.microbatch_count(step)):
            inputs, targets = self.source.load("train", np.asarray(self.batching.microbatch(step, index)))
            data.append((_tensors(inputs), _tensors(targets)))
        if training.loss == "mse":
            valid = sum(targets.numel() for _, targets in data)
        else:
            valid = sum(int((targets != -100).sum()) for _, targets in data)
        self.optimizer.zero_grad()
        loss = 0.0
        for index, (inputs, targets) in enumerate(data):
            output = self.forward(inputs, lambda block, i=index: derive(self.spec.seed, "dropout", step, i, block))
            part = self.summed_loss(output, targets) / valid
            part.backward()
            loss += part.item()
        limit = training.max_grad_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self.trained, limit).item()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        if np.isfinite(norm):
            self.optimizer.step()
        return loss, norm

    def run(self, steps: range) -> list[tuple[float, float]]:
        return [self.step(step) for step in steps]

    @torch.no_grad()
    def evaluate(self, batches: list[Any]) -> float:
        self.model.eval()
        total, count = 0.0, 0
        for ids in batches:
            inputs, targets = map(_tensors, self.source.load("validation", ids))
            total += self.summed_loss(self.model(inputs), targets).item()
            count += int((targets != -100).sum())
        self.model.train()
        return total / count

    def state(self) -> dict[str, Tensor]:
        return self.model.state_dict()


def _tensors(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
