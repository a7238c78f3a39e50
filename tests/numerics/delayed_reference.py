"""What asynchronous modes have to equal: one process, one loop, whole copies of the weights by version.

    W(t + 1) = W(t) - U(clip(gradient of f at W(max(first, t - V + 1))))

Nothing here knows of pipelines, but that the norm is summed over the parameters of each part before it is summed over
parts, and that a shared parameter's gradients are summed by block: floating point wants one order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tests.numerics.reference import Reference
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from brigade.partition.samples import Source
from brigade.partition.seeds import derive
from brigade.wire.run_spec import RunSpec


class DelayedReference(Reference):
    def __init__(
        self,
        spec: RunSpec,
        source: Source,
        cuts: Sequence[int],
        *,
        versions: int,
        learning_rate: Callable[[int], float],
        first: int = 0,
    ) -> None:
        super().__init__(spec, source, learning_rate=learning_rate)
        self.cuts, self.delay, self.first = list(cuts), versions - 1, first
        self.followers = _untie(self.model)
        self.copies = {first: self._weights()}  # by number of updates
        self.updates: list[Tensor] = []

    def start_from(self, state: Mapping[str, Tensor], momenta: Mapping[str, Tensor]) -> None:
        """Go on with these weights and with the state of SGD."""
        self.model.load_state_dict(state)
        for name, parameter in self.model.named_parameters():
            if name in momenta:
                self.optimizer.state[parameter]["momentum_buffer"] = momenta[name].clone()
        self.copies = {self.first: self._weights()}

    def step(self, step: int) -> tuple[float, float]:
        """Return loss and norm of the gradient before clipping."""
        self.optimizer.zero_grad()
        for follower, _ in self.followers:
            follower.grad = None
        loss = self.gradients(step)
        for follower, owner in self.followers:
            owner.grad = follower.grad.clone() if owner.grad is None else owner.grad.add_(follower.grad)
        norm = self._norm()
        self._become(step)
        self._update(step, norm)
        self.copies[step + 1] = self._weights()
        self.copies.pop(step - self.delay - 1, None)
        return loss, norm

    def gradients(self, step: int) -> float:
        """Add up the gradients of a step with its version of the weights; return the loss."""
        self._become(max(self.first, step - self.delay))
        data, valid = self._data(step)
        total, count = [], 0
        for index, (inputs, targets) in enumerate(data):
            summed = self._summed(step, index, inputs, targets)
            (summed / valid).backward()
            total.append(float(summed.detach()))
            count += self.count(targets)
        return math.fsum(total) / count

    def _summed(self, step: int, index: int, inputs: Any, targets: Any) -> Tensor:
        output = self.forward(inputs, lambda block: derive(self.spec.seed, "dropout", step, index, block))
        return self.summed_loss(output, targets)

    def count(self, targets: Tensor) -> int:
        return targets.numel() if self.spec.training.loss == "mse" else int((targets != -100).sum())

    def _data(self, step: int) -> tuple[list[Any], int]:
        data = []
        for index in range(self.batching.microbatch_count(step)):
            loaded = self.source.load("train", np.asarray(self.batching.microbatch(step, index)))
            data.append(tuple(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in loaded))
        return data, sum(self.count(targets) for _, targets in data)

    def _norm(self) -> float:
        squares = []
        for first, end in zip(self.cuts, self.cuts[1:], strict=False):
            seen = {id(p): p for block in self.model[first:end] for p in block.parameters()}
            norms = [torch.linalg.vector_norm(p.grad).item() for p in seen.values() if self._counts(p)]
            squares.append(math.fsum(norm * norm for norm in norms))
        return math.sqrt(sum(squares))

    def _counts(self, parameter: nn.Parameter) -> bool:
        return parameter.grad is not None and all(parameter is not follower for follower, _ in self.followers)

    def _update(self, step: int, norm: float) -> None:
        if not math.isfinite(norm):
            return
        limit = self.spec.training.max_grad_norm
        scale = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        for parameter in self.trained:
            if parameter.grad is not None and scale != 1.0:
                parameter.grad.mul_(scale)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        before = self._weights()
        self.optimizer.step()
        if self.spec.training.delay_compensation == "extrapolate":
            self._extrapolate(before)

    @torch.no_grad()
    def _extrapolate(self, before: list[Tensor]) -> None:
        """Add to the update what it differs from the one before."""
        updates = [p.detach() - old for p, old in zip(self.model.parameters(), before, strict=True)]
        earlier = self.updates or updates  # the first is taken as it is
        for parameter, update, last in zip(self.model.parameters(), updates, earlier, strict=True):
            parameter.add_(update - last, alpha=self.spec.training.delay_extrapolation)
        self.updates = updates

    def _weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def _become(self, version: int) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), self.copies[version], strict=True):
                parameter.copy_(value)


class LateBackwardReference(DelayedReference):
    """PACI: all forwards of a step see the older weights, and so do the first backwards; the last ones see the newer.

    How many the last ones are is each stage's warm-up.
    """

    def __init__(
        self, spec: RunSpec, source: Source, cuts: Sequence[int], warm_ups: Sequence[int], **settings: Any
    ) -> None:
        super().__init__(spec, source, cuts, versions=2, **settings)
        self.warm_ups = warm_ups

    def forward(self, value: Any, seed: Callable[[int], int]) -> Any:
        if not self.spec.training.gradient_checkpointing:
            return super().forward(value, seed)
        for block in self.model:  # what is computed again sees the weights of that moment
            value = checkpoint(block, value, use_reentrant=False)
        return value

    def gradients(self, step: int) -> float:
        old, new = max(self.first, step - 1), step
        self._write(range(len(self.model)), old)
        data, valid = self._data(step)
        sums = [self._summed(step, index, *each) for index, each in enumerate(data)]
        for index, summed in enumerate(sums):
            for stage, warm_up in enumerate(self.warm_ups):
                late = index >= len(data) - min(warm_up, len(data))
                # the update before this step comes when the forwards of this step are through
                self._write(range(self.cuts[stage], self.cuts[stage + 1]), new if late else old)
            (summed / valid).backward()
        return math.fsum(float(each.detach()) for each in sums) / sum(self.count(targets) for _, targets in data)

    def _write(self, blocks: range, version: int) -> None:
        values = dict(zip(map(id, self.model.parameters()), self.copies[version], strict=True))
        for block in blocks:
            for parameter in self.model[block].parameters():
                parameter.data.copy_(values[id(parameter)])  # not seen by the graphs, as in the pipeline


def _untie(model: nn.Sequential) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Give every later block that shares a parameter its own leaf over the same memory; return (leaf, owner)."""
    owners: dict[int, nn.Parameter] = {}
    pairs = []
    for block in model:
        for module in block.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) in owners:
                    leaf = nn.Parameter(parameter.detach())
                    setattr(module, name, leaf)
                    pairs.append((leaf, parameter))
        for parameter in block.parameters():
            if all(parameter is not leaf for leaf, _ in pairs):
                owners[id(parameter)] = parameter
    return pairs
