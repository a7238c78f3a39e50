"""The state of a stage as the content of state files, and back: a later stage may hold other blocks."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from brigade.node.optimizer import StageOptimizer
from brigade.node.state_files import (
    FORMAT,
    StateFile,
    block_file,
    older_file,
    optimizer_file,
    optimizer_state_file,
    optimizer_states,
    parse_name,
    read,
)
from brigade.node.tied_weights import split_key
from brigade.wire.errors import CheckpointError


def snapshot_stage(blocks: Mapping[int, nn.Module], optimizer: StageOptimizer) -> dict[str, StateFile]:
    """Return copies of all parameters, persistent buffers and optimizer state, by file name."""
    by_block: dict[int, dict[str, dict[str, Any]]] = {index: {} for index in blocks}
    for key, state in optimizer.states().items():
        index, name = split_key(key)
        by_block[index][name] = {k: _host_copy(v) if isinstance(v, Tensor) else v for k, v in state.items()}
    files = {}
    for index, block in blocks.items():
        files[block_file(index)] = StateFile(
            {name: _host_copy(value) for name, value in _tensors(index, block).items()},
            {"format": FORMAT, "block": index},
        )
        files[optimizer_file(index)] = optimizer_state_file(by_block[index], optimizer.name, index)
    return files


def load_blocks(blocks: Mapping[int, nn.Module], paths: Iterable[Path]) -> None:
    """Overwrite parameters and persistent buffers with those in the files of these blocks.

    Raises CheckpointError when a file is missing or its names, shapes or dtypes are others.
    """
    by_name = {path.name: path for path in paths}
    for index, block in blocks.items():
        path = _path(by_name, block_file(index))
        found, expected = read(path).tensors, _tensors(index, block)
        if found.keys() != expected.keys():
            odd = min(found.keys() ^ expected.keys())
            raise CheckpointError(f"{path} and block {index} differ: only one of them has {odd}")
        for name, value in expected.items():
            if (found[name].dtype, found[name].shape) != (value.dtype, value.shape):
                raise CheckpointError(
                    f"{path}: {name} is {found[name].dtype} {tuple(found[name].shape)}, "
                    f"the model has {value.dtype} {tuple(value.shape)}"
                )
        block.load_state_dict(found, strict=True)


def load_optimizer(optimizer: StageOptimizer, blocks: Sequence[int], paths: Iterable[Path]) -> None:
    """Replace the optimizer's state by that in the files of these blocks; CheckpointError when it is another's."""
    by_name = {path.name: path for path in paths}
    states: dict[str, dict[str, Any]] = {}
    for index in blocks:
        path = _path(by_name, optimizer_file(index))
        for name, state in optimizer_states(read(path), optimizer.name, str(path)).items():
            states[f"{index}.{name}"] = state
    optimizer.load(states)


def snapshot_older(blocks: Iterable[int], older: Sequence[Mapping[str, Tensor]]) -> dict[str, StateFile]:
    """Return copies of older versions of the weights, given from one update ago on, by file name.

    Every block has a file of every age, so that all stages hold equally many.
    """
    files = {}
    for index in blocks:
        for age, values in enumerate(older, start=1):
            own = {split_key(key)[1]: _host_copy(value) for key, value in values.items() if split_key(key)[0] == index}
            files[older_file(index, age)] = StateFile(own, {"format": FORMAT, "block": index, "age": age})
    return files


def older_versions(names: Iterable[str]) -> int:
    """Return how many older versions of the weights there are among files of a stage."""
    return max((int(kind[6:]) for name in names if (kind := parse_name(name)[1]).startswith("older-")), default=0)


def load_older(blocks: Iterable[int], age: int, paths: Iterable[Path]) -> dict[str, Tensor]:
    """Return the weights of `age` updates ago by key; CheckpointError when a file is missing or torn."""
    by_name = {path.name: path for path in paths}
    values: dict[str, Tensor] = {}
    for index in blocks:
        found = read(_path(by_name, older_file(index, age))).tensors
        values |= {f"{index}.{name}": value for name, value in found.items()}
    return values


def _path(by_name: Mapping[str, Path], name: str) -> Path:
    if name not in by_name:
        strangers = [each for each in by_name if not _is_state_file(each)]
        hint = f" (found {strangers[0]})" if strangers else ""
        raise CheckpointError(f"the checkpoint lacks {name}{hint}")
    return by_name[name]


def _is_state_file(name: str) -> bool:
    try:
        parse_name(name)
    except CheckpointError:
        return False
    return True


def _tensors(index: int, block: nn.Module) -> dict[str, Tensor]:
    state = block.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"block {index}: {name} is a {type(value).__name__}, and only tensors can be saved")
    return state


def _host_copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True).contiguous()
