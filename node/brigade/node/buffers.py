"""Buffers of a block (BatchNorm's statistics, step counters): each microbatch of an applied step counts once.

A forward works on copies of the buffers, so the values from before it stay untouched for as long as somebody holds
them: a repeated forward starts from the same values, graphs of earlier microbatches keep what they saved, and a step
that is dropped leaves no trace.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Values = Sequence[Tensor | None]


class BlockBuffers:
    """All buffers of one block, persistent or not."""

    def __init__(self, block: nn.Module) -> None:
        self._tables = [module._buffers for module in block.modules()]  # noqa: SLF001 - torch lists buffers without the module that owns them
        self._places = [(table, name) for table in self._tables for name in table]

    def values(self) -> list[Tensor | None]:
        """Return the buffers themselves, in a fixed order."""
        return [table[name] for table, name in self._places]

    def install(self, values: Values) -> None:
        """Make these tensors the buffers."""
        for (table, name), value in zip(self._places, values, strict=True):
            table[name] = value

    def fork(self) -> list[Tensor | None]:
        """Install copies and return the originals, which no forward will change."""
        originals = self.values()
        copies = {id(value): value.clone() for value in originals if value is not None}  # shared ones stay shared
        self.install([None if value is None else copies[id(value)] for value in originals])
        return originals

    def settle(self, originals: Values) -> None:
        """After a forward on forked buffers, put back the originals of those that it did not change.

        So constant buffers (masks, tables) are not kept once per microbatch. Values are compared because neither
        normalisation layers nor writes through `.data` tell torch's version counter.
        """
        for (table, name), original in zip(self._places, originals, strict=True):
            current = table[name]
            if original is not None and current is not None and _equal(current, original):
                table[name] = original


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
