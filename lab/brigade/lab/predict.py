"""Predicts an experiment without starting a process: what it would commit, see and note, by simulating its plans.

Nothing here knows losses. A prediction is a function of the scenario, its costs and what handling costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from brigade.coordinator.costs import Costs
from brigade.coordinator.run_events import Commit
from brigade.lab.observed import Observed, SeenEvent, SeenStep
from brigade.lab.predicted_events import EventfulRun, MakePlan, Rates, Segment
from brigade.lab.predicted_lives import Notes
from brigade.lab.predicted_plan import PredictedPlan, form
from brigade.lab.recovery_story import tell_taken_up
from brigade.lab.relay_orders import Counted, RouteCount
from brigade.lab.scenario import Scenario
from brigade.node.timeline import StageLife
from brigade.partition.batching import Batching, evaluation_batches
from brigade.partition.prediction import MESSAGE_BYTES, Handling
from brigade.partition.samples import Source
from brigade.partition.simulation.churn import ChurnReport, Course
from brigade.partition.simulation.stage import HeldOut, Watch
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import Plan
from brigade.wire.run_spec import TrainingSpec


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an experiment would leave: the rows of its ledger, its timelines, and what the lab would have seen."""

    plan: Plan  # the last one
    commits: tuple[Commit, ...]
    lives: tuple[StageLife, ...]
    observed: Observed
    step_s: float  # of a step without an evaluation, under the first plan


class Assumed(Protocol):
    """Whatever tells what hosts and links cost; see `assumed.Assumption`."""

    def costs(self, slowed: dict[str, float], rates: Rates) -> Costs:
        """Return it for hosts as they have become."""


@dataclass(frozen=True, slots=True)
class _Every:
    """The updates after which something is done: every so many, and the last."""

    every: int
    last: int

    def __contains__(self, update: object) -> bool:
        return isinstance(update, int) and ((self.every > 0 and (update + 1) % self.every == 0) or update == self.last)


def predict(
    scenario: Scenario, source: Source, assumed: Assumed, handling: Handling, seed: int | None = None
) -> Prediction:
    """Return what a scenario would come to. Raises PlanError when its nodes can make no plan."""
    spec, training = scenario.run.spec, scenario.run.spec.training
    batching = _batching(spec.seed, training, source.train_count)
    evaluation = evaluation_batches(source.validation_count, batching.microbatch_samples, training.eval_batches)
    held_out = len(evaluation)
    notes: dict[int, Notes] = {}

    def watch(segment: int) -> Watch:
        notes[segment] = Notes()  # a segment that is simulated again is noted anew
        return notes[segment].watch

    course = Course(
        updates=training.max_steps,
        kept_every=training.save_steps or training.max_steps,
        held_out=HeldOut(held_out, _Every(training.eval_steps, training.max_steps - 1)) if held_out else None,
        seed=scenario.spec.seed if seed is None else seed,
        watch=watch,
    )
    make_plan: MakePlan = lambda names, generation, slowed, rates: form(  # noqa: E731
        assumed.costs(slowed, rates), names, spec, (source.train_count, source.validation_count), generation, handling
    )
    run = EventfulRun(scenario, make_plan, course)
    report = run.carry_out()
    lives: list[StageLife] = []
    for number, segment in enumerate(run.segments[: len(report.segments)]):
        last = number == len(report.segments) - 1
        begin_s, first = report.begins_s[number], report.first_updates[number]
        lives += notes[number].lives(segment.formed, begin_s, first, max(held_out, 1), last=last)
    commits = _commits(run.segments, report, batching, source)
    return Prediction(
        plan=run.segments[len(report.segments) - 1].formed.plan,
        commits=tuple(commits),
        lives=tuple(lives),
        observed=_observed(run, report, commits, held_out, course.seed),
        step_s=report.segments[0].period_s * run.segments[0].formed.plan.microbatches,
    )


def _batching(seed: int, training: TrainingSpec, samples: int) -> Batching:
    return Batching(samples, training.batch_size, training.microbatches, seed, training.shuffle)


