"""Real blocks with the run's initial weights, whatever the split.

The initial values of a block are a function of (run seed, block index), so every stage makes its own blocks only, and
all splits start from the same weights. Blocks whose `reset_parameters` cannot repeat their construction (see
`reset_audit`) are taken from the whole model, built once for real on the CPU under the run's seed: as independent of
the split, at the price of the whole model's memory for a moment.

Values are always drawn on the CPU: devices have different generators.
"""

import copy
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from brigade.partition import seeds
from brigade.partition.factory import build_blocks
from brigade.partition.reset_audit import reset
from brigade.wire.errors import ConfigError
from brigade.wire.plan import TiedParameter
from brigade.wire.run_spec import ModelSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Paper:
    """A model without values: its blocks on the meta device, and what was found out about them."""

    spec: ModelSpec
    blocks: list[nn.Module]
    tied: tuple[TiedParameter, ...]
    obstacles: tuple[tuple[str, ...], ...]  # by block: why it cannot be made alone; empty when it can


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run under `seed` in the CPU generators of torch, numpy and Python, and put them back afterwards.

    Model code of other people draws from any of them.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def materialise(paper: Paper, first: int, end: int, seed: int, device: torch.device | str) -> list[nn.Module]:
    """Return the blocks [first, end) on `device` with initial values, in training mode.

    A tied parameter whose owner is among them is one object; elsewhere it is a copy with the owner's initial values.
    """
    if not 0 <= first < end <= len(paper.blocks):
        raise ValueError(f"blocks [{first}, {end}) of a chain of {len(paper.blocks)}")
    source = _Source(paper, seed)
    blocks = {index: source.block(index) for index in range(first, end)}
    for tie in paper.tied:
        owner_index, owner_name = _split(tie.owner)
        here = [key for key in tie.followers if first <= _split(key)[0] < end]
        if not here:
            continue
        owner = blocks[owner_index] if owner_index in blocks else source.block(owner_index)
        parameter = owner.get_parameter(owner_name)
        for key in here:
            index, name = _split(key)
            _tie(blocks[index], name, parameter)
    result = [blocks[index] for index in range(first, end)]
    nn.ModuleList(result).to(device)
    return result


class _Source:
    """Blocks with initial values on the CPU, one at a time; the whole model at most once."""

    def __init__(self, paper: Paper, seed: int) -> None:
        self._paper = paper
        self._seed = seed
        self._whole: list[nn.Module] | None = None

    def block(self, index: int) -> nn.Module:
        if self._paper.obstacles[index]:
            return copy.deepcopy(self._whole_model()[index])
        block = copy.deepcopy(self._paper.blocks[index])
        replace_tensors([block], lambda each: torch.empty_like(each, device="cpu"))
        with seeded(seeds.derive(self._seed, "block", index)):
            reset(block)
        return block

    def _whole_model(self) -> list[nn.Module]:
        if self._whole is None:
            _log_whole_model(self._paper)
            with seeded(seeds.derive(self._seed, "model")), torch.device("cpu"):
                self._whole = build_blocks(self._paper.spec)
            check_alike(self._paper.blocks, self._whole)
        return self._whole


def _log_whole_model(paper: Paper) -> None:
    size = sum(tensor.nbytes for block in paper.blocks for tensor in (*block.parameters(), *block.buffers()))
    for index, reasons in enumerate(paper.obstacles):
        if reasons:
            _log.info("block %d cannot be made alone: %s", index, "; ".join(reasons))
    _log.info("building the whole model on the CPU for its initial weights: %.1f MiB for a moment", size / 2**20)


def check_alike(paper: Sequence[nn.Module], real: Sequence[nn.Module]) -> None:
    """Raise ConfigError when a factory did not build the same model twice."""
    if [describe(block) for block in paper] != [describe(block) for block in real]:
        raise ConfigError("model.factory: two calls with the same arguments returned models of different shapes")


def describe(block: nn.Module) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Return kind, name, dtype and shape of every parameter and buffer."""
    return [
        (kind, name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for kind, tensors in (
            ("parameter", block.named_parameters(remove_duplicate=False)),
            ("buffer", block.named_buffers(remove_duplicate=False)),
        )
        for name, tensor in tensors
    ]


def replace_tensors(blocks: Sequence[nn.Module], make: Callable[[Tensor], Tensor]) -> None:
    """Replace every parameter and buffer by what `make` returns for it, shared ones by one object.

    (`nn.Module.to_empty` makes a new tensor for every name, so shared parameters come apart.)
    """
    made: dict[Tensor, Tensor] = {}
    for module in (module for block in blocks for module in block.modules()):
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter not in made:
                new = make(parameter)
                made[parameter] = new if new is parameter else nn.Parameter(new, requires_grad=parameter.requires_grad)
            setattr(module, name, made[parameter])
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if buffer not in made:
                made[buffer] = make(buffer)
            setattr(module, name, made[buffer])


def _tie(block: nn.Module, name: str, parameter: nn.Parameter) -> None:
    old = block.get_parameter(name)
    for module in block.modules():
        for attribute, value in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if value is old:
                setattr(module, attribute, parameter)


def _split(key: str) -> tuple[int, str]:
    index, _, name = key.partition(".")
    return int(index), name
