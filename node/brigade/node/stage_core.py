"""The ledger of one stage: where each microbatch is, exactly once, and what the stage does next.

A core without I/O: events in, commands out (`stage_events`). It follows the plan's schedule within a step, then walks
the step boundary: tied gradients, norm, the run-wide decision, update, tied weights, snapshot, evaluation, next step.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import Enum

from brigade.node.stage_events import (
    ActivationArrived,
    AddTiedGradient,
    ApplyUpdate,
    BackwardDone,
    EvaluationSummed,
    ForwardDone,
    GradientArrived,
    GradientsSummed,
    RunBackward,
    RunForward,
    SaveState,
    SendActivation,
    SendGradient,
    SendTiedGradients,
    SendTiedWeights,
    SetTiedWeight,
    StageCommand,
    StageEvent,
    StepDecided,
    SumEvaluation,
    SumGradients,
    Tell,
    TiedGradientArrived,
    TiedWeightArrived,
    TrainingBegun,
    UpdateDone,
)
from brigade.node.tied import TiedRoles, tied_roles
from brigade.partition.batching import Batching
from brigade.partition.schedule import build
from brigade.partition.sequencer import Sequencer
from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.message_parts import Slot, StageStatistics
from brigade.wire.messages import Evaluated, GradientsReady, StepApplied
from brigade.wire.plan import Plan

# One is computed, one waits behind it: the device goes on while the news of what it has done is on its way.
ORDERED_AHEAD = 2


class Phase(Enum):
    """Where a stage is within a step."""

    WAITING = "waiting for the other stages to load"
    COMPUTING = "computing"
    SUMMING = "summing gradients"
    DECIDING = "waiting for the decision about the step"
    UPDATING = "updating weights"
    TYING = "waiting for tied weights"
    EVALUATING = "evaluating"
    RESTING = "done"


Handler = Callable[["StageCore", StageEvent], list[StageCommand]]


class StageCore:
    """Decide what one stage of one plan does next; `handle` is the only mutator."""

    def __init__(self, plan: Plan, stage: int, batching: Batching, evaluation_count: int, first_step: int) -> None:
        self.plan = plan
        self.stage = stage
        self.phase = Phase.WAITING
        self.step = first_step
        self.forwards = 0
        self.backwards = 0
        self.dropped: Counter[str] = Counter()
        self._batching = batching
        self._evaluation_count = evaluation_count
        self._first = stage == 0
        self._last = stage == len(plan.stages) - 1
        self._tied: TiedRoles = tied_roles(plan, stage)
        self._sequencer: Sequencer | None = None
        self._activations: set[Slot] = set()
        self._gradients: set[Slot] = set()
        self._tied_gradients: set[tuple[int, str]] = set()
        self._tied_weights: set[tuple[int, str]] = set()
        self._ordered: deque[RunForward | RunBackward] = deque()  # not done yet; the first one is being computed
        self._decision: StepDecided | None = None
        self._statistics = StageStatistics()
        self._evaluation_next = 0

    def handle(self, event: StageEvent, now: float) -> list[StageCommand]:  # noqa: ARG002 - one signature for all cores
        """Take one event and return what to do next, in order.

        Raises RemoteProtocolError when a neighbour is ahead of what the protocol allows, LocalProtocolError when
        an event cannot happen in this phase.
        """
        return TRANSITIONS[self.phase, type(event)](self, event)

    def next_deadline(self) -> float | None:
        """Return None: a stage waits for events only; silence is judged by the session and the coordinator."""
        return None

    def doing(self) -> str:
        """Say in a few words what the stage does or waits for."""
        if self._ordered:
            kind = "forward" if isinstance(self._ordered[0], RunForward) else "backward"
            return f"{kind} of microbatch {self._ordered[0].slot.index} of step {self.step}"
        if self.phase is Phase.COMPUTING and self._sequencer is not None and (action := self._sequencer.upcoming):
            what, side = ("activation", self.stage - 1) if action.kind == "F" else ("gradient", self.stage + 1)
            return f"waiting for the {what} of microbatch {action.index} of step {self.step} from stage {side}"
        return f"{self.phase.value} (step {self.step})"

    # --- arrivals -------------------------------------------------------------------------------------------------

    def _arrived(self, event: StageEvent) -> list[StageCommand]:
        match event:
            case ActivationArrived(slot):
                if self._admit(slot, self._activations, "activation"):
                    self._activations.add(slot)
            case GradientArrived(slot):
                if self._admit(slot, self._gradients, "gradient"):
                    self._gradients.add(slot)
            case TiedGradientArrived(step, parameter):
                self._admit_tied(step, parameter, self._tied_gradients, self._tied.owned)
            case TiedWeightArrived(step, parameter):
                self._admit_tied(step, parameter, self._tied_weights, self._tied.followed)
            case _:
                return self._impossible(event)
        return self._advance()

    def _admit(self, slot: Slot, arrived: set[Slot], what: str) -> bool:
        if slot.evaluation and what == "gradient":
            raise RemoteProtocolError(f"a gradient arrived for evaluation microbatch {slot.index}")
        done = self.phase is Phase.RESTING or slot.step < self.step or (slot in arrived)
        if done or (slot.step == self.step and self._is_past(slot, what)):
            self.dropped[f"repeated or stale {what}"] += 1
            return False
        count = self._evaluation_count if slot.evaluation else self._batching.microbatch_count(slot.step)
        if (
            slot.step > self.step + 1
            or not 0 <= slot.index < count
            or (self._first if what == "activation" else self._last)
        ):
            raise RemoteProtocolError(
                f"stage {self.stage} in step {self.step} got an unexpected {what} of microbatch {slot.index} "
                f"of step {slot.step}"
            )
        return True

    def _is_past(self, slot: Slot, what: str) -> bool:
        if slot.evaluation:
            return self.phase is Phase.EVALUATING and slot.index < self._evaluation_next
        if self._sequencer is None:
            return self.phase is not Phase.WAITING
        return self._sequencer.is_done("F" if what == "activation" else "B", slot.index)

    def _admit_tied(self, step: int, parameter: str, arrived: set[tuple[int, str]], allowed: Mapping[str, int]) -> None:
        if parameter not in allowed:
            raise RemoteProtocolError(f"stage {self.stage} has no part in the tied parameter {parameter!r}")
        if step < self.step or (step, parameter) in arrived or self.phase is Phase.RESTING:
            self.dropped["repeated or stale tied parameter"] += 1
            return
        if step > self.step + 1:
            raise RemoteProtocolError(f"tied parameter {parameter!r} of step {step} arrived in step {self.step}")
        arrived.add((step, parameter))

    def _dropped(self, event: StageEvent) -> list[StageCommand]:
        self.dropped[type(event).__name__] += 1
        return []

    def _impossible(self, event: StageEvent) -> list[StageCommand]:
        raise LocalProtocolError(f"stage {self.stage} cannot take {event} while {self.phase.value}")

    # --- within a step --------------------------------------------------------------------------------------------

    def _begin(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, TrainingBegun)
        return self._enter_step(event.step)

    def _enter_step(self, step: int) -> list[StageCommand]:
        self.step = step
        self.phase = Phase.COMPUTING
        self._decision = None
        orders = build(self.plan.schedule, len(self.plan.stages), self._batching.microbatch_count(step))
        self._sequencer = Sequencer(orders[self.stage], first=self._first, last=self._last)
        self._forget_before(step)
        return self._advance()

    def _forget_before(self, step: int) -> None:
        self._activations = {slot for slot in self._activations if slot.step >= step}
        self._gradients = {slot for slot in self._gradients if slot.step >= step}
        self._tied_gradients = {key for key in self._tied_gradients if key[0] >= step}
        self._tied_weights = {key for key in self._tied_weights if key[0] >= step}

    def _computed(self, event: StageEvent) -> list[StageCommand]:
        if not isinstance(event, ForwardDone | BackwardDone) or not self._ordered:
            return self._impossible(event)
        running = self._ordered[0]
        if event.slot != running.slot or isinstance(event, ForwardDone) != isinstance(running, RunForward):
            return self._impossible(event)
        self._ordered.popleft()
        commands: list[StageCommand] = []
        if isinstance(event, ForwardDone):
            self.forwards += 1
            if not self._last:
                commands.append(SendActivation(event.slot))
        else:
            self.backwards += 1
            if not self._first:
                commands.append(SendGradient(event.slot))
        return self._advance() + commands  # the device first: it waits, the link is asynchronous anyway

    def _summed(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, GradientsSummed)
        self.phase = Phase.DECIDING
        return [
            Tell(
                GradientsReady(
                    generation=self.plan.generation,
                    step=self.step,
                    stage=self.stage,
                    squared_norm=event.squared_norm,
                    finite=event.finite,
                    loss_sum=event.loss_sum,
                    target_count=event.target_count,
                    samples=event.samples,
                )
            )
        ]

    def _decided(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, StepDecided)
        if event.step != self.step:
            raise RemoteProtocolError(f"a decision about step {event.step} arrived in step {self.step}")
        self._decision = event
        self.phase = Phase.UPDATING
        return [ApplyUpdate(event.step, event.learning_rate, event.gradient_scale, event.skip)]

    def _updated(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, UpdateDone)
        self._statistics = event.statistics
        self.phase = Phase.TYING
        commands: list[StageCommand] = []
        if self._tied.owned and not self._skipped:
            commands.append(SendTiedWeights(self.step))
        return commands + self._advance()

    @property
    def _skipped(self) -> bool:
        return self._decision is not None and self._decision.skip

    def _evaluated(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, EvaluationSummed)
        told = Tell(
            Evaluated(
                generation=self.plan.generation,
                step=self.step,
                loss_sum=event.loss_sum,
                target_count=event.target_count,
            )
        )
        return [told, *self._leave_step()]

    # --- moving on ------------------------------------------------------------------------------------------------

    def _advance(self) -> list[StageCommand]:
        match self.phase:
            case Phase.COMPUTING:
                return self._advance_computing()
            case Phase.SUMMING:
                return self._advance_summing()
            case Phase.TYING:
                return self._advance_tying()
            case Phase.EVALUATING:
                return self._advance_evaluating()
            case _:
                return []

    def _advance_computing(self) -> list[StageCommand]:
        assert self._sequencer is not None
        activations = {slot.index for slot in self._activations if slot.step == self.step and not slot.evaluation}
        gradients = {slot.index for slot in self._gradients if slot.step == self.step}
        commands: list[StageCommand] = []
        while len(self._ordered) < ORDERED_AHEAD and (action := self._sequencer.next(activations, gradients)):
            slot = Slot(step=self.step, index=action.index)
            self._ordered.append(RunForward(slot) if action.kind == "F" else RunBackward(slot))
            commands.append(self._ordered[-1])
        if self._sequencer.upcoming is None:
            # what follows is computed behind the last microbatch; nobody has to wait until that is told to be done
            self.phase = Phase.SUMMING
            if self._tied.followed:
                commands.append(SendTiedGradients(self.step))
            commands += self._advance_summing()
        return commands

    def _advance_summing(self) -> list[StageCommand]:
        wanted = {(self.step, parameter) for parameter in self._tied.owned}
        if self._sequencer is None or not wanted <= self._tied_gradients:
            return []
        self._sequencer = None  # the sum is ordered once
        # in the order of the plan, so that the sum does not depend on who answered first
        added: list[StageCommand] = [AddTiedGradient(self.step, parameter) for parameter in self._tied.owned]
        return [*added, SumGradients(self.step)]

    def _advance_tying(self) -> list[StageCommand]:
        wanted = set() if self._skipped else {(self.step, parameter) for parameter in self._tied.followed}
        if not wanted <= self._tied_weights:
            return []
        assert self._decision is not None
        commands: list[StageCommand] = [SetTiedWeight(self.step, parameter) for _, parameter in sorted(wanted)]
        applied = StepApplied(
            generation=self.plan.generation, step=self.step, stage=self.stage, statistics=self._statistics
        )
        commands.append(Tell(applied))
        if self._decision.save:
            commands.append(SaveState(self.step))
        if self._decision.evaluate and self._evaluation_count > 0:
            self.phase = Phase.EVALUATING
            self._evaluation_next = 0
            return commands + self._advance_evaluating()
        return commands + self._leave_step()

    def _advance_evaluating(self) -> list[StageCommand]:
        if self._ordered or self._evaluation_next > self._evaluation_count:
            return []
        if self._evaluation_next == self._evaluation_count:
            if not self._last:
                return self._leave_step()
            self._evaluation_next += 1  # the sum is ordered once
            return [SumEvaluation(self.step)]
        slot = Slot(step=self.step, index=self._evaluation_next, evaluation=True)
        if not self._first and slot not in self._activations:
            return []
        self._evaluation_next += 1
        self._ordered.append(RunForward(slot))
        return [self._ordered[-1]]

    def _leave_step(self) -> list[StageCommand]:
        assert self._decision is not None
        if self._decision.last:
            self.phase = Phase.RESTING
            return []
        return self._enter_step(self.step + 1)


def _transitions() -> dict[tuple[Phase, type], Handler]:
    """Return the handler of every (phase, event); what is not named here cannot happen."""
    arrivals = (ActivationArrived, GradientArrived, TiedGradientArrived, TiedWeightArrived)
    others = (
        TrainingBegun,
        ForwardDone,
        BackwardDone,
        GradientsSummed,
        StepDecided,
        UpdateDone,
        EvaluationSummed,
    )
    table: dict[tuple[Phase, type], Handler] = {}
    for phase in Phase:
        table |= dict.fromkeys(((phase, event) for event in arrivals), StageCore._arrived)  # noqa: SLF001 - its own table
        table |= dict.fromkeys(((phase, event) for event in others), StageCore._impossible)  # noqa: SLF001
    table |= {
        (Phase.WAITING, TrainingBegun): StageCore._begin,  # noqa: SLF001
        (Phase.COMPUTING, ForwardDone): StageCore._computed,  # noqa: SLF001
        (Phase.COMPUTING, BackwardDone): StageCore._computed,  # noqa: SLF001
        (Phase.SUMMING, ForwardDone): StageCore._computed,  # noqa: SLF001
        (Phase.SUMMING, BackwardDone): StageCore._computed,  # noqa: SLF001
        (Phase.EVALUATING, ForwardDone): StageCore._computed,  # noqa: SLF001
        (Phase.SUMMING, GradientsSummed): StageCore._summed,  # noqa: SLF001
        (Phase.DECIDING, StepDecided): StageCore._decided,  # noqa: SLF001
        (Phase.UPDATING, UpdateDone): StageCore._updated,  # noqa: SLF001
        (Phase.EVALUATING, EvaluationSummed): StageCore._evaluated,  # noqa: SLF001
        # a decision that is repeated after a reconnect
        (Phase.RESTING, StepDecided): StageCore._dropped,  # noqa: SLF001
    }
    return table


TRANSITIONS = _transitions()
