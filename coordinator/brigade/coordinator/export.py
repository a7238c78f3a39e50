"""Merges the blocks of a checkpoint into one `model.safetensors`, without torch, and writes `model.json` beside it.

Tensor names are `<block>.<parameter>`, as in the state dict of the plain model; followers of a tied parameter are
included as copies of their owner's, so that the file loads with `strict=True`. `model.json` says which model it is
(`brigade.partition.exported` reads both).
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, serialize_file

from brigade.coordinator.checkpoint_manifest import Manifest, block_of, folder_name, is_weights
from brigade.coordinator.checkpoints import list_sealed, verify
from brigade.coordinator.store import STORE_NAME, Store
from brigade.wire.errors import CheckpointError, ConfigError
from brigade.wire.run_spec import ExportFacts

MODEL_NAME = "model.safetensors"
CHECKPOINTS_NAME = "checkpoints"

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def export_model(run_dir: Path, *, output: Path | None = None, step: int | None = None) -> Path:
    """Merge the checkpoint after `step` steps (the newest when None) into `output` and return its path.

    The same path ending in `.json` says what it is. Raises ConfigError when there is no such checkpoint,
    CheckpointError when it is damaged or cannot be merged.
    """
    folder = run_dir / CHECKPOINTS_NAME
    sealed = list_sealed(folder)
    if not sealed:
        raise ConfigError(f"{run_dir} has no checkpoint yet")
    if step is not None and step not in sealed:
        raise ConfigError(f"{run_dir} has no checkpoint of {step} steps; it has {', '.join(map(str, sealed))}")
    steps_done = sealed[-1] if step is None else step
    target = run_dir / MODEL_NAME if output is None else output
    with Store(run_dir / STORE_NAME, readonly=True) as store:
        run = store.load_run()
    if run is None:
        raise ConfigError(f"{run_dir / STORE_NAME} holds no run")
    facts = ExportFacts(
        name=run.name, run_id=run.run_id, seed=run.spec.seed, steps_done=steps_done, model=run.spec.model
    )
    merge(folder / folder_name(steps_done), target)
    _write_facts(facts, target.with_suffix(".json"))
    return target


def merge(checkpoint: Path, target: Path) -> None:
    """Write the weights of a verified checkpoint into one file, which appears whole or not at all."""
    manifest = verify(checkpoint)
    tensors = _read_weights(checkpoint, manifest)
    for tied in manifest.tied:
        for follower in tied.followers:
            if tied.owner not in tensors:
                raise CheckpointError(f"{checkpoint} lacks the tied parameter {tied.owner}")
            tensors[follower] = tensors[tied.owner]
    buffers = {name: np.frombuffer(tensor["data"], dtype=np.uint8) for name, tensor in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=tensor["dtype"],
            shape=tensor["shape"],
            data_ptr=buffers[name].ctypes.data,
            data_len=buffers[name].nbytes,
        )
        for name, tensor in tensors.items()
    }
    metadata = {"format": "pt", "run_id": manifest.run_id, "steps": str(manifest.steps_done)}
    partial = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        serialize_file(specs, partial, metadata)  # the buffers live until here
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise CheckpointError(f"{target} cannot be written: {error}") from error


def _write_facts(facts: ExportFacts, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise CheckpointError(f"{target} cannot be written: {error}") from error


def _read_weights(checkpoint: Path, manifest: Manifest) -> dict[str, dict[str, Any]]:
    tensors: dict[str, dict[str, Any]] = {}
    for file in manifest.files:
        if not is_weights(file.name):
            continue
        path = checkpoint / file.name
        try:
            entries = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        for name, tensor in entries:
            if tensor["dtype"] not in _DTYPES:
                raise CheckpointError(f"{path}: {name} has dtype {tensor['dtype']}, which cannot be exported")
            entry = {"dtype": _DTYPES[tensor["dtype"]], "shape": tensor["shape"], "data": bytes(tensor["data"])}
            tensors[f"{block_of(file.name)}.{name}"] = entry
    return tensors
