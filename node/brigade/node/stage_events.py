"""What happens at a stage (events) and what it asks for (commands): the vocabulary of `stage_core`."""

from dataclasses import dataclass

from brigade.wire.message_parts import Slot, StageStatistics
from brigade.wire.messages import Evaluated, GradientsReady, StepApplied

# --- events: something has happened ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingBegun:
    """All stages stand; this step is the first."""

    step: int


@dataclass(frozen=True, slots=True)
class ActivationArrived:
    """The previous stage's output for this slot lies decoded in memory."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class GradientArrived:
    """The next stage's gradient for this slot lies decoded in memory."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class TiedGradientArrived:
    """A follower's summed gradient of a tied parameter lies decoded in memory."""

    step: int
    parameter: str


@dataclass(frozen=True, slots=True)
class TiedWeightArrived:
    """The owner's new value of a tied parameter lies decoded in memory."""

    step: int
    parameter: str


@dataclass(frozen=True, slots=True)
class ForwardDone:
    """The forward of this slot has been computed; evaluation slots included."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class BackwardDone:
    """The backward of this slot has been computed."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class GradientsSummed:
    """The step's gradients are complete and their norm is known."""

    step: int
    squared_norm: float
    finite: bool
    loss_sum: float
    target_count: int
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepDecided:
    """The coordinator has decided about this step, of all that are open here the oldest undecided one."""

    step: int
    learning_rate: float
    gradient_scale: float
    skip: bool
    evaluate: bool
    save: bool
    last: bool
    warm_up: int | None = None  # of this stage, where it changes


@dataclass(frozen=True, slots=True)
class UpdateDone:
    """The optimizer has made, or skipped, its step."""

    step: int
    statistics: StageStatistics


@dataclass(frozen=True, slots=True)
class EvaluationSummed:
    """The last stage has added up the held-out loss."""

    step: int
    loss_sum: float
    target_count: int


StageEvent = (
    TrainingBegun
    | ActivationArrived
    | GradientArrived
    | TiedGradientArrived
    | TiedWeightArrived
    | ForwardDone
    | BackwardDone
    | GradientsSummed
    | StepDecided
    | UpdateDone
    | EvaluationSummed
)

# --- commands: do this, and say when it is done ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunForward:
    """Compute the forward of this slot; of an evaluation slot without a graph and without side effects."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class RunBackward:
    """Compute the backward of this slot."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class SendActivation:
    """Encode the output of this slot and send it to the next stage."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class SendGradient:
    """Encode the input gradient of this slot and send it to the previous stage."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class SendTiedGradients:
    """Send the gradients of the tied parameters that this stage follows to their owners."""

    step: int


@dataclass(frozen=True, slots=True)
class AddTiedGradient:
    """Add a follower's gradient to the owned parameter."""

    step: int
    parameter: str


@dataclass(frozen=True, slots=True)
class SumGradients:
    """Compute the squared norm of the step's gradients."""

    step: int


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Let the optimizer make its step, or drop the gradients."""

    step: int
    learning_rate: float
    gradient_scale: float
    skip: bool


@dataclass(frozen=True, slots=True)
class SendTiedWeights:
    """Send the owned tied parameters to their followers."""

    step: int


@dataclass(frozen=True, slots=True)
class SetTiedWeight:
    """Overwrite a followed parameter with its owner's value."""

    step: int
    parameter: str


@dataclass(frozen=True, slots=True)
class SaveState:
    """Snapshot the stage as of after this step, write it and send it, while training goes on."""

    step: int


@dataclass(frozen=True, slots=True)
class SumEvaluation:
    """Add up the held-out loss of this step's evaluation slots."""

    step: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this message to the coordinator."""

    message: GradientsReady | StepApplied | Evaluated


StageCommand = (
    RunForward
    | RunBackward
    | SendActivation
    | SendGradient
    | SendTiedGradients
    | AddTiedGradient
    | SumGradients
    | ApplyUpdate
    | SendTiedWeights
    | SetTiedWeight
    | SaveState
    | SumEvaluation
    | Tell
)
