"""Every message of the protocol, as frozen dataclasses.

PROTOCOL.md explains them; `tests/repo/test_protocol_table.py` holds the two together. A message travels as one
MessagePack header plus raw frames (`brigade.wire.encoding`). Unknown fields are ignored, so fields may be added.
"""

from dataclasses import dataclass, field
from typing import Any

from brigade.wire.costs import ChainReport, DeviceReport, LinkReport
from brigade.wire.message_parts import FileSpec, Slot, StageStatistics, TensorHeader, ValueHeader
from brigade.wire.plan import Boundary, NodeContact, Plan
from brigade.wire.run_spec import RunSpec

# --- joining (control socket) -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Node to coordinator: I want to take part."""

    run_id: str  # of the invite
    name: str
    incarnation: str  # new for every process
    proof: str  # HMAC of both public keys under the invite's secret (`brigade.wire.invite.prove`)
    device: DeviceReport
    data_port: int
    advertise: str = ""  # host that other nodes shall use; empty: the address that the coordinator sees
    memory_limit_bytes: int = 0  # 0: what the device has


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Coordinator to node: you are in; here is the run and where else to connect."""

    run_id: str
    spec: RunSpec
    name: str
    pulse_port: int
    bulk_port: int
    pulse_interval_s: float
    silence_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Coordinator to node: you are not in.

    Codes: `bad_proof`, `revoked`, `unknown_run`, `identity_in_use`, `run_over`, `unreachable`, `model_mismatch`.
    """

    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Node to coordinator: I go in good order."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailed:
    """Node to coordinator: I cannot go on; `stage` is -1 outside a stage, `step` -1 outside a step."""

    stage: int
    step: int
    what: str  # "forward of microbatch 3"
    error: str


# --- measuring (control socket) -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileBlocks:
    """Coordinator to node: admit these nodes, then build the chain on paper and, if `timed`, time its blocks."""

    roster: tuple[NodeContact, ...]
    colocated: int  # nodes of this run on this machine
    inputs: Boundary | None  # what enters the first block; None: the node opens the data itself
    timed: bool = True  # False: what blocks cost is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Node to coordinator: what the chain costs here."""

    chain: ChainReport


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLinks:
    """Coordinator to node: connect to these nodes and send so many bytes to each."""

    to: tuple[NodeContact, ...]
    payload_bytes: int
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksMeasured:
    """Node to coordinator: what the links carry."""

    links: tuple[LinkReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """Node to node (data socket): bytes to time; one frame."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbeEcho:
    """Node to node (data socket): your probe has arrived whole."""

    number: int


# --- loading and training (control socket) ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStage:
    """Coordinator to node: build your stage of this plan, from the seed or from the files of a checkpoint."""

    plan: Plan
    stage: int
    first_step: int  # the step that will be trained first; 0 unless resumed
    checkpoint: tuple[FileSpec, ...] = ()  # of the blocks of this stage; empty: initial weights
    data: FileSpec | None = None  # for the first stage only


@dataclass(frozen=True, slots=True, kw_only=True)
class StandBy:
    """Coordinator to node: you hold no stage of this plan; stay, you may be needed when the run is planned anew."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoaded:
    """Node to coordinator: my stage stands, connected to its neighbours."""

    generation: int
    stage: int
    parameter_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTraining:
    """Coordinator to node: all stages stand; start with this step."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsReady:
    """Node to coordinator: all microbatches of this step are through my stage.

    The last stage adds the loss and which samples contributed.
    """

    generation: int
    step: int
    stage: int
    squared_norm: float  # of this stage's gradients, tied ones at their owner only
    finite: bool
    loss_sum: float = 0.0
    target_count: int = 0
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """Coordinator to node: the run-wide decision about this step."""

    generation: int
    step: int
    learning_rate: float
    gradient_scale: float  # of clipping by the global norm
    skip: bool  # the norm is not finite: drop the gradients everywhere
    evaluate: bool  # with the weights after the update
    save: bool  # send the stage's state as of after this step
    last: bool  # do not start another step
    warm_ups: tuple[int, ...] = ()  # of ls-1f1b, by stage, from now on; empty: as before


@dataclass(frozen=True, slots=True, kw_only=True)
class StepApplied:
    """Node to coordinator: my stage has made (or skipped) the update of this step."""

    generation: int
    step: int
    stage: int
    statistics: StageStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Last stage to coordinator: loss over the held-out samples after this step."""

    generation: int
    step: int
    loss_sum: float
    target_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSaved:
    """Node to coordinator: these files hold my stage after this step, and they are on their way (bulk socket)."""

    generation: int
    step: int
    stage: int
    files: tuple[FileSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Coordinator to node: the run is over."""

    success: bool
    reason: str
    stopped: bool = False  # by its owner, before the end


# --- bulk socket --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWanted:
    """Node to coordinator: send this file from this offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Either way: one piece of a file; one frame."""

    name: str
    offset: int
    size: int  # of the whole file


# --- data sockets, node to node -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Stage k to stage k+1: the boundary value of one microbatch, with its targets and its samples."""

    run_id: str
    generation: int
    slot: Slot
    attempt: int
    value: ValueHeader
    targets: ValueHeader
    samples: tuple[int, ...]
    step_target_count: int  # valid targets of the whole step: the loss is a mean over these


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """Stage k to stage k-1: the gradient of the boundary value of one microbatch; absent tensors are zero."""

    run_id: str
    generation: int
    slot: Slot
    attempt: int
    value: ValueHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedGradient:
    """Follower to owner: the gradient of a tied parameter, summed over the step."""

    run_id: str
    generation: int
    step: int
    parameter: str  # the follower's key
    tensor: TensorHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeight:
    """Owner to follower: the tied parameter after the step's update."""

    run_id: str
    generation: int
    step: int
    parameter: str  # the follower's key
    tensor: TensorHeader


# --- pulse socket -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Node to coordinator: I live, and this is how far I am. Never waits for compute."""

    number: int
    incarnation: str
    step: int = -1
    forwards: int = 0
    backwards: int = 0
    doing: str = ""  # "waiting for gradient of microbatch 2 from stage 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseEcho:
    """Coordinator to node: heard."""

    number: int


# --- the owner's commands (control socket, with the coordinator's own key) ----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWanted:
    """Command line to coordinator: tell me how the run is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTold:
    """Coordinator to command line: the state of the run, as the JSON that `brigade status --json` prints."""

    status: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWanted:
    """Command line to coordinator: save after the current step and end."""

    reason: str = "stopped by its owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeWanted:
    """Command line to coordinator: this node (id or name) is no longer admitted."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Coordinator to command line: your command was carried out, or not, and why."""

    ok: bool
    reason: str = ""


MESSAGES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Hello, Welcome, Refused, Leaving, NodeFailed,
        ProfileBlocks, Profiled, MeasureLinks, LinksMeasured, LinkProbe, LinkProbeEcho,
        LoadStage, StandBy, StageLoaded, BeginTraining, GradientsReady, ApplyStep, StepApplied, Evaluated, StateSaved,
        RunEnded,
        FileWanted, FilePart,
        Activation, Gradient, TiedGradient, TiedWeight,
        Pulse, PulseEcho,
        StatusWanted, StatusTold, StopWanted, RevokeWanted, Done,
    )
}  # fmt: skip
