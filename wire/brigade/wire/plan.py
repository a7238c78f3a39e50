"""The nouns of a plan: stages, who holds them, and what crosses each boundary.

The planner (partition) makes them, the coordinator sends them, nodes obey them.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpec:
    """One tensor of a boundary value: dtype name (`float32`) and shape for a microbatch of n samples.

    Dimension i has size `fixed[i] + per_sample[i] * n`.
    """

    dtype: str
    fixed: tuple[int, ...]
    per_sample: tuple[int, ...]

    def shape(self, samples: int) -> tuple[int, ...]:
        """Return the shape for a microbatch of `samples` samples."""
        return tuple(a + b * samples for a, b in zip(self.fixed, self.per_sample, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The value between two blocks: its nesting and its tensors in order.

    `structure` is what `brigade.partition.tree.flatten` returns.
    """

    structure: Any
    leaves: tuple[LeafSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameter:
    """One parameter that several blocks use: the owner updates it, the followers receive it.

    Keys are `"<block index>.<name within the block>"`.
    """

    owner: str
    followers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContact:
    """Where and as whom a node is reached by other nodes."""

    node_id: str
    name: str
    public_key: str
    endpoint: str  # tcp://host:port of its data socket


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Consecutive blocks [first_block, end_block) and the node that trains them."""

    contact: NodeContact
    first_block: int
    end_block: int
    recompute: bool = False
    forward_codec: str = "raw"  # of activations to the next stage
    backward_codec: str = "raw"  # of gradients to the previous stage
    compute_share: float = 0.0  # predicted, of the whole chain's seconds on this plan
    most_in_flight: int = 0  # microbatches that fit into the node's memory; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who trains what, in which order: one generation of one run."""

    run_id: str
    generation: int
    stages: tuple[StagePlan, ...]
    schedule: str  # name that brigade.partition.schedule knows
    microbatches: int  # K of a full batch
    train_samples: int
    validation_samples: int
    boundaries: tuple[Boundary, ...]  # boundaries[k] leaves stage k; one fewer than stages
    tied: tuple[TiedParameter, ...] = ()
    period_s: float = 0.0  # predicted seconds between microbatches
    reason: str = ""
    spares: tuple[NodeContact, ...] = field(default=())
    mode: str = "exact"  # or async, or lowmem: which weights a step uses
    versions: int = 1  # V: step g uses the weights after g - V + 1 updates
    warm_ups: tuple[int, ...] = ()  # of ls-1f1b, by stage: forwards in flight before the first backward
    slack: int = 0  # of ls-1f1b: how many more may be in flight when something is late
