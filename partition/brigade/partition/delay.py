"""What is done about gradients of older weights: small wrappers over optimizers of torch, one class for each remedy.

A stage that does not wait computes a gradient with the weights of some updates ago: its delay. A remedy may change the
update (`step`), the weights to compute with (`forward_weights`) and, where forward and backward meet different weights,
those of the backward (`backward_weights`). Without delay all of them change nothing. One process that does the same
with a queue of old weights gets the same bits: examples/delay is such a process.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

# One call for a list of tensors; torch's own optimizers are built on these.
from torch import (
    Tensor,
    _foreach_add_,
    _foreach_addcdiv_,
    _foreach_copy_,
    _foreach_div_,
    _foreach_mul_,
    _foreach_neg_,
    _foreach_sqrt,
    _foreach_sub_,
)

from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import TrainingSpec

MAX_DISTANCE = 4  # updates; predictions from moments do harm when they reach further

State = dict[str, Any]  # of one parameter: tensors and plain numbers


class DelayCompensation:
    """Updates parameters with one or more optimizers; this class, `none`, takes the delay as it comes."""

    buffer_key: ClassVar[str] = ""  # what the one buffer of each parameter is called in a checkpoint
    number_key: ClassVar[str] = ""  # and the one number that all parameters have in common
    passing_copies: ClassVar[int] = 0  # of all parameters, in memory while a call runs

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], training: TrainingSpec) -> None:
        self._optimizers = optimizers
        self._training = training
        self._buffers: dict[Tensor, Tensor] = {}
        self._number: float | None = None
        self.parameters: list[Tensor] = [
            p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
        ]

    def step(self, learning_rate: float, delay: int = 0) -> None:
        """Make one update; its gradients are of the weights of `delay` updates ago.

        A parameter without a gradient is left alone.
        """
        del delay
        self._update(learning_rate)

    @torch.no_grad()
    def forward_weights(self, into: Mapping[Tensor, Tensor], distance: int) -> None:
        """Write to the tensors of `into` what a gradient that is applied `distance` updates from now is computed with.

        The parameters hold the newest weights when this is called. Whoever leaves some out gets the others.
        """
        del distance
        if into:
            _foreach_copy_(list(into.values()), [p.detach() for p in into])

    def backward_weights(self, into: Mapping[Tensor, Tensor], distance: int) -> None:
        """Write what a backward takes whose forward was `distance` updates ago, with weights that are gone."""
        self.forward_weights(into, 0)
        del distance

    def states(self) -> dict[Tensor, State]:
        """Return what a checkpoint needs beside the optimizers' own state; tensors are live."""
        if self._number is None:
            return {}
        number = {self.number_key: self._number} if self.number_key else {}
        return {
            p: {self.buffer_key: self._buffers[p], **number} if p in self._buffers else number for p in self.parameters
        }

    def load(self, states: Mapping[Tensor, State]) -> None:
        """Replace all state; what another remedy has left is not taken."""
        numbers = [state[self.number_key] for state in states.values() if self.number_key in state]
        self._number = max(numbers) if numbers else None
        self._buffers = {
            p: state[self.buffer_key].to(device=p.device, dtype=p.dtype)
            for p, state in states.items()
            if isinstance(state.get(self.buffer_key), Tensor)
        }

    def extra_bytes(self) -> int:
        """Return the bytes of all state, the optimizers' included, and of what passes through memory with an update."""
        own = [
            value for optimizer in self._optimizers for state in optimizer.state.values() for value in state.values()
        ]
        kept = [value for value in (*own, *self._buffers.values()) if isinstance(value, Tensor)]
        passing = self.passing_copies * sum(p.nbytes for p in self.parameters)
        return sum(value.nbytes for value in kept) + passing

    def _update(self, learning_rate: float) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def _moving(self) -> list[Tensor]:
        return [p for p in self.parameters if p.grad is not None]

    def _buffers_of(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        for p in parameters:
            if p not in self._buffers:
                self._buffers[p] = torch.zeros_like(p, requires_grad=False)
        return [self._buffers[p] for p in parameters]


class WeightPrediction(DelayCompensation):
    """`predict`: compute with the weights as they will be when the gradient is applied.

    W + s * (what the next update will be), s the distance, at most MAX_DISTANCE. With SGD and momentum that is
    W - s * lr * v (SpecTrain, Chen et al. 2018, arXiv 1809.02839); with Adam, AdamW and NAdamW
    W - s * lr * (m^ / (sqrt(v^) + eps) + decay * W) (XPipe 1911.04610, PipeOptim 2312.00839); with any other optimizer
    the last update stands for the next ones.
    """

    buffer_key = "update"
    number_key = "learning_rate"
    passing_copies = 1

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], training: TrainingSpec) -> None:
        super().__init__(optimizers, training)
        if any(p.is_complex() for p in self.parameters):
            raise ConfigError("training.delay_compensation: predict cannot be used with complex parameters")

    @torch.no_grad()
    def step(self, learning_rate: float, delay: int = 0) -> None:
        """Make one update, and keep it where no moments tell where the weights go."""
        del delay
        moving = [
            p
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            if not (_has_momentum(optimizer, group) or _has_moments(optimizer))
            for p in group["params"]
            if p.grad is not None
        ]
        updates = self._buffers_of(moving)
        if moving:
            _foreach_copy_(updates, moving)
        self._update(learning_rate)
        if moving:
            _foreach_neg_(updates)
            _foreach_add_(updates, moving)
        self._number = learning_rate

    @torch.no_grad()
    def forward_weights(self, into: Mapping[Tensor, Tensor], distance: int) -> None:
        """Write the predicted weights; before the first update, the present ones."""
        super().forward_weights(into, 0)
        steps = min(distance, MAX_DISTANCE)
        if steps <= 0 or self._number is None:
            return
        scale = -steps * self._number
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                members = [p for p in group["params"] if p in into]
                if _has_moments(optimizer):
                    _add_adam(into, [p for p in members if optimizer.state.get(p)], optimizer, group, scale)
                    continue
                if _has_momentum(optimizer, group):
                    known = {p: optimizer.state[p].get("momentum_buffer") for p in members if p in optimizer.state}
                    _add(into, {p: velocity for p, velocity in known.items() if velocity is not None}, scale)
                else:
                    _add(into, {p: self._buffers[p] for p in members if p in self._buffers}, steps)


