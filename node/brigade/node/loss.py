"""The loss as a sum over target tokens, so that microbatches of any size add up to the mean of the whole step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from brigade.partition import tree
from brigade.partition.factory import load_function
from brigade.wire.errors import ConfigError

IGNORED_TARGET = -100  # torch's convention for padding


@dataclass(frozen=True, slots=True)
class Loss:
    """What training minimises: `total / count`, both added over all microbatches of a step."""

    name: str
    total: Callable[[Any, Any], Tensor]  # (output, targets) -> summed loss, a scalar
    count: Callable[[Any], int]  # targets -> how many of them count


def build_loss(name: str) -> Loss:
    """Return the loss that the run file names: `cross_entropy`, `mse` or `package.module:function`.

    A function is called as `function(output, targets)`. It returns the mean over the samples of the microbatch, and
    every sample counts the same; or, if it has an attribute `count_targets`, the sum over the
    `function.count_targets(targets)` targets of the microbatch.
    Raises ConfigError when the function cannot be imported.
    """
    if name == "cross_entropy":
        return Loss(name, _cross_entropy, _count_valid)
    if name == "mse":
        return Loss(name, _squared_error, _count_elements)
    function = load_function(name, "training.loss")
    counter = getattr(function, "count_targets", None)
    if counter is not None:
        return Loss(name, lambda output, targets: _scalar(function(output, targets), name), counter)
    return Loss(
        name,
        lambda output, targets: _scalar(function(output, targets), name) * count_samples(targets),
        count_samples,
    )


def count_samples(value: Any) -> int:
    """Return the number of samples of a microbatch: the first size of its first tensor."""
    leaves, _ = tree.flatten(value)
    if not leaves or leaves[0].dim() == 0:
        raise ConfigError("data: a microbatch needs tensors with one sample a row")
    return int(leaves[0].shape[0])


def _cross_entropy(output: Any, targets: Any) -> Tensor:
    logits, labels = _tensor(output, "output", "cross_entropy"), _tensor(targets, "targets", "cross_entropy")
    if logits.shape[:-1] != labels.shape:
        raise ConfigError(
            f"training.loss: cross_entropy of an output of shape {tuple(logits.shape)} needs targets of shape "
            f"{tuple(logits.shape[:-1])}, found {tuple(labels.shape)}"
        )
    _check_labels(labels, logits.shape[-1])
    return F.cross_entropy(
        _full_precision(logits).flatten(0, -2),
        labels.flatten().long(),
        ignore_index=IGNORED_TARGET,
        reduction="sum",
    )


def _check_labels(labels: Tensor, classes: int) -> None:
    """Raise ConfigError for a label that no output stands for; a GPU would only report a lost device."""
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED_TARGET)]
    if wrong.numel():
        raise ConfigError(
            f"training.loss: found the label {int(wrong.flatten()[0])}, but labels must be below the number of classes,"
            f" and the model's output has {classes} (0 to {classes - 1})"
        )


def _squared_error(output: Any, targets: Any) -> Tensor:
    values, wanted = _tensor(output, "output", "mse"), _tensor(targets, "targets", "mse")
    if values.shape != wanted.shape:
        raise ConfigError(
            f"training.loss: mse of an output of shape {tuple(values.shape)} needs targets of the same shape, "
            f"found {tuple(wanted.shape)}"
        )
    values = _full_precision(values)
    return F.mse_loss(values, wanted.to(values.dtype), reduction="sum")


def _count_valid(targets: Any) -> int:
    return int((_tensor(targets, "targets", "cross_entropy") != IGNORED_TARGET).sum())


def _count_elements(targets: Any) -> int:
    return _tensor(targets, "targets", "mse").numel()


def _full_precision(values: Tensor) -> Tensor:
    return values.float() if values.dtype in {torch.float16, torch.bfloat16} else values


def _tensor(value: Any, what: str, loss: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ConfigError(f"training.loss: {loss} needs one tensor of {what}, found a {type(value).__name__}")
    return value


def _scalar(value: Any, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(f"training.loss: {name} returned {found}, expected a scalar tensor")
    return value.reshape(())
