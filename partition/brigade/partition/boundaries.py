"""What crosses between blocks, found by running the chain on the meta device.

All that a pipeline cannot carry is refused here, while planning, with the block named.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from brigade.partition import tree
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Boundary, LeafSpec

_SIZES = (2, 3, 5)  # two decide about the shapes, the third must agree; batch norm needs more than one sample


def trace(blocks: Sequence[nn.Module], inputs: Boundary) -> tuple[Boundary, ...]:
    """Return what leaves each block, the last one included, for microbatches of any size.

    `blocks` are on the meta device, in training mode; `inputs` enters the first. Raises ConfigError that names
    the block which fails, returns what cannot be sent, or whose shapes are no linear function of the microbatch size.
    """
    values = [example(inputs, samples, "meta") for samples in _SIZES]
    found = []
    for index, original in enumerate(blocks):
        block = copy.deepcopy(original)  # a forward may leave traces in its module
        where = describe(index, block)
        values = [_run(block, where, value, samples) for value, samples in zip(values, _SIZES, strict=True)]
        found.append(_boundary(where, [flatten_output(value, where) for value in values]))
    return tuple(found)


def describe(index: int, block: nn.Module) -> str:
    """Return how messages name a block."""
    return f"block {index} ({type(block).__name__})"


def flatten_output(value: Any, where: str) -> tuple[list[Tensor], tree.Structure]:
    """Return the tensors and the structure of what a block returned; ConfigError names `where` if it cannot be sent."""
    try:
        leaves, structure = tree.flatten(value)
    except ConfigError as error:
        raise ConfigError(f"model: {where} returns what cannot be sent: {error}") from error
    if not leaves:
        raise ConfigError(f"model: {where} returns no tensor")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise ConfigError(
                f"model: {where} returns a {type(leaf).__name__}; expected tensors, or plain tuples, lists and dicts "
                "of tensors, None, bool, int, float and str"
            )
        if leaf.layout != torch.strided or leaf.is_quantized:
            raise ConfigError(f"model: {where} returns a {leaf.layout} tensor; only dense tensors can be sent")
    return leaves, structure


def example(boundary: Boundary, samples: int, device: torch.device | str) -> Any:
    """Return a value of this boundary for `samples` samples: normal numbers, zeros for integers, True for bools."""
    leaves = []
    for leaf in boundary.leaves:
        dtype: torch.dtype = getattr(torch, leaf.dtype)
        tensor = torch.empty(leaf.shape(samples), dtype=dtype, device=device)
        if dtype.is_floating_point or dtype.is_complex:
            tensor.normal_()
        else:
            tensor.fill_(dtype is torch.bool)
        leaves.append(tensor)
    return tree.unflatten(boundary.structure, leaves)


def _run(block: nn.Module, where: str, value: Any, samples: int) -> Any:
    try:
        with torch.device("meta"), torch.no_grad():
            return block(value)
    except Exception as error:
        raise ConfigError(
            f"model: {where} cannot take what comes before it, for {samples} samples: {type(error).__name__}: {error}"
        ) from error


def _boundary(where: str, outputs: Sequence[tuple[list[Tensor], tree.Structure]]) -> Boundary:
    (leaves, structure), *others = outputs
    for other_leaves, other_structure in others:
        if not tree.same_shape(structure, other_structure):
            raise ConfigError(f"model: {where} returns another nesting for another number of samples")
        for leaf, other in zip(leaves, other_leaves, strict=True):
            if leaf.dtype != other.dtype or leaf.dim() != other.dim():
                raise ConfigError(f"model: {where} returns another kind of tensor for another number of samples")
    specs = tuple(_leaf_spec(where, [tensors[position] for tensors, _ in outputs]) for position in range(len(leaves)))
    return Boundary(structure=structure, leaves=specs)


def _leaf_spec(where: str, tensors: Sequence[Tensor]) -> LeafSpec:
    small, middle, _ = (tuple(tensor.shape) for tensor in tensors)
    step = _SIZES[1] - _SIZES[0]
    per_sample = tuple((b - a) // step for a, b in zip(small, middle, strict=True))
    fixed = tuple(a - slope * _SIZES[0] for a, slope in zip(small, per_sample, strict=True))
    spec = LeafSpec(dtype=str(tensors[0].dtype).removeprefix("torch."), fixed=fixed, per_sample=per_sample)
    for samples, tensor in zip(_SIZES, tensors, strict=True):
        if spec.shape(samples) != tuple(tensor.shape):
            raise ConfigError(
                f"model: {where} returns shapes that are no linear function of the number of samples: "
                + ", ".join(f"{tuple(each.shape)} for {count}" for count, each in zip(_SIZES, tensors, strict=True))
            )
    return spec


def with_dtypes(boundary: Boundary, dtypes: Sequence[torch.dtype]) -> Boundary:
    """Return the boundary with other dtypes (autocast decides about them on the real device only)."""
    leaves = tuple(
        dataclasses.replace(leaf, dtype=str(dtype).removeprefix("torch."))
        for leaf, dtype in zip(boundary.leaves, dtypes, strict=True)
    )
    return dataclasses.replace(boundary, leaves=leaves)


def payload_bytes(boundary: Boundary, samples: int) -> int:
    """Return the uncompressed bytes of this boundary for `samples` samples."""
    total = 0
    for leaf in boundary.leaves:
        count = 1
        for size in leaf.shape(samples):
            count *= size
        dtype: torch.dtype = getattr(torch, leaf.dtype)
        total += count * dtype.itemsize
    return total
