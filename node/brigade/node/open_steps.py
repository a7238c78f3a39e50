"""The steps that a stage has begun and not left: how far each is, from its microbatches to the update."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from brigade.node.stage_events import StepDecided
from brigade.partition.policy import AlternationPolicy
from brigade.partition.versions import Numbering
from brigade.wire.message_parts import Slot, StageStatistics


class StepPhase(Enum):
    """How far a step is at a stage."""

    COMPUTING = "computing"
    SUMMING = "summing gradients"
    DECIDING = "waiting for the decision about the step"
    DECIDED = "about to update weights"
    UPDATING = "updating weights"
    TYING = "waiting for tied weights"


@dataclass(slots=True)
class OpenStep:
    """One step between its first backward and the end of its update."""

    phase: StepPhase = StepPhase.COMPUTING
    backwards: int = 0
    sum_ordered: bool = False
    decision: StepDecided | None = None
    statistics: StageStatistics = field(default_factory=StageStatistics)

    @property
    def skipped(self) -> bool:
        """Tell whether the step changes nothing."""
        return self.decision is not None and self.decision.skip


@dataclass(slots=True)
class _Evaluation:
    step: int
    ordered: int = 0
    done: int = 0


class Evaluations:
    """Held-out microbatches, `count` after a step, that a stage has yet to run with the weights after these steps."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pending: deque[_Evaluation] = deque()

    @property
    def oldest(self) -> int | None:
        """Return the oldest step whose evaluation is not over here; None when there is none."""
        return self._pending[0].step if self._pending else None

    def add(self, step: int) -> None:
        """Begin the evaluation after a step."""
        if self.count > 0:
            self._pending.append(_Evaluation(step))

    @property
    def upcoming(self) -> Slot | None:
        """Return the microbatch to run next; one evaluation ends before the next begins."""
        if not self._pending or self._pending[0].ordered == self.count:
            return None
        return Slot(step=self._pending[0].step, index=self._pending[0].ordered, evaluation=True)

    def order(self) -> None:
        """Take note that the next microbatch is ordered."""
        self._pending[0].ordered += 1

    def done(self) -> bool:
        """Take note that a microbatch is done; return whether it was the last of its step."""
        self._pending[0].done += 1
        if self._pending[0].done < self.count:
            return False
        self._pending.popleft()
        return True

    def is_awaited(self, slot: Slot) -> bool:
        """Tell whether a microbatch of an evaluation that has begun is still to be run."""
        return any(each.step == slot.step and each.ordered <= slot.index for each in self._pending)


@dataclass(frozen=True, slots=True)
class LateSwitch:
    """When a stage without a second copy of its weights moves on to the next version: always between the same actions.

    The update of step g comes when all forwards before step g + `keep` have run and the backwards of all but the last
    `warm_up` of these. So it does not depend on when the decision came, which microbatches saw which weights.
    """

    keep: int
    warm_up: int
    numbers: Numbering
    count_of: Callable[[int], int]

    def place(self, step: int, end_step: int) -> tuple[int, int]:
        """Return how many forwards and how many backwards come before the update of `step`; none is of `end_step`."""
        following = min(step + self.keep, end_step)
        forwards = self.numbers.start(following)
        if following < step + self.keep:
            return forwards, forwards  # nothing follows for which to hold back
        return forwards, forwards - min(self.warm_up, self.count_of(following - 1))

    def hold(self, walk: AlternationPolicy, step: int, end_step: int) -> None:
        """Let backwards that belong behind the update of `step` wait for it."""
        walk.hold_backwards(self.place(step, end_step)[1])

    def is_due(self, walk: AlternationPolicy, step: int, end_step: int) -> bool:
        """Tell whether all that comes before the update of `step` has been handed out."""
        forwards, backwards = self.place(step, end_step)
        return walk.is_done("F", forwards - 1) and (backwards == 0 or walk.is_done("B", backwards - 1))
