"""The optimizer of one stage: any class of `torch.optim`, its state keyed by parameter name.

Parameters with two or more dimensions decay, others (biases, gains of norms) do not.
"""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from brigade.wire.errors import CheckpointError, ConfigError
from brigade.wire.run_spec import TrainingSpec

State = dict[str, Any]  # of one parameter: tensors, and numbers or other plain values


class StageOptimizer:
    """Updates named parameters; a stage without trainable parameters has nothing to update."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], training: TrainingSpec) -> None:
        self.name = training.optim
        decaying = {name: p for name, p in parameters.items() if p.dim() >= 2}
        others = {name: p for name, p in parameters.items() if p.dim() < 2}
        self._parameters = {**decaying, **others}  # in the order of the groups
        groups = [
            {"params": list(members.values()), "weight_decay": decay}
            for members, decay in ((decaying, training.weight_decay), (others, 0.0))
            if members
        ]
        self._optimizer = build_optimizer(groups, training) if groups else None

    def step(self, learning_rate: float) -> None:
        """Make one update from the parameters' gradients; a parameter without a gradient is left alone."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def learning_rates(self) -> list[float]:
        """Return what the parameter groups hold now."""
        return [] if self._optimizer is None else [float(group["lr"]) for group in self._optimizer.param_groups]

    def states(self) -> dict[str, State]:
        """Return the live state of every parameter that has one, by name."""
        if self._optimizer is None:
            return {}
        state = self._optimizer.state
        return {name: dict(state[p]) for name, p in self._parameters.items() if state.get(p)}

    def load(self, states: Mapping[str, State]) -> None:
        """Replace all state by `states`; torch moves tensors to their parameter's device.

        Raises CheckpointError when a name is not that of a parameter trained here.
        """
        strangers = sorted(states.keys() - self._parameters.keys())
        if strangers:
            raise CheckpointError(f"the checkpoint has optimizer state of {strangers[0]}, which is not trained here")
        if self._optimizer is None:
            return
        groups = self._optimizer.state_dict()["param_groups"]
        by_position = {i: dict(states[name]) for i, name in enumerate(self._parameters) if name in states}
        self._optimizer.load_state_dict({"state": by_position, "param_groups": groups})


def build_optimizer(groups: list[dict[str, Any]], training: TrainingSpec) -> torch.optim.Optimizer:
    """Return the optimizer that `training` asks for, over these parameter groups.

    Raises ConfigError naming the key of the run file that does not fit.
    """
    cls = optimizer_class(training.optim)
    arguments = optimizer_arguments(cls, training)
    if "weight_decay" not in inspect.signature(cls).parameters:
        groups = [{key: value for key, value in group.items() if key != "weight_decay"} for group in groups]
    try:
        return cls(groups, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"training.optim: torch.optim.{training.optim} refuses this model or its arguments: {error}"
        ) from error


def check_optimizer(training: TrainingSpec) -> None:
    """Raise ConfigError when torch has no such optimizer, or it does not take these arguments; needs no model."""
    optimizer_arguments(optimizer_class(training.optim), training)


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of `torch.optim` with this name; ConfigError with the nearest name when there is none."""
    known = {
        key: value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name not in known:
        near = difflib.get_close_matches(name.lower(), [key.lower() for key in known], n=1)
        hint = "".join(f"; did you mean {key}?" for key in known if key.lower() in near)
        raise ConfigError(f"training.optim: found {name!r}, expected a class of torch.optim{hint}")
    closure = inspect.signature(known[name].step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(f"training.optim: {name} evaluates the model many times in one step; a pipeline cannot")
    return known[name]


def optimizer_arguments(cls: type[torch.optim.Optimizer], training: TrainingSpec) -> dict[str, Any]:
    """Return the keyword arguments for `cls`; ConfigError for a key that it does not take."""
    taken = inspect.signature(cls).parameters
    arguments: dict[str, Any] = {"lr": training.learning_rate}
    if training.weight_decay and "weight_decay" not in taken:
        raise ConfigError(f"training.weight_decay: {cls.__name__} has no weight decay; leave it out")
    betas = (training.adam_beta1, training.adam_beta2)
    if betas != (None, None):
        if "betas" not in taken:
            raise ConfigError(f"training.adam_beta1, training.adam_beta2: {cls.__name__} has no betas; leave them out")
        default = taken["betas"].default
        arguments["betas"] = tuple(d if b is None else b for b, d in zip(betas, default, strict=True))
    if training.adam_epsilon is not None:
        if "eps" not in taken or not isinstance(taken["eps"].default, float):
            raise ConfigError(f"training.adam_epsilon: {cls.__name__} has no single eps; leave it out")
        arguments["eps"] = training.adam_epsilon
    elsewhere = {"params": "", "lr": "training.learning_rate", "weight_decay": "training.weight_decay"}
    for key, value in training.optim_args.items():
        if key not in taken or key in elsewhere:
            usable = sorted(taken.keys() - elsewhere.keys())
            near = difflib.get_close_matches(key, usable, n=1)
            hint = f"; use {elsewhere[key]}" if elsewhere.get(key) else f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"training.optim_args.{key}: {cls.__name__} takes {', '.join(usable)}{hint}")
        if key in arguments:
            raise ConfigError(f"training.optim_args.{key}: given twice, here and as training.adam_*")
        arguments[key] = value
    return arguments
