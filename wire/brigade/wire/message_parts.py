"""The parts that several messages are made of: slots, tensors, values, statistics, files."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What flows through the pipeline: microbatch `index` of `step`, training or evaluation."""

    step: int
    index: int
    evaluation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of a message: its kind, its codec, and how many of the message's frames belong to it."""

    dtype: str
    shape: tuple[int, ...]
    codec: str
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueHeader:
    """A boundary value: nesting (see `brigade.partition.tree`) and its tensors in order."""

    structure: Any
    tensors: tuple[TensorHeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics:
    """What one stage did in one step: seconds and payload bytes."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0  # the compute thread had nothing to do
    gated_s: float = 0.0  # of these: between its last microbatch and the update, for the other stages
    wall_s: float = 0.0
    forward_bytes: int = 0  # encoded activations to the next stage
    forward_raw_bytes: int = 0  # the same in fp32
    backward_bytes: int = 0  # encoded gradients to the previous stage
    backward_raw_bytes: int = 0
    tokens: int = 0  # target tokens of the step that crossed


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """A file that travels on the bulk socket."""

    name: str  # relative, with forward slashes
    size: int
    sha256: str
