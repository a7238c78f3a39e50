"""The ledger of one stage: where each microbatch is, exactly once, and what the stage does next.

A core without I/O: events in, commands out (`stage_events`). A walk says which microbatch comes next; each step then
goes its own way: tied gradients, norm, the run-wide decision, update, tied weights, snapshot, evaluation. Where steps
use older weights, several are on their way at once.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum

from brigade.node.open_steps import Evaluations, LateSwitch, OpenStep, StepPhase
from brigade.node.stage_arrivals import StageArrivals
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
from brigade.node.stage_walk import Arrived, make_walk
from brigade.node.tied import TiedRoles, tied_roles
from brigade.partition.batching import Batching
from brigade.partition.policy import AlternationPolicy
from brigade.partition.versions import Numbering, VersionRule
from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.messages import Evaluated, GradientsReady, StepApplied
from brigade.wire.plan import Plan

ORDERED_AHEAD = 2  # one is computed, one waits behind it while the news of what was done is on its way


class Phase(Enum):
    """Where a stage is."""

    WAITING = "waiting for the other stages to load"
    TRAINING = "training"
    RESTING = "done"


Handler = Callable[["StageCore", StageEvent], list[StageCommand]]


class StageCore:
    """Decide what one stage of one plan does next; `handle` is the only mutator.

    `oldest_version` is that of the weights that the stage was loaded with, `first_step` when there are no older ones;
    no step from `end_step` on is ever begun.
    """

    def __init__(
        self,
        plan: Plan,
        stage: int,
        batching: Batching,
        evaluation_count: int,
        first_step: int,
        *,
        oldest_version: int | None = None,
        end_step: int | None = None,
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.phase = Phase.WAITING
        self.step = first_step  # the oldest that is not applied here
        self.forwards = 0
        self.backwards = 0
        self._batching = batching
        self._end_step = sys.maxsize if end_step is None else end_step
        self._first = stage == 0
        self._last = stage == len(plan.stages) - 1
        self._tied: TiedRoles = tied_roles(plan, stage)
        self._rule = VersionRule(plan.versions, first_step if oldest_version is None else oldest_version)
        self._copies = plan.versions if plan.mode == "async" else 1
        self._numbers = Numbering(batching.microbatch_count, first_step)
        self._walk = make_walk(plan, stage, batching.microbatch_count, first_step)
        self._switch: LateSwitch | None = None
        if plan.mode == "lowmem" and isinstance(self._walk, AlternationPolicy):
            self._switch = LateSwitch(plan.versions, self._walk.warm_up, self._numbers, batching.microbatch_count)
        self._here = StageArrivals(plan, stage, self._tied, self._count_of, self._is_past)
        self._ordered: deque[RunForward | RunBackward] = deque()  # not done yet; the first one is being computed
        self._steps: dict[int, OpenStep] = {}
        self._evaluations = Evaluations(evaluation_count)
        self._evaluated_last = False  # evaluation and training take turns

    @property
    def dropped(self) -> Counter[str]:
        """Return how often something was dropped, and what."""
        return self._here.dropped

    def handle(self, event: StageEvent, now: float) -> list[StageCommand]:  # noqa: ARG002 - one signature for all cores
        """Take one event and return what to do next, in order.

        Raises RemoteProtocolError when a neighbour is ahead of what the protocol allows, LocalProtocolError when
        an event cannot happen in this phase.
        """
        return TRANSITIONS[self.phase, type(event)](self, event)

    def next_deadline(self) -> float | None:
        """Return None: a stage waits for events only, and others judge silence."""
        return None

    def doing(self) -> str:
        """Say in a few words what the stage does or waits for."""
        if self._ordered:
            slot, kind = self._ordered[0].slot, "backward" if isinstance(self._ordered[0], RunBackward) else "forward"
            return f"{kind} of microbatch {slot.index} of step {slot.step}"
        if self.phase is not Phase.TRAINING:
            return f"{self.phase.value} (step {self.step})"
        if (evaluated := self._evaluations.oldest) is not None and self.step >= self._end_step:
            return f"evaluating (step {evaluated})"
        if (action := self._walk.upcoming) is not None:
            step, index = self._numbers.place(action.index)
            what, side = ("activation", self.stage - 1) if action.kind == "F" else ("gradient", self.stage + 1)
            return f"waiting for the {what} of microbatch {index} of step {step} from stage {side}"
        return f"{self._steps.get(self.step, OpenStep()).phase.value} (step {self.step})"

    # --- arrivals -------------------------------------------------------------------------------------------------

    def _arrived(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, ActivationArrived | GradientArrived | TiedGradientArrived | TiedWeightArrived)
        self._here.take(event, self.step, over=self.phase is Phase.RESTING)
        return self._advance()

    def _count_of(self, slot: Slot) -> int:
        return self._evaluations.count if slot.evaluation else self._batching.microbatch_count(slot.step)

    def _is_past(self, slot: Slot, what: str) -> bool:
        if slot.evaluation:
            return slot.step < self.step and not self._evaluations.is_awaited(slot)
        if not self.step <= slot.step < self._end_step:
            return True
        number = self._numbers.number(slot.step, slot.index)
        return self._walk.is_done("F" if what == "activation" else "B", number)

    def _dropped(self, event: StageEvent) -> list[StageCommand]:
        self.dropped[type(event).__name__] += 1
        return []

    def _impossible(self, event: StageEvent) -> list[StageCommand]:
        raise LocalProtocolError(f"stage {self.stage} cannot take {event} while {self.phase.value}")

    # --- what was done --------------------------------------------------------------------------------------------

    def _begin(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, TrainingBegun)
        if event.step != self.step:
            raise RemoteProtocolError(f"training begins at step {event.step}, but the stage was built for {self.step}")
        self.phase = Phase.TRAINING
        self._open_gate()
        return self._advance()

    def _computed(self, event: StageEvent) -> list[StageCommand]:
        if not isinstance(event, ForwardDone | BackwardDone) or not self._ordered:
            return self._impossible(event)
        slot, running = event.slot, self._ordered[0]
        if slot != running.slot or isinstance(event, ForwardDone) != isinstance(running, RunForward):
            return self._impossible(event)
        self._ordered.popleft()
        if slot.evaluation:
            return self._evaluation_went_on(slot) + self._advance()
        commands = self._advance()  # the device first: it waits, the link is asynchronous anyway
        if slot.step >= self._end_step:
            return commands  # the run ends before this step
        if isinstance(event, ForwardDone):
            self.forwards += 1
            return commands if self._last else [*commands, SendActivation(slot)]
        self.backwards += 1
        return commands if self._first else [*commands, SendGradient(slot)]

    def _evaluation_went_on(self, slot: Slot) -> list[StageCommand]:
        over = self._evaluations.done()
        if not self._last:
            return [SendActivation(slot)]
        return [SumEvaluation(slot.step)] if over else []

    def _in_phase(self, event: GradientsSummed | UpdateDone, phase: StepPhase) -> OpenStep:
        step = self._steps.get(event.step)
        if step is None or step.phase is not phase:
            raise LocalProtocolError(f"stage {self.stage} cannot take {event}: no such step is {phase.value}")
        return step

    def _summed(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, GradientsSummed)
        if event.step >= self._end_step:
            return []
        self._in_phase(event, StepPhase.SUMMING).phase = StepPhase.DECIDING
        ready = GradientsReady(
            generation=self.plan.generation,
            step=event.step,
            stage=self.stage,
            squared_norm=event.squared_norm,
            finite=event.finite,
            loss_sum=event.loss_sum,
            target_count=event.target_count,
            samples=event.samples,
        )
        return [Tell(ready)]

    def _decided(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, StepDecided)
        step = self._steps.get(event.step)
        if step is None or step.phase is not StepPhase.DECIDING:
            raise RemoteProtocolError(f"a decision about step {event.step} arrived in step {self.step}")
        step.decision = event
        step.phase = StepPhase.DECIDED
        if event.last:
            self._end_step = event.step + 1
            self._steps = {number: each for number, each in self._steps.items() if number < self._end_step}
        if event.warm_up is not None and isinstance(self._walk, AlternationPolicy):
            self._walk.warm_up = event.warm_up if self._switch is None else max(event.warm_up, self._switch.warm_up)
        return self._advance()

    def _updated(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, UpdateDone)
        step = self._in_phase(event, StepPhase.UPDATING)
        step.statistics = event.statistics
        step.phase = StepPhase.TYING
        commands: list[StageCommand] = []
        if self._tied.owned and not step.skipped:
            commands.append(SendTiedWeights(event.step))
        return commands + self._advance()

    def _evaluated(self, event: StageEvent) -> list[StageCommand]:
        assert isinstance(event, EvaluationSummed)
        evaluated = Evaluated(
            generation=self.plan.generation,
            step=event.step,
            loss_sum=event.loss_sum,
            target_count=event.target_count,
        )
        return [Tell(evaluated)]

    # --- moving on ------------------------------------------------------------------------------------------------

    def _advance(self) -> list[StageCommand]:
        if self.phase is not Phase.TRAINING:
            return []
        commands = self._advance_sums()
        while (more := self._advance_oldest()) is not None:
            commands += more
        return commands + self._advance_computing()

    def _advance_sums(self) -> list[StageCommand]:
        commands: list[StageCommand] = []
        for number, step in sorted(self._steps.items()):
            if step.sum_ordered:
                continue
            wanted = {(number, parameter) for parameter in self._tied.owned}
            if step.phase is not StepPhase.SUMMING or not wanted <= self._here.tied_gradients:
                break
            step.sum_ordered = True
            # in the order of the plan, so that the sum does not depend on who answered first
            commands += [AddTiedGradient(number, parameter) for parameter in self._tied.owned]
            commands.append(SumGradients(number))
        return commands

    def _advance_oldest(self) -> list[StageCommand] | None:
        """Return what the oldest step does next in its update; None when it waits."""
        step = self._steps.get(self.step)
        if step is None or step.decision is None:
            return None
        if step.phase is StepPhase.DECIDED and self._may_update():
            step.phase = StepPhase.UPDATING
            decision = step.decision
            return [ApplyUpdate(self.step, decision.learning_rate, decision.gradient_scale, decision.skip)]
        if step.phase is StepPhase.TYING:
            wanted = set() if step.skipped else {(self.step, parameter) for parameter in self._tied.followed}
            if wanted <= self._here.tied_weights:
                return [SetTiedWeight(self.step, parameter) for _, parameter in sorted(wanted)] + self._leave(step)
        return None

    def _may_update(self) -> bool:
        """Tell whether nobody needs the weights any more that the update would overwrite."""
        evaluated = self._evaluations.oldest
        if evaluated is not None and evaluated <= self.step - self._copies:
            return False
        if self._switch is None or not isinstance(self._walk, AlternationPolicy):
            return True
        return self._switch.is_due(self._walk, self.step, self._end_step)

    def _leave(self, step: OpenStep) -> list[StageCommand]:
        """End the oldest step: its update is complete here."""
        assert step.decision is not None
        number, decision = self.step, step.decision
        applied = StepApplied(
            generation=self.plan.generation, step=number, stage=self.stage, statistics=step.statistics
        )
        commands: list[StageCommand] = [Tell(applied)]
        if decision.save:
            commands.append(SaveState(number))
        if decision.evaluate:
            self._evaluations.add(number)
        del self._steps[number]
        self.step = number + 1
        evaluated = self._evaluations.oldest
        self._here.forget_before(self.step, self.step if evaluated is None else evaluated)
        self._numbers.forget_before(self.step)
        if self.step < self._end_step:
            self._open_gate()
        return commands

    def _open_gate(self) -> None:
        """Admit the steps whose weights are there."""
        self._walk.admit(self._numbers.start(min(self._rule.admitted_steps(self.step), self._end_step)))
        if self._switch is not None and isinstance(self._walk, AlternationPolicy):
            self._switch.hold(self._walk, self.step, self._end_step)

    def _advance_computing(self) -> list[StageCommand]:
        commands: list[StageCommand] = []
        while len(self._ordered) < ORDERED_AHEAD and (action := self._next_action()) is not None:
            self._ordered.append(action)
            commands.append(action)
            if isinstance(action, RunBackward):
                commands += self._note_backward(action.slot.step)
        if not self._ordered and self._evaluations.oldest is None and self.step >= self._end_step:
            self.phase = Phase.RESTING
        return commands

    def _next_action(self) -> RunForward | RunBackward | None:
        evaluation = self._evaluations.upcoming
        if not (self._first or evaluation in self._here.activations):
            evaluation = None
        action = None
        if (evaluation is None or self._evaluated_last) and self.step < self._end_step:
            arrived = (Arrived(slots, self._numbers) for slots in (self._here.activations, self._here.gradients))
            action = self._walk.next(*arrived, ahead=bool(self._ordered))
        self._evaluated_last = action is None and evaluation is not None
        if action is not None:
            step, index = self._numbers.place(action.index)
            slot = Slot(step=step, index=index)
            return RunForward(slot) if action.kind == "F" else RunBackward(slot)
        if evaluation is None:
            return None
        self._evaluations.order()
        return RunForward(evaluation)

    def _note_backward(self, number: int) -> list[StageCommand]:
        """Count an ordered backward; return what follows the last one of its step."""
        step = self._steps.setdefault(number, OpenStep())
        step.backwards += 1
        if step.backwards < self._batching.microbatch_count(number):
            return []
        # what follows is computed behind the last microbatch; nobody has to wait until that is told to be done
        step.phase = StepPhase.SUMMING
        followed: list[StageCommand] = [SendTiedGradients(number)] if self._tied.followed else []
        return followed + self._advance_sums()


def _transitions() -> dict[tuple[Phase, type], Handler]:
    """Return the handler of every (phase, event); what is not named here cannot happen."""
    arrivals = (ActivationArrived, GradientArrived, TiedGradientArrived, TiedWeightArrived)
    done: dict[type, Handler] = {
        ForwardDone: StageCore._computed,  # noqa: SLF001 - its own table
        BackwardDone: StageCore._computed,  # noqa: SLF001
        GradientsSummed: StageCore._summed,  # noqa: SLF001
        StepDecided: StageCore._decided,  # noqa: SLF001
        UpdateDone: StageCore._updated,  # noqa: SLF001
        EvaluationSummed: StageCore._evaluated,  # noqa: SLF001
    }
    table: dict[tuple[Phase, type], Handler] = {}
    for phase in Phase:
        table |= dict.fromkeys(((phase, event) for event in arrivals), StageCore._arrived)  # noqa: SLF001
        table |= dict.fromkeys(((phase, event) for event in (TrainingBegun, *done)), StageCore._impossible)  # noqa: SLF001
    table[Phase.WAITING, TrainingBegun] = StageCore._begin  # noqa: SLF001
    table |= {(Phase.TRAINING, event): handler for event, handler in done.items()}
    table |= {
        # what was under way when the last step was decided, and a decision that is repeated after a reconnect
        (Phase.RESTING, event): StageCore._dropped  # noqa: SLF001
        for event in (ForwardDone, BackwardDone, GradientsSummed, StepDecided)
    }
    # the last evaluation ends after everything else
    table[Phase.RESTING, EvaluationSummed] = StageCore._evaluated  # noqa: SLF001
    return table


TRANSITIONS = _transitions()
