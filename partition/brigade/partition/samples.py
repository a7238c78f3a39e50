"""Training data from files, numpy only: how many samples there are, what they look like, and any of them by id.

A factory data set needs user code and torch; nodes open it (`brigade.node.datasets`).
"""

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brigade.wire.errors import ConfigError, LocalProtocolError
from brigade.wire.plan import Boundary, LeafSpec
from brigade.wire.run_spec import ArrayData, DataSpec, TextData, TokenData

Split = Literal["train", "validation"]
Array = NDArray[Any]


class Source(ABC):
    """An opened data set. Ids count from 0 within each split; held-out samples are the end of the file."""

    train_count: int
    validation_count: int
    inputs: Boundary  # what enters the first block
    targets: Boundary

    def load(self, split: Split, ids: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return inputs and targets of these samples, as new arrays with one sample a row."""
        count = self.train_count if split == "train" else self.validation_count
        if len(ids) and not (ids.min() >= 0 and ids.max() < count):
            raise LocalProtocolError(f"{split} samples are 0 to {count - 1}, asked for {ids.min()} to {ids.max()}")
        return self._take(ids if split == "train" else ids + self._validation_offset)

    @property
    @abstractmethod
    def _validation_offset(self) -> int: ...

    @abstractmethod
    def _take(self, rows: NDArray[np.int64]) -> tuple[Array, Array]: ...


def open_data(spec: DataSpec, path: Path) -> Source:
    """Open the data set that `spec` describes at `path` (the place of `spec.path` on this machine).

    Raises ConfigError when the file is missing, too short, or of another kind, dtype or shape.
    """
    if isinstance(spec, TextData):
        return WindowSource(_read_text(path), spec, path, "bytes")
    if isinstance(spec, TokenData):
        return WindowSource(_read_tokens(path), spec, path, "tokens")
    if isinstance(spec, ArrayData):
        return ArraySource(*_read_arrays(path), spec, path)
    raise ConfigError("data.kind: a factory data set has no file to open; nodes call the factory")


class WindowSource(Source):
    """A sequence of token ids cut into windows side by side; the target at each position is the next token.

    Training windows never reach into the held-out tail.
    """

    def __init__(self, tokens: Array, spec: TextData | TokenData, path: Path, unit: str) -> None:
        held_out = math.ceil(len(tokens) * spec.validation_fraction)
        self._tokens = tokens
        self._length = length = spec.sequence_length
        self._held_out_start = len(tokens) - held_out
        self.train_count = max(0, (self._held_out_start - 1) // length)
        self.validation_count = max(0, (held_out - 1) // length)
        wanted = f"a window needs {length + 1} (sequence_length + 1)"
        if self.train_count == 0:
            raise ConfigError(f"data.path: {path} has {self._held_out_start} {unit} for training, but {wanted}")
        if held_out and self.validation_count == 0:
            raise ConfigError(
                f"data.validation_fraction: {spec.validation_fraction:g} of {path} is {held_out} {unit}, but {wanted};"
                " raise it, or set 0 to hold nothing out"
            )
        leaf = LeafSpec(dtype="int64", fixed=(0, length), per_sample=(1, 0))
        self.inputs = self.targets = Boundary(structure=0, leaves=(leaf,))

    @property
    def _validation_offset(self) -> int:
        return self.train_count

    def _take(self, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        in_tail = rows >= self.train_count
        starts = np.where(in_tail, self._held_out_start + (rows - self.train_count) * self._length, rows * self._length)
        windows = self._tokens[starts[:, None] + np.arange(self._length + 1)].astype(np.int64)
        return windows[:, :-1].copy(), windows[:, 1:].copy()


class ArraySource(Source):
    """Two arrays with one sample a row: `inputs` and `targets`.

    Floating-point numbers become float32 (what models compute in), integers int64 (what labels and embeddings want).
    """

    def __init__(self, inputs: Array, targets: Array, spec: ArrayData, path: Path) -> None:
        if inputs.shape[:1] != targets.shape[:1] or inputs.ndim == 0:
            raise ConfigError(
                f"data.path: {path} has inputs of shape {inputs.shape} and targets of shape {targets.shape}; "
                "expected the same number of rows"
            )
        self._arrays = (inputs, targets)
        self.validation_count = math.ceil(len(inputs) * spec.validation_fraction)
        self.train_count = len(inputs) - self.validation_count
        if self.train_count == 0:
            raise ConfigError(f"data.path: {path} has {len(inputs)} rows, none of them left for training")
        self.inputs, self.targets = (_row_boundary(array, path) for array in self._arrays)

    @property
    def _validation_offset(self) -> int:
        return self.train_count

    def _take(self, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        inputs, targets = (array[rows].astype(_model_dtype(array)) for array in self._arrays)
        return inputs, targets


def _model_dtype(array: Array) -> np.dtype[Any] | None:
    kinds = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float32}
    dtype = kinds.get(array.dtype.kind)
    return None if dtype is None else np.dtype(dtype)


def _row_boundary(array: Array, path: Path) -> Boundary:
    dtype = _model_dtype(array)
    if dtype is None:
        raise ConfigError(f"data.path: {path} has an array of {array.dtype}; expected numbers or booleans")
    ones = (1,) + (0,) * (array.ndim - 1)
    leaf = LeafSpec(dtype=dtype.name, fixed=(0, *array.shape[1:]), per_sample=ones)
    return Boundary(structure=0, leaves=(leaf,))


def _read_text(path: Path) -> Array:
    if _size(path) == 0:
        raise ConfigError(f"data.path: {path} is empty")
    return np.memmap(path, dtype=np.uint8, mode="r")


def _read_tokens(path: Path) -> Array:
    expected = "expected a .npy file with a flat array of uint8, uint16 or uint32 token ids"
    array = _load(path, expected)
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"data.path: {path} is an archive; {expected}")
    if array.ndim != 1 or array.dtype.kind != "u" or array.dtype.itemsize > 4:
        raise ConfigError(f"data.path: {path} holds {array.dtype} of shape {array.shape}; {expected}")
    return array


def _read_arrays(path: Path) -> tuple[Array, Array]:
    expected = "expected an .npz file with arrays 'inputs' and 'targets'"
    archive = _load(path, expected)
    if isinstance(archive, np.ndarray):
        raise ConfigError(f"data.path: {path} is a single array; {expected}")
    with archive:
        missing = [name for name in ("inputs", "targets") if name not in archive.files]
        if missing:
            found = ", ".join(map(repr, archive.files)) or "nothing"
            raise ConfigError(f"data.path: {path} holds {found}; {expected}")
        try:
            return archive["inputs"], archive["targets"]
        except Exception as error:
            raise ConfigError(f"data.path: {path} cannot be read ({error}); {expected}") from error


def _load(path: Path, expected: str) -> Any:
    _size(path)
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise ConfigError(f"data.path: {path} cannot be read ({error}); {expected}") from error


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            raise ConfigError(f"data.path: {path} is a directory, expected a file")
        return path.stat().st_size
    except FileNotFoundError:
        raise ConfigError(f"data.path: there is no file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise ConfigError(f"data.path: {path} cannot be read: {getattr(error, 'strerror', error)}") from error
