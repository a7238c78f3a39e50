"""The life of a node in a run, from Hello to the end: which message is allowed when, and what it asks for.

A core without I/O. What happens inside a stage is `stage_core`'s; this core only begins it and passes decisions on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from brigade.node.stage_events import StepDecided
from brigade.wire.costs import ChainReport, LinkReport
from brigade.wire.encoding import Message
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.harmless import harmless
from brigade.wire.messages import (
    ApplyStep,
    BeginTraining,
    Leaving,
    LinksMeasured,
    LoadStage,
    MeasureLinks,
    NodeFailed,
    ProfileBlocks,
    Profiled,
    Refused,
    RunEnded,
    StageLoaded,
    StandBy,
    Welcome,
)

STOPPED = 3  # exit code: the run's owner has stopped it before its end


class State(Enum):
    """Where a node is in its life."""

    GREETING = "joining"
    IDLE = "waiting for the coordinator"
    MEASURING = "measuring"
    LOADING = "loading its stage"
    LOADED = "waiting for the other stages"
    TRAINING = "training"
    OVER = "over"


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """The coordinator has sent this message."""

    message: Message


@dataclass(frozen=True, slots=True)
class ChainMeasured:
    """The chain has been timed on this device."""

    chain: ChainReport


@dataclass(frozen=True, slots=True)
class LinksTimed:
    """The links to the other nodes have been timed."""

    links: tuple[LinkReport, ...]


@dataclass(frozen=True, slots=True)
class StageBuilt:
    """The stage stands and is connected to its neighbours."""

    generation: int
    stage: int
    parameter_count: int


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Something that was ordered cannot be done; `stage` and `step` are -1 where there is none."""

    stage: int
    step: int
    what: str
    error: str


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """The connection to the coordinator is gone for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The machine's owner wants the node to go; asked again, at once."""

    reason: str
    exit_code: int = 0


NodeEvent = Told | ChainMeasured | LinksTimed | StageBuilt | WorkFailed | CoordinatorLost | LeaveAsked

# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnterRun:
    """Start heartbeats and the bulk connection."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class MeasureChain:
    """Time the blocks of the chain."""

    order: ProfileBlocks


@dataclass(frozen=True, slots=True)
class TimeLinks:
    """Time the links to other nodes."""

    order: MeasureLinks


@dataclass(frozen=True, slots=True)
class BuildStage:
    """Build, load and connect a stage, in place of any earlier one."""

    order: LoadStage


@dataclass(frozen=True, slots=True)
class ShowSpare:
    """Tell the owner of this machine that the node is a spare, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class BeginStage:
    """Let the stage start with this step."""

    step: int


@dataclass(frozen=True, slots=True)
class DecideStep:
    """Hand the run-wide decision to the stage."""

    decision: StepDecided


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this message to the coordinator."""

    message: Message


@dataclass(frozen=True, slots=True)
class DropStage:
    """Stop the stage and forget its state."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Say Hello again, with growing pauses, until patience is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndDaemon:
    """End the process with this exit code, once what was told has gone out."""

    exit_code: int
    reason: str


NodeCommand = (
    EnterRun
    | MeasureChain
    | TimeLinks
    | BuildStage
    | ShowSpare
    | BeginStage
    | DecideStep
    | Tell
    | DropStage
    | Rejoin
    | EndDaemon
)


