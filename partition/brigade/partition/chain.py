"""A model as an ordered list of blocks, known by names and shapes before any weight exists."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from brigade.partition import materialise
from brigade.partition.factory import build_blocks
from brigade.partition.reset_audit import WriteRecorder, audit
from brigade.wire.errors import ConfigError
from brigade.wire.plan import TiedParameter
from brigade.wire.run_spec import ModelSpec


@dataclass(frozen=True)
class Chain(materialise.Paper):
    """The blocks of a model on the meta device, and what all nodes of a run must agree on.

    A block is an `nn.Module` that is called with one positional value: a tensor, or a nesting of plain tuples, lists
    and dicts of tensors, None, bools, ints, floats and strings.
    """

    fingerprint: str

    def materialise(self, first: int, end: int, seed: int, device: torch.device | str) -> list[nn.Module]:
        """Return the real blocks [first, end) on `device`, with initial values that do not depend on the split."""
        return materialise.materialise(self, first, end, seed, device)


class PlainModel(nn.Sequential):
    """The whole chain in one process: the reference for every pipeline, and the model that an export loads into.

    Names in its state are `"<block>.<name>"`; tied parameters are one object.
    """


def build_chain(spec: ModelSpec) -> Chain:
    """Build the model on the meta device; ConfigError when it is no chain of blocks."""
    recorder = WriteRecorder()
    with materialise.seeded(0), torch.device("meta"), recorder:
        blocks = build_blocks(spec)
    for index, block in enumerate(blocks):
        _check_block(index, block)
    materialise.replace_tensors(blocks, lambda each: each if each.is_meta else torch.empty_like(each, device="meta"))
    tied = find_tied(blocks)
    _check_buffers(blocks)
    obstacles = tuple(audit(blocks, recorder, [key for tie in tied for key in tie.followers]))
    return Chain(spec=spec, blocks=blocks, tied=tied, obstacles=obstacles, fingerprint=fingerprint(blocks, tied))


def plain_model(spec: ModelSpec, seed: int) -> PlainModel:
    """Return the whole model on the CPU with the initial weights of a run with this seed."""
    chain = build_chain(spec)
    return PlainModel(*chain.materialise(0, len(chain.blocks), seed, "cpu"))


def find_tied(blocks: Sequence[nn.Module]) -> tuple[TiedParameter, ...]:
    """Return the parameters that several blocks share by identity; the first block that has one owns it.

    A block that uses a parameter under several names counts once, under the first.
    """
    keys: dict[nn.Parameter, list[str]] = {}
    for index, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            keys.setdefault(parameter, []).append(f"{index}.{name}")
    return tuple(TiedParameter(owner=each[0], followers=tuple(each[1:])) for each in keys.values() if len(each) > 1)


def fingerprint(blocks: Sequence[nn.Module], tied: Sequence[TiedParameter]) -> str:
    """Return a hash of the classes, names, shapes and dtypes of the blocks and of what they share."""
    facts = [
        [[type(block).__qualname__, materialise.describe(block)] for block in blocks],
        [[tie.owner, tie.followers] for tie in tied],
    ]
    return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _check_block(index: int, block: nn.Module) -> None:
    where = f"model: block {index} ({type(block).__name__})"
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(f"{where}: {name} is lazy; give the module its input size")
        if tensor.layout != torch.strided:
            raise ConfigError(f"{where}: {name} is {tensor.layout}; only dense tensors are supported")


def _check_buffers(blocks: Sequence[nn.Module]) -> None:
    # Each stage would change its own copy of such a buffer, and both would be saved.
    owners: dict[int, tuple[int, str]] = {}
    for index, block in enumerate(blocks):
        for name, tensor in block.state_dict(keep_vars=True).items():
            if isinstance(tensor, nn.Parameter) or not isinstance(tensor, torch.Tensor):
                continue
            owner, owner_name = owners.setdefault(id(tensor), (index, name))
            if owner != index:
                raise ConfigError(
                    f"model: blocks {owner} and {index} share the buffer {owner_name}; give each block its own, or "
                    "make it persistent=False if it never changes"
                )