class UpdateExtrapolation(DelayCompensation):
    """`extrapolate`: apply u + c * (u - u'), where u is the optimizer's update and u' the one before.

    What changed from the last update to this one will go on changing while the gradient is on its way. In the spirit
    of the correction by error feedback of Zmushko et al. 2026 (arXiv 2606.30634). The first update has none before it.
    """

    buffer_key = "update"
    number_key = "updates"
    passing_copies = 1

    @torch.no_grad()
    def step(self, learning_rate: float, delay: int = 0) -> None:
        """Make one update and, if its gradient was late, the correction."""
        moving = self._moving()
        updates = [p.detach().clone() for p in moving]
        self._update(learning_rate)
        self._number = (self._number or 0) + 1
        if not moving:
            return
        _foreach_neg_(updates)
        _foreach_add_(updates, moving)
        before = [self._buffers.get(p, update) for p, update in zip(moving, updates, strict=True)]
        late = (
            [each for each in zip(moving, before, updates, strict=True) if each[1] is not each[2]] if delay > 0 else []
        )
        if late:
            changes = [old for _, old, _ in late]  # not needed any more: becomes the change, with the sign turned
            _foreach_sub_(changes, [new for _, _, new in late])
            _foreach_add_([p for p, _, _ in late], changes, alpha=-self._training.delay_extrapolation)
        self._buffers.update(zip(moving, updates, strict=True))


class PipeMare(DelayCompensation):
    """`pipemare`: small steps at first, and a backward with the forward's weights as far as they can be told.

    Yang et al. 2021, arXiv 1910.05124. The learning rate of update t is divided by delay^p, p = 1 - min(t / T, 1), T
    being `delay_anneal_steps`; a delay of one therefore changes nothing. A moving average d of the updates,
    d = g * d + (1 - g) * u with g = D^(1 / delay), tells the weights of `distance` updates ago: W - distance * d.
    """

    buffer_key = "drift"
    number_key = "updates"

    @torch.no_grad()
    def step(self, learning_rate: float, delay: int = 0) -> None:
        """Make one update with the learning rate that suits the delay."""
        done = int(self._number or 0)
        power = 1.0 - min(done / self._anneal_steps, 1.0) if self._anneal_steps else 0.0
        moving = self._moving()
        drifts = self._buffers_of(moving)
        decay = self._training.delay_discrepancy ** (1.0 / max(delay, 1))
        if moving:
            _foreach_mul_(drifts, decay)
            _foreach_add_(drifts, moving, alpha=-(1.0 - decay))
        self._update(learning_rate / max(delay, 1) ** power)
        if moving:
            _foreach_add_(drifts, moving, alpha=1.0 - decay)
        self._number = done + 1

    @torch.no_grad()
    def backward_weights(self, into: Mapping[Tensor, Tensor], distance: int) -> None:
        """Write the weights of `distance` updates ago, as far as the drift tells."""
        self.forward_weights(into, 0)
        _add(into, {p: self._buffers[p] for p in into if p in self._buffers}, -distance)

    @property
    def _anneal_steps(self) -> int:
        given = self._training.delay_anneal_steps
        return self._training.max_steps // 4 if given is None else given


CLASSES: dict[str, type[DelayCompensation]] = {
    "none": DelayCompensation,
    "predict": WeightPrediction,
    "extrapolate": UpdateExtrapolation,
    "pipemare": PipeMare,
}


def compensate(optimizers: Sequence[torch.optim.Optimizer], training: TrainingSpec) -> DelayCompensation:
    """Return the remedy that `training` asks for, around these optimizers."""
    return CLASSES[training.delay_compensation](optimizers, training)


def _has_momentum(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and group["momentum"] > 0


def _has_moments(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam))


def _add(into: Mapping[Tensor, Tensor], directions: Mapping[Tensor, Tensor], scale: float) -> None:
    if directions:
        _foreach_add_([into[p] for p in directions], list(directions.values()), alpha=scale)


def _add_adam(
    into: Mapping[Tensor, Tensor],
    members: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    scale: float,
) -> None:
    """Add scale * (m^ / (sqrt(v^) + eps) + decay * W) to what `into` has of W, decay being the decoupled one."""
    if not members:
        return
    states = [optimizer.state[p] for p in members]
    targets = [into[p] for p in members]
    updates = [float(state["step"]) for state in states]
    beta1, beta2 = group["betas"]
    second = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    denominators = _foreach_sqrt([state[second] for state in states])
    _foreach_div_(denominators, [math.sqrt(1.0 - beta2**t) for t in updates])
    _foreach_add_(denominators, group["eps"])
    if isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay"):
        _foreach_mul_(targets, 1.0 + scale * group["weight_decay"])
    first = [state["exp_avg"] for state in states]
    _foreach_addcdiv_(targets, first, denominators, [scale / (1.0 - beta1**t) for t in updates])
