"""Steps of one plan: collects what the stages report, decides what they do, and says when a step is committed.

A core without I/O. With V versions of the weights at most 2 V steps are open: those that some stages have yet to apply,
and those that others have begun. Decisions and commits come in the order of steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brigade.coordinator.learning_rate import learning_rate
from brigade.coordinator.run_events import Commit, Evaluation
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import StageStatistics
from brigade.wire.messages import ApplyStep, Evaluated, GradientsReady, StepApplied
from brigade.wire.plan import Plan
from brigade.wire.run_spec import TrainingSpec

MOST_UNSTORED = 2  # times the versions: steps that may be decided ahead of the ledger
CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


@dataclass(slots=True)
class OpenStep:
    """What is known of a step that is not committed."""

    gradients: dict[int, GradientsReady] = field(default_factory=dict)
    norm: float = math.nan
    decision: ApplyStep | None = None
    applied: dict[int, StageStatistics] = field(default_factory=dict)


class StepRounds:
    """The steps from `first_step` on, trained by the stages of one plan.

    `sample_ids(step)` tells which samples must have contributed.
    """

    def __init__(
        self,
        training: TrainingSpec,
        plan: Plan,
        *,
        attempt: int,
        first_step: int,
        sample_ids: Callable[[int], Sequence[int]],
    ) -> None:
        self._training = training
        self._plan = plan
        self._attempt = attempt
        self._sample_ids = sample_ids
        self._stages = len(plan.stages)
        self._versions = plan.versions
        self._open: dict[int, OpenStep] = {}
        self._undecided = first_step  # the oldest step without a decision
        self._complete: dict[int, Commit] = {}  # applied everywhere, and not their turn to be stored
        self.began_at = 0.0  # when the oldest open step began
        self._storing: int | None = None  # applied everywhere, not yet safe on disk
        self._evaluating: set[int] = set()
        self._early_evaluations: dict[int, Evaluated] = {}
        self.step = first_step  # the oldest step that is not committed
        self.closing = False  # the next decision is the last one
        self.save_allowed = True  # no earlier checkpoint is still on its way
        self.last_step: int | None = None  # known once it is decided

    # --- questions ----------------------------------------------------------------------------------------------

    @property
    def evaluating(self) -> bool:
        """Tell whether a held-out loss is awaited."""
        return bool(self._evaluating)

    @property
    def waiting_for(self) -> tuple[str, list[int]]:
        """Return what the oldest open step waits for, and of which stages."""
        current = self._open.get(self._oldest_open, OpenStep())
        if current.decision is None:
            return "gradients", [k for k in range(self._stages) if k not in current.gradients]
        return "updates", [k for k in range(self._stages) if k not in current.applied]

    def is_stale(self, generation: int) -> bool:
        """Tell whether a message is of an earlier plan."""
        return generation < self._plan.generation

    # --- what stages report -------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start the clock of the first step."""
        self.began_at = now

    def take_gradients(self, message: GradientsReady) -> ApplyStep | None:
        """Take one stage's report; return the decision once all stages are through.

        Raises RemoteProtocolError for a report that cannot be.
        """
        if self._versions > 1 and self.last_step is not None and message.step > self.last_step:
            return None  # begun before the last step was known
        step = self._opened(message.step)
        if message.stage in step.gradients:
            raise RemoteProtocolError(f"stage {message.stage} was through with step {message.step} twice")
        if message.stage == self._stages - 1:
            self._check_samples(message)
        step.gradients[message.stage] = message
        return self._decide()

    def take_update(self, message: StepApplied, now: float) -> Commit | None:
        """Take one stage's update; return the row to store once all stages have made it and no earlier one is stored.

        Raises RemoteProtocolError for an update that nobody ordered.
        """
        step = self._opened(message.step)
        if step.decision is None or message.stage in step.applied:
            raise RemoteProtocolError(f"stage {message.stage} updated for step {message.step} without an order")
        step.applied[message.stage] = message.statistics
        if len(step.applied) < self._stages:
            return None
        del self._open[message.step]
        self._complete[message.step] = self._row(message.step, step, now)
        self.began_at = now
        return self._next_to_store()

    def stored(self, step: int) -> tuple[ApplyStep | None, Commit | None]:
        """Take note that a step is committed; return the decision and the row that waited for it."""
        if step != self._storing:
            return None, None
        self._storing = None
        self.step = step + 1
        return self._decide(), self._next_to_store()

    def take_evaluation(self, message: Evaluated) -> Evaluation | None:
        """Take the held-out loss after a step; return it to be stored once that step is committed.

        Raises RemoteProtocolError for an evaluation that nobody ordered.
        """
        if message.step not in self._evaluating:
            raise RemoteProtocolError(f"a held-out loss after step {message.step} that nobody ordered")
        if message.step >= self.step:
            self._early_evaluations[message.step] = message  # an update of another stage is still on its way
            return None
        self._evaluating.discard(message.step)
        return Evaluation(
            step=message.step,
            attempt=self._attempt,
            loss=_mean(message.loss_sum, message.target_count),
            target_count=message.target_count,
        )

    def early_evaluation(self, step: int) -> Evaluation | None:
        """Return the held-out loss after a step that has just been committed, if it came before the commit."""
        message = self._early_evaluations.pop(step, None)
        return None if message is None else self.take_evaluation(message)

    def forget_evaluations(self) -> None:
        """Wait for no held-out loss any more: the stage that owes it has gone."""
        self._evaluating.clear()

    # --- inside -------------------------------------------------------------------------------------------------

    @property
    def _oldest_open(self) -> int:
        """Return the oldest step that is not applied everywhere."""
        return self.step + (self._storing is not None) + len(self._complete)

    def _opened(self, step: int) -> OpenStep:
        first = self._oldest_open
        beyond_last = self.last_step is not None and step > self.last_step
        if not first <= step < first + 2 * self._versions or beyond_last:
            raise RemoteProtocolError(f"step {step} is not open; step {first} is")
        return self._open.setdefault(step, OpenStep())

    def _next_to_store(self) -> Commit | None:
        if self._storing is not None or self.step not in self._complete:
            return None
        self._storing = self.step
        return self._complete.pop(self.step)

    def _may_decide(self, number: int) -> bool:
        """Tell whether the ledger keeps up: without older weights a step waits for the commit of the one before."""
        if self._versions == 1:
            return number == self.step and self._storing is None
        return number <= self.step + MOST_UNSTORED * self._versions

    def _check_samples(self, message: GradientsReady) -> None:
        expected = sorted(int(i) for i in self._sample_ids(message.step))
        if sorted(message.samples) != expected:
            lost = sorted(set(expected) - set(message.samples))[:5]
            raise RemoteProtocolError(
                f"step {message.step} was trained on {len(message.samples)} samples instead of the {len(expected)}"
                f" that belong to it (missing: {lost or 'none; some came twice or are foreign'})"
            )

    def _decide(self) -> ApplyStep | None:
        number = self._undecided
        step = self._open.get(number)
        if step is None or len(step.gradients) < self._stages or not self._may_decide(number):
            return None
        self._undecided += 1
        reports = [step.gradients[stage] for stage in range(self._stages)]  # sums must not depend on who came first
        step.norm = math.sqrt(sum(max(0.0, report.squared_norm) for report in reports))
        skip = not (all(report.finite for report in reports) and math.isfinite(step.norm))
        training, done = self._training, number + 1
        complete = done >= training.max_steps
        last = complete or self.closing
        evaluate = self._plan.validation_samples > 0 and (complete or _due(done, training.eval_steps))
        step.decision = ApplyStep(
            generation=self._plan.generation,
            step=number,
            learning_rate=learning_rate(training, number),
            gradient_scale=_clip_scale(step.norm, training.max_grad_norm) if not skip else 1.0,
            skip=skip,
            evaluate=evaluate,
            save=last or (_due(done, training.save_steps) and self.save_allowed),
            last=last,
        )
        if evaluate:
            self._evaluating.add(number)
        if last:
            self.last_step = number
        return step.decision

    def _row(self, number: int, step: OpenStep, now: float) -> Commit:
        assert step.decision is not None
        report = step.gradients[self._stages - 1]
        return Commit(
            step=number,
            attempt=self._attempt,
            generation=self._plan.generation,
            loss=_mean(report.loss_sum, report.target_count),
            gradient_norm=None if step.decision.skip else step.norm,
            learning_rate=step.decision.learning_rate,
            gradient_scale=step.decision.gradient_scale,
            skipped=step.decision.skip,
            tokens=report.target_count,
            samples=tuple(report.samples),
            nodes=self._stages,
            duration_s=now - self.began_at,
            statistics=tuple(step.applied[stage] for stage in range(self._stages)),
        )


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _mean(total: float, count: int) -> float | None:
    return total / count if count > 0 and math.isfinite(total) else None


def _clip_scale(norm: float, limit: float) -> float:
    return min(1.0, limit / (norm + CLIP_EPSILON)) if limit > 0 else 1.0
