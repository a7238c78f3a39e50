"""The nouns of measurement: what a device, a block and a link can do.

Nodes report them, the planner computes with them.
"""

from dataclasses import dataclass

from brigade.wire.plan import Boundary, TiedParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """The device of a node and the machine around it."""

    kind: str  # cpu, cuda, mps
    name: str
    memory_bytes: int  # free for training
    host: str  # equal for nodes on one machine
    threads: int
    software: str  # versions of brigade, Python and torch


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """What one block costs on one device for one microbatch."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_bytes: int  # kept from forward to backward, for a full microbatch
    output_bytes: int  # of the boundary after this block, uncompressed, for a full microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """A model as one node sees it: costs by block, boundaries between blocks, tied parameters.

    `fingerprint` hashes names, shapes and dtypes; it must be equal on all nodes of a run.
    """

    fingerprint: str
    blocks: tuple[BlockCost, ...]
    boundaries: tuple[Boundary, ...]  # boundaries[i] leaves block i; one fewer than blocks
    tied: tuple[TiedParameter, ...]
    train_samples: int | None = None  # only where the node, not the coordinator, opens the data
    validation_samples: int | None = None
    encode_s: float = 0.0  # of one value of the largest boundary, under the run's codec
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """What the directed link to another node can carry; `error` says why it cannot carry anything."""

    to: str
    rtt_s: float
    bytes_per_s: float
    error: str = ""