class NodeCore:
    """Decide what the daemon does; `handle` is the only mutator."""

    def __init__(self) -> None:
        self.state = State.GREETING
        self.generation = -1
        self.stage = -1
        self.leaving = False
        self._leave_code = 0
        self._failure = ""  # what has failed here, as the coordinator words it

    def handle(self, event: NodeEvent, now: float) -> list[NodeCommand]:  # noqa: ARG002 - one signature for all cores
        """Take one event and return what to do next, in order.

        Raises RemoteProtocolError when the coordinator sends what it may not send in this state.
        """
        if self.state is State.OVER:
            return []
        match event:
            case Told(message):
                handler = MESSAGE_TABLE.get((self.state, type(message)))
                if handler is None:
                    raise RemoteProtocolError(
                        f"the coordinator sent {type(message).__name__} to a node that is {self.state.value}"
                    )
                return handler(self, message)
            case ChainMeasured(chain):
                return self._measured(Tell(Profiled(chain=chain)))
            case LinksTimed(links):
                return self._measured(Tell(LinksMeasured(links=links)))
            case StageBuilt(generation, stage, parameter_count):
                if self.state is not State.LOADING or generation != self.generation:
                    return []  # a newer plan has replaced this stage while it was built
                self.state = State.LOADED
                return [
                    Tell(StageLoaded(generation=generation, stage=stage, parameter_count=parameter_count)),
                ]
            case WorkFailed(stage, step, what, error):
                self.state = State.IDLE
                self._failure = f"{what}: {error}"
                return [Tell(NodeFailed(stage=stage, step=step, what=what, error=error)), DropStage()]
            case CoordinatorLost(reason):
                if self.leaving:
                    return self._end(self._leave_code, f"left; the coordinator had gone: {reason}")
                self.state = State.GREETING
                self.generation = self.stage = -1
                return [DropStage(), Rejoin(reason)]
            case LeaveAsked(reason, exit_code):
                return self._leave(reason, exit_code)

    def next_deadline(self) -> float | None:
        """Return None: deadlines belong to the session and to the coordinator."""
        return None

    def _measured(self, tell: Tell) -> list[NodeCommand]:
        if self.state is not State.MEASURING:
            return []
        self.state = State.IDLE
        return [tell]

    def _leave(self, reason: str, exit_code: int) -> list[NodeCommand]:
        if self.leaving:
            return self._end(exit_code, "left without waiting for the coordinator")
        self.leaving = True
        self._leave_code = exit_code
        if self.state is State.GREETING:
            return self._end(exit_code, "left before joining")
        told: list[NodeCommand] = [Tell(Leaving(reason=harmless(reason)))]
        if self.state is State.TRAINING:
            return told  # the coordinator lets the step end, saves, and then ends the run or replaces us
        return [*told, *self._end(exit_code, f"left: {reason}")]

    def _end(self, exit_code: int, reason: str) -> list[NodeCommand]:
        self.state = State.OVER
        return [DropStage(), EndDaemon(exit_code, reason)]

    # --- messages of the coordinator ------------------------------------------------------------------------------

    def _welcomed(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, Welcome)
        self.state = State.IDLE
        return [EnterRun(message)]

    def _refused(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, Refused)
        return self._end(2, f"the coordinator refused this node: {message.reason}")

    def _profile(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, ProfileBlocks)
        self.state = State.MEASURING
        return [DropStage(), MeasureChain(message)]  # a stage that was built for a node that has gone since

    def _time_links(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, MeasureLinks)
        self.state = State.MEASURING
        return [TimeLinks(message)]

    def _load(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, LoadStage)
        if message.plan.generation <= self.generation:
            raise RemoteProtocolError(f"plan {message.plan.generation} came after plan {self.generation}")
        self.generation = message.plan.generation
        self.stage = message.stage
        self.state = State.LOADING
        return [DropStage(), BuildStage(message)]

    def _stand_by(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, StandBy)
        return [ShowSpare(message.reason)]

    def _begin(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, BeginTraining)
        if message.generation != self.generation:
            return []
        self.state = State.TRAINING
        return [BeginStage(message.step)]

    def _apply(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, ApplyStep)
        if message.generation != self.generation:
            return []
        decision = StepDecided(
            step=message.step,
            learning_rate=message.learning_rate,
            gradient_scale=message.gradient_scale,
            skip=message.skip,
            evaluate=message.evaluate,
            save=message.save,
            last=message.last,
            warm_up=message.warm_ups[self.stage] if self.stage < len(message.warm_ups) else None,
        )
        return [DecideStep(decision)]

    def _ended(self, message: Message) -> list[NodeCommand]:
        assert isinstance(message, RunEnded)
        exit_code = self._leave_code if self.leaving else 0 if message.success else STOPPED if message.stopped else 1
        return self._end(exit_code, self._without_own_failure(message.reason))

    def _without_own_failure(self, reason: str) -> str:
        """Return why the run has ended; what this node has shown itself is not said again."""
        if not self._failure or self._failure not in reason:
            return reason
        rest = reason.partition(self._failure)[2]
        return f"the run has ended because of that{rest}"

    def _ignored(self, message: Message) -> list[NodeCommand]:  # noqa: ARG002 - a handler of the table
        return []


MessageHandler = Callable[[NodeCore, Message], list[NodeCommand]]


def _message_table() -> dict[tuple[State, type], MessageHandler]:
    """Return the handler of every (state, message) that the protocol allows."""
    core = NodeCore
    joined = (State.IDLE, State.MEASURING, State.LOADING, State.LOADED, State.TRAINING)
    table: dict[tuple[State, type], MessageHandler] = {
        (State.GREETING, Welcome): core._welcomed,  # noqa: SLF001 - its own table
        (State.GREETING, Refused): core._refused,  # noqa: SLF001
        (State.GREETING, RunEnded): core._ended,  # noqa: SLF001
        (State.LOADED, BeginTraining): core._begin,  # noqa: SLF001
        (State.TRAINING, ApplyStep): core._apply,  # noqa: SLF001
    }
    for state in (State.IDLE, State.MEASURING):
        table[state, StandBy] = core._stand_by  # noqa: SLF001
    for state in joined:
        table[state, ProfileBlocks] = core._profile  # noqa: SLF001
        table[state, MeasureLinks] = core._time_links  # noqa: SLF001
        table[state, LoadStage] = core._load  # noqa: SLF001
        table[state, RunEnded] = core._ended  # noqa: SLF001
        table[state, Refused] = core._refused  # noqa: SLF001
    for state in (State.IDLE, State.MEASURING, State.LOADING):  # a decision that crossed a failure of ours
        table[state, ApplyStep] = core._ignored  # noqa: SLF001
        table[state, BeginTraining] = core._ignored  # noqa: SLF001
    del table[State.TRAINING, ProfileBlocks], table[State.TRAINING, MeasureLinks]
    return table


MESSAGE_TABLE = _message_table()
