"""A stage's state on disk: safetensors files by block, tensors by parameter name, nothing that is ever unpickled.

`block-003.safetensors` holds parameters and persistent buffers, `block-003.optimizer.safetensors` the optimizer's
state: tensors as `<parameter>/<key>`, other values as JSON in the header. `block-003.older-1.safetensors` holds the
parameters of one update earlier, where steps use older weights.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from brigade.wire.errors import CheckpointError
from brigade.wire.message_parts import FileSpec

FORMAT = 1
_FACTS = "brigade"  # one header entry, so that equal states give equal files
_NAME = re.compile(r"block-([0-9]{3,})(?:\.(optimizer|older-[1-9][0-9]{0,3}))?\.safetensors")


@dataclass(frozen=True, slots=True)
class StateFile:
    """The content of one file: tensors in host memory and facts that JSON can tell."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)


def block_file(block: int) -> str:
    """Return the name of the file with a block's parameters and persistent buffers."""
    return f"block-{block:03}.safetensors"


def optimizer_file(block: int) -> str:
    """Return the name of the file with the optimizer's state of a block's parameters."""
    return f"block-{block:03}.optimizer.safetensors"


def older_file(block: int, age: int) -> str:
    """Return the name of the file with a block's parameters of `age` updates earlier."""
    return f"block-{block:03}.older-{age}.safetensors"


def parse_name(name: str) -> tuple[int, str]:
    """Return block and kind of a state file: `block`, `optimizer`, `older-1`; CheckpointError for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(
            f"{name} is not a state file: expected block-000.safetensors or block-000.optimizer.safetensors"
        )
    return int(match[1]), match[2] or "block"


def optimizer_state_file(states: Mapping[str, Mapping[str, Any]], optimizer: str, block: int) -> StateFile:
    """Return the file for the states of one block's parameters; tensors must lie in host memory.

    Raises CheckpointError for a value that is neither a tensor nor plain JSON.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for name, state in states.items():
        values[name] = {}
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value
            elif _is_plain(value):
                values[name][key] = value
            else:
                raise CheckpointError(
                    f"block {block}: {optimizer} keeps a {type(value).__name__} as {key!r} of {name}; that has no file"
                )
    return StateFile(tensors, {"format": FORMAT, "block": block, "optimizer": optimizer, "values": values})


def optimizer_states(file: StateFile, optimizer: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the states in a file made by `optimizer_state_file`, by parameter name.

    Raises CheckpointError when it is of another optimizer or its parts do not fit together.
    """
    facts = file.facts
    if facts.get("optimizer") != optimizer:
        raise CheckpointError(f"{name} holds the state of {facts.get('optimizer')!r}, the run uses {optimizer!r}")
    values = facts.get("values")
    if not isinstance(values, dict) or not all(isinstance(value, dict) for value in values.values()):
        raise CheckpointError(f"{name} has no table of values")
    states: dict[str, dict[str, Any]] = {parameter: dict(value) for parameter, value in values.items()}
    for path, tensor in file.tensors.items():
        parameter, _, key = path.rpartition("/")
        if parameter not in states:
            raise CheckpointError(f"{name} has the tensor {path!r} of a parameter that it does not list")
        states[parameter][key] = tensor
    return states


def write(directory: Path, files: Mapping[str, StateFile]) -> tuple[FileSpec, ...]:
    """Write the files durably, each in one move, and return their sizes and checksums.

    Raises CheckpointError when the disk refuses; nothing of the refused file is left behind.
    """
    return tuple(_write_one(directory, name, file) for name, file in files.items())


def _write_one(directory: Path, name: str, file: StateFile) -> FileSpec:
    parse_name(name)
    partial = directory / f"{name}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(file.tensors, partial, metadata={_FACTS: json.dumps(file.facts, sort_keys=True)})
        with partial.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
            size = stream.tell()
        partial.replace(directory / name)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            partial.unlink()
        raise CheckpointError(f"{directory / name} cannot be written: {error}") from error
    return FileSpec(name=name, size=size, sha256=digest)


def read(path: Path) -> StateFile:
    """Return the content of a file; CheckpointError when it is missing, torn or of another format."""
    try:
        with safe_open(path, framework="pt", device="cpu") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
        facts = json.loads(metadata[_FACTS])
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except KeyError:
        raise CheckpointError(f"{path} was not written by this program") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise CheckpointError(f"{path} has another format than this version writes ({FORMAT})")
    return StateFile(tensors, facts)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return value is None or type(value) in {bool, int, float, str}
