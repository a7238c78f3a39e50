"""What happens to a run (events) and what it wants done (commands): the vocabulary of the run core.

A connection is a number that the shell gave it; the core never sees a socket.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from brigade.coordinator.checkpoint_manifest import Manifest
from brigade.partition.prediction import PLAIN, Surroundings
from brigade.wire.costs import ChainReport, DeviceReport, LinkReport
from brigade.wire.encoding import Message
from brigade.wire.message_parts import FileSpec, StageStatistics
from brigade.wire.plan import NodeContact, Plan

# --- events: something has happened ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The coordinator listens: nodes may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened:
    """Somebody whose key was let in has greeted us; nothing is known of him but the key."""

    connection: int
    socket: Literal["control", "pulse"]
    node_id: str
    public_key: str
    host: str  # the address that the connection comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """The session is over for good; a broken TCP connection that can be resumed is not told."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageArrived:
    """A decoded message came in; any of `brigade.wire.messages`, also ones that have no business here."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The deadline that the core named has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Somebody at this machine wants the run to end in good order."""

    reason: str


@dataclass(frozen=True, slots=True)
class AbortAsked:
    """Somebody at this machine does not want to wait for the good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The planner has found a plan, and the checker found it sound."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused:
    """No plan can train this model on these nodes."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStored:
    """The row of this step is safe on disk."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBroke:
    """Something that the run may not go on without could not be written."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsProgressed:
    """Some of the files of the checkpoint of this many steps have come in, though not all."""

    steps_done: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsStored:
    """All files that this stage announced for this checkpoint are here and have the right checksum."""

    steps_done: int
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSealed:
    """The checkpoint is complete on disk under its final name."""

    steps_done: int
    size: int
    removed: tuple[int, ...] = ()  # older checkpoints that were pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The checkpoint cannot be completed; what was written of it has been removed."""

    steps_done: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExported:
    """The merged model lies in this file."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFailed:
    """The merged model could not be written."""

    reason: str


RunEvent = (
    RunBegun
    | ConnectionOpened
    | ConnectionClosed
    | MessageArrived
    | TimePassed
    | StopAsked
    | AbortAsked
    | PlanMade
    | PlanRefused
    | CommitStored
    | StoreBroke
    | PartsProgressed
    | PartsStored
    | CheckpointSealed
    | CheckpointFailed
    | ModelExported
    | ExportFailed
)

# --- what is written down -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One step that every stage has applied: a row of the ledger."""

    step: int
    attempt: int
    generation: int
    loss: float | None  # None when no target counted
    gradient_norm: float | None  # None when it was not finite
    learning_rate: float
    gradient_scale: float
    skipped: bool
    tokens: int  # target tokens that counted
    samples: tuple[int, ...]
    nodes: int
    duration_s: float
    statistics: tuple[StageStatistics, ...]  # by stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The held-out loss after a committed step."""

    step: int
    attempt: int
    loss: float | None
    target_count: int


# --- commands: do this ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send this message on this connection."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """Close this connection once what was told has gone out."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Let the planner work; answered by PlanMade or PlanRefused."""

    generation: int
    contacts: tuple[NodeContact, ...]
    devices: Mapping[str, DeviceReport]
    chains: Mapping[str, ChainReport]
    links: Mapping[tuple[str, str], LinkReport]
    train_samples: int
    validation_samples: int
    surroundings: Surroundings = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlan:
    """Write the plan down before anybody obeys it."""

    plan: Plan
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreNode:
    """Remember an admitted node."""

    node_id: str
    public_key: str
    name: str
    host: str
    device: DeviceReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRevocation:
    """Remember that this key is no longer admitted."""

    node_id: str
    public_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCommit:
    """Write a step into the ledger; answered by CommitStored or StoreBroke."""

    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEvaluation:
    """Write a held-out loss down."""

    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Keep, log and show something that a person may want to know."""

    kind: str  # one word for machines: joined, lost, planned, ...
    text: str  # one sentence for people
    node: str = ""  # name of the node that it is about
    level: Literal["info", "warning", "error"] = "info"
    cause: str = ""  # of what follows: the run's last note begins with it, and a screen need not show it again


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFiles:
    """From now on serve these files to nodes, and no others."""

    files: tuple[FileSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCheckpoint:
    """Make room for a checkpoint, whose files come from these nodes: from each those of its blocks."""

    steps_done: int
    nodes: Mapping[str, range]  # node id -> its blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectParts:
    """Expect these files from this stage; answered by PartsStored or CheckpointFailed."""

    steps_done: int
    stage: int
    files: tuple[FileSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealCheckpoint:
    """Write the manifest, give the checkpoint its name; answered by CheckpointSealed or CheckpointFailed."""

    manifest: Manifest
    keep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """Remove what has been collected for this checkpoint."""

    steps_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportModel:
    """Merge this checkpoint into one file; answered by ModelExported or ExportFailed."""

    steps_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """End the process with this exit code, once what was told has gone out (at once if `hurry`)."""

    exit_code: int
    state: str
    reason: str
    hurry: bool = False


RunCommand = (
    Tell
    | HangUp
    | MakePlan
    | StorePlan
    | StoreNode
    | StoreRevocation
    | StoreCommit
    | StoreEvaluation
    | Note
    | OfferFiles
    | OpenCheckpoint
    | CollectParts
    | SealCheckpoint
    | DropCheckpoint
    | ExportModel
    | EndRun
)

Status = dict[str, Any]