def _commits(segments: Sequence[Segment], report: ChurnReport, batching: Batching, source: Source) -> list[Commit]:
    """Return the rows of the ledger: of each step the one that counts."""
    commits = []
    for step, at_s in enumerate(report.commits_s):
        number = max(n for n, first in enumerate(report.first_updates) if first <= step)
        formed = segments[number].formed
        samples = tuple(int(i) for i in batching.sample_ids(step))
        tokens = len(samples) * _targets_per_sample(source)
        before_s = (
            report.begins_s[number] if step == report.first_updates[number] else float(report.commits_s[step - 1])
        )
        commits.append(
            Commit(
                step=step,
                attempt=number + 1,
                generation=formed.plan.generation,
                loss=None,
                gradient_norm=None,
                learning_rate=0.0,
                gradient_scale=1.0,
                skipped=False,
                tokens=tokens,
                samples=samples,
                nodes=len(formed.plan.stages),
                duration_s=float(at_s) - before_s,
                statistics=_statistics(formed, batching.microbatch_count(step), tokens),
            )
        )
    return commits


def _targets_per_sample(source: Source) -> int:
    """Return how many targets a sample has: the product of what its shape says of each sample's own dimensions."""
    count = 0
    for leaf in source.targets.leaves:
        size = 1
        for length in leaf.shape(1):
            size *= length
        count += size
    return count


def _statistics(formed: PredictedPlan, microbatches: int, tokens: int) -> tuple[StageStatistics, ...]:
    stages, last = formed.line.stages, len(formed.line.stages) - 1
    return tuple(
        StageStatistics(
            forward_s=microbatches * time.forward_s,
            backward_s=microbatches * time.backward_s,
            optimizer_s=time.optimizer_s,
            encode_s=microbatches * time.encode_s * ((k > 0) + (k < last)),
            decode_s=microbatches * time.decode_s * ((k > 0) + (k < last)),
            forward_bytes=round(microbatches * formed.activation_bytes[k]) if k < last else 0,
            backward_bytes=round(microbatches * formed.gradient_bytes[k - 1]) if k > 0 else 0,
            tokens=tokens,
        )
        for k, time in enumerate(stages)
    )


def _observed(run: EventfulRun, report: ChurnReport, commits: Sequence[Commit], held_out: int, seed: int) -> Observed:
    tokens, steps = 0, []
    for commit, at_s in zip(commits, report.commits_s, strict=True):
        tokens += commit.tokens
        steps.append(SeenStep(commit.step + 1, float(at_s), None, tokens))
    plans = [
        SeenEvent(round(begin_s, 3), f"plan {segment.formed.plan.generation}: {segment.formed.plan.reason}")
        for segment, begin_s in zip(run.segments, report.begins_s, strict=False)
    ]
    taken_up = [
        SeenEvent(round(segment.at_s, 3), tell_taken_up(first, segment.formed.nodes, len(segment.formed.nodes)))
        for segment, first in zip(run.segments[1:], report.first_updates[1:], strict=False)
    ]
    return Observed(
        seed=seed,
        steps=steps,
        events=sorted([*run.seen, *taken_up, *plans], key=lambda event: event.at_s),
        recoveries=len(report.segments) - 1,
        exit_code=run.exit_code,
        reason=run.reason,
        traffic=Counted(_routes(run.segments, report, held_out), 0.0, 0.0),
        began_at=0.0,
    )


def _routes(segments: Sequence[Segment], report: ChurnReport, held_out: int) -> tuple[RouteCount, ...]:
    """Return what passes between neighbours; what travels to and from the coordinator is left out."""
    carried: dict[tuple[str, str], float] = {}
    for segment, done in zip(segments, report.segments, strict=False):
        formed = segment.formed
        evaluated = held_out * sum(stage.evaluation_s > 0 for stage in done.stages[:1])
        for hop, (near, far) in enumerate(zip(formed.nodes, formed.nodes[1:], strict=False)):
            there = (done.started + evaluated) * (formed.activation_bytes[hop] + MESSAGE_BYTES)
            back = done.started * (formed.gradient_bytes[hop] + MESSAGE_BYTES)
            carried[near, far] = carried.get((near, far), 0.0) + there
            carried[far, near] = carried.get((far, near), 0.0) + back
    return tuple(RouteCount(a, b, round(size), round(size)) for (a, b), size in carried.items())
