"""Training data as torch tensors: files (`brigade.partition.samples`) and data sets of a user's own function alike."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from brigade.partition import tree
from brigade.partition.factory import load_function
from brigade.partition.samples import Source, Split, open_data
from brigade.wire.errors import ConfigError, LocalProtocolError
from brigade.wire.plan import Boundary, LeafSpec
from brigade.wire.run_spec import DataSpec, FactoryData

_ORDER = "data.factory: {0} must return (train, validation), each with len() and items (inputs, targets)"


def open_source(spec: DataSpec, path: Path | None = None) -> Source:
    """Open a run's data: the file at `path`, or what the spec's function returns.

    Raises ConfigError naming the key of the run file.
    """
    if isinstance(spec, FactoryData):
        return FactorySource(spec)
    if path is None:
        raise LocalProtocolError("data from a file needs the file's place on this machine")
    return open_data(spec, path)


def load_tensors(source: Source, split: Split, ids: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return inputs and targets of these samples as tensors (or nestings of them) in host memory."""
    inputs, targets = source.load(split, ids)
    return _to_tensors(inputs), _to_tensors(targets)


class FactorySource(Source):
    """Two data sets of a user's function; sample `i` of a split is `dataset[i]`, a pair of inputs and targets.

    Numbers, arrays and tensors are stacked along a new first dimension, also inside tuples, lists and dicts.
    """

    def __init__(self, spec: FactoryData) -> None:
        self._name = spec.factory
        function = load_function(spec.factory, "data.factory")
        try:
            self._train, self._validation = function(**spec.arguments)
            self.train_count = len(self._train)
            self.validation_count = 0 if self._validation is None else len(self._validation)
        except Exception as error:
            order = _ORDER.format(spec.factory)
            raise ConfigError(f"{order}; {type(error).__name__}: {error}") from error
        if self.train_count == 0:
            raise ConfigError(f"data.factory: {spec.factory} returned no training samples")
        self.inputs, self.targets = map(_boundary, self.load("train", np.arange(1)))

    def load(self, split: Split, ids: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return inputs and targets of these samples, stacked, as tensors."""
        dataset = self._train if split == "train" else self._validation
        pairs = [dataset[int(i)] for i in ids]
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            raise ConfigError(_ORDER.format(self._name))
        try:
            return _stack([pair[0] for pair in pairs]), _stack([pair[1] for pair in pairs])
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise ConfigError(
                f"data.factory: the {split} samples {ids.tolist()} of {self._name} do not stack: {error}"
            ) from error

    @property
    def _validation_offset(self) -> int:
        raise LocalProtocolError("the data sets of a factory are apart")

    def _take(self, rows: NDArray[np.int64]) -> tuple[Any, Any]:
        raise LocalProtocolError(f"the data sets of a factory are apart: {rows}")


def _stack(samples: list[Any]) -> Any:
    first = samples[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: _stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [_stack(list(column)) for column in zip(*samples, strict=True)]
        return tuple(parts) if isinstance(first, tuple) else parts
    return torch.stack([torch.as_tensor(sample) for sample in samples])


def _to_tensors(value: Any) -> Any:
    leaves, structure = tree.flatten(value)
    return tree.unflatten(structure, [torch.as_tensor(leaf) for leaf in leaves])


def _boundary(value: Any) -> Boundary:
    leaves, structure = tree.flatten(value)
    return Boundary(structure=structure, leaves=tuple(map(_leaf_of_one_sample, leaves)))


def _leaf_of_one_sample(leaf: Tensor) -> LeafSpec:
    shape = tuple(leaf.shape)
    return LeafSpec(
        dtype=str(leaf.dtype).removeprefix("torch."),
        fixed=(0, *shape[1:]),
        per_sample=(1, *(0 for _ in shape[1:])),
    )
