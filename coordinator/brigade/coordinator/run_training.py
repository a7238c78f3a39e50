"""How a run trains: orders each update, commits each step, and says when a step is slow.

Reactions of the run core, see `run_table`.
"""

from dataclasses import fields, replace

from brigade.coordinator.run_closing import await_saving, close, drop_stuck, fail, settle, with_hint
from brigade.coordinator.run_events import CommitStored, Note, StoreCommit, StoreEvaluation
from brigade.coordinator.run_membership import Outcome
from brigade.coordinator.run_state import News, RunState
from brigade.coordinator.run_table import State
from brigade.wire.message_parts import StageStatistics
from brigade.wire.messages import ApplyStep, BeginTraining, Evaluated, GradientsReady, StepApplied
from brigade.wire.validity import MAX_INT

LEAST_WATCH_S = 30.0
WATCH_STEPS = 10  # a step is slow when it takes as long as so many usual ones


def begin_training(run: RunState, now: float) -> Outcome:
    """Let all stages start with the first step."""
    assert run.line is not None
    run.state = State.TRAINING
    run.limit = None
    run.line.rounds.begin(now)
    _watch(run, now)
    step = run.line.rounds.step
    text = f"training begins at step {step} of {run.spec.training.max_steps}"
    order = BeginTraining(generation=run.line.plan.generation, step=step)
    return [Note(kind="training", text=text), *run.tell_line(order)]


def take_gradients(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to GradientsReady."""
    assert isinstance(news.content, GradientsReady)
    assert run.line is not None
    if run.line.rounds.is_stale(news.content.generation):
        return []
    run.check_sender(news, news.content.stage)
    return _order(run, run.line.rounds.take_gradients(news.content))


def take_update(run: RunState, news: News, now: float) -> Outcome:
    """React to StepApplied."""
    assert isinstance(news.content, StepApplied)
    assert run.line is not None
    if run.line.rounds.is_stale(news.content.generation):
        return []
    run.check_sender(news, news.content.stage)
    commit = run.line.rounds.take_update(news.content, now)
    if commit is None:
        return []
    run.line.storing = commit
    return [StoreCommit(commit=commit)]


def take_evaluation(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to Evaluated."""
    assert isinstance(news.content, Evaluated)
    assert run.line is not None
    if run.line.rounds.is_stale(news.content.generation) or (
        run.state is State.SAVING and not run.line.rounds.evaluating
    ):
        return []
    run.check_sender(news, len(run.line.plan.stages) - 1)
    evaluation = run.line.rounds.take_evaluation(news.content)
    if evaluation is None:
        return []
    run.tally.last_evaluation = evaluation
    return [StoreEvaluation(evaluation=evaluation), *(settle(run) if run.state is State.SAVING else [])]


def go_on_after_commit(run: RunState, news: News, now: float) -> Outcome:
    """React to CommitStored: the step counts, and what waited for it may go on."""
    assert isinstance(news.content, CommitStored)
    assert run.line is not None
    line, commit = run.line, run.line.storing
    if commit is None or commit.step != news.content.step:
        return []
    line.storing = None
    run.tally.add(commit)
    line.totals = [_sum(a, b) for a, b in zip(line.totals, commit.statistics, strict=True)]
    line.pacing.take(commit.statistics, line.microbatch_count(commit.step))
    line.steps += 1
    outcome: Outcome = []
    if commit.skipped:
        text = f"step {commit.step} changed nothing: its gradient was not finite"
        outcome.append(Note(kind="skipped", text=text, level="warning"))
    next_order, next_commit = line.rounds.stored(commit.step)
    if (evaluation := line.rounds.early_evaluation(commit.step)) is not None:
        run.tally.last_evaluation = evaluation
        outcome.append(StoreEvaluation(evaluation=evaluation))
    outcome += line.saves.committed(commit.step + 1, run.tally.tokens_seen, now)
    if run.state is State.SAVING:
        return [*outcome, *settle(run)]
    if commit.step == line.rounds.last_step:
        return [*outcome, *await_saving(run, now)]
    _watch(run, now)
    if next_commit is not None:
        line.storing = next_commit
        outcome.append(StoreCommit(commit=next_commit))
    return [*outcome, *_order(run, next_order)]


def look_at_clock(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to a deadline of the run itself."""
    if run.limit is not None and now >= run.limit.at:
        if run.state is State.SAVING and run.ending is not None and run.ending.state is State.FAILED:
            return close(run, with_hint(run, run.ending))
        reason, run.limit = run.limit.reason, None
        return fail(run, reason, now)
    outcome = drop_stuck(run, now) if run.state is State.TRAINING else []
    if run.watch_at is not None and now >= run.watch_at:
        outcome.append(_tell_slow(run, now))
    return outcome


# --- inside ---------------------------------------------------------------------------------------------------------


def _order(run: RunState, decision: ApplyStep | None) -> Outcome:
    if decision is None or run.line is None:
        return []
    outcome: Outcome = []
    if decision.save:
        outcome += run.line.saves.open(decision.step + 1)
        run.line.rounds.save_allowed = False
    if warm_ups := run.line.pacing.take_news():
        decision = replace(decision, warm_ups=warm_ups)
    return [*outcome, *run.tell_line(decision)]


def _watch(run: RunState, now: float) -> None:
    run.watch_interval_s = max(LEAST_WATCH_S, WATCH_STEPS * (run.tally.usual_step_s or 0.0))
    run.watch_at = now + run.watch_interval_s


def _tell_slow(run: RunState, now: float) -> Note:
    assert run.line is not None
    what, stages = run.line.rounds.waiting_for
    waited_s = run.watch_interval_s
    run.watch_interval_s *= 2  # the message comes less and less often
    run.watch_at = now + run.watch_interval_s
    doings = []
    for stage in stages:
        member = run.membership.members.get(run.line.plan.stages[stage].contact.node_id)
        doing = member.pulse.doing if member and member.pulse.doing else "says nothing"
        doings.append(f"{run.line.name_stage(stage)}: {doing}")
    text = f"step {run.line.rounds.step} waits for {what} since {waited_s:.0f} s or more; {'; '.join(doings)}"
    return Note(kind="slow", text=text, level="warning")


def _sum(a: StageStatistics, b: StageStatistics) -> StageStatistics:
    sums = {f.name: getattr(a, f.name) + getattr(b, f.name) for f in fields(StageStatistics)}
    return StageStatistics(**{name: min(total, MAX_INT) for name, total in sums.items()})
