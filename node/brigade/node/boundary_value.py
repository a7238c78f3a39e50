"""What leaves a stage is what the plan says: nesting, shapes, dtypes."""

from typing import Any

import torch
from torch import Tensor

from brigade.partition import tree
from brigade.wire.errors import PlanError
from brigade.wire.plan import Boundary


def conform(value: Any, boundary: Boundary, samples: int) -> tuple[Any, list[Tensor]]:
    """Return `value` and its tensors, floating-point ones cast to the planned dtype where devices differ.

    Raises PlanError that says what was found and what was planned.
    """
    leaves, structure = tree.flatten(value)
    if len(leaves) != len(boundary.leaves) or not tree.same_shape(structure, boundary.structure):
        raise PlanError(f"the last block returned the nesting {structure}, planned was {boundary.structure}")
    cast = []
    for index, (leaf, planned) in enumerate(zip(leaves, boundary.leaves, strict=True)):
        if not isinstance(leaf, Tensor):
            raise PlanError(f"the last block returned a {type(leaf).__name__}, which is no tensor")
        dtype: torch.dtype = getattr(torch, planned.dtype)
        if tuple(leaf.shape) != planned.shape(samples):
            raise PlanError(
                f"tensor {index} of what the last block returned has shape {tuple(leaf.shape)}, planned was "
                f"{planned.shape(samples)} for {samples} samples"
            )
        if leaf.dtype != dtype and not (leaf.is_floating_point() and dtype.is_floating_point):
            raise PlanError(f"tensor {index} of what the last block returned is {leaf.dtype}, planned was {dtype}")
        cast.append(leaf.to(dtype))
    return tree.unflatten(structure, cast), cast
