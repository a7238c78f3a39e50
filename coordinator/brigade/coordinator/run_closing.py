"""How a run ends: in success, at its owner's wish, or because somebody has gone; and what is saved before.

Reactions of the run core, see `run_table`.
"""

from brigade.coordinator.run_events import (
    CheckpointFailed,
    CheckpointSealed,
    DropCheckpoint,
    EndRun,
    ExportFailed,
    ExportModel,
    ModelExported,
    Note,
    PartsProgressed,
    PartsStored,
    StoreBroke,
)
from brigade.coordinator.run_members import Member, NodeGone
from brigade.coordinator.run_membership import Outcome
from brigade.coordinator.run_state import SAVING_LIMIT_S, Ending, Limit, News, RunState
from brigade.coordinator.run_table import State
from brigade.coordinator.wording import counted, steps_are_done
from brigade.wire.messages import Leaving, NodeFailed, RunEnded, StateSaved

FAILED_SAVING_LIMIT_S = 10.0  # how long a failed run waits for a checkpoint that is on its way
SAVE_WARNING_INTERVAL_S = 60.0
FAILED, STOPPED, INTERRUPTED = 1, 3, 130  # exit codes


# --- the end itself -------------------------------------------------------------------------------------------------


def close(run: RunState, ending: Ending) -> Outcome:
    """End the run now: drop what is unfinished, tell everybody, leave."""
    success = ending.state is State.FINISHED
    failed = ending.state is State.FAILED
    outcome: Outcome = [
        Note(kind=ending.state.value, text=ending.reason, level="error" if failed else "info"),
    ]
    if run.line is not None:
        outcome += [DropCheckpoint(steps_done=steps_done) for steps_done in run.line.saves.pending]
    outcome += run.tell_all(RunEnded(success=success, reason=ending.reason, stopped=ending.state is State.STOPPED))
    outcome.append(EndRun(exit_code=ending.exit_code, state=ending.state.value, reason=ending.reason))
    run.state = ending.state
    run.ending = ending
    run.limit = run.watch_at = None
    run.membership.close_door(ending.reason)
    return outcome


def fail(run: RunState, reason: str, now: float) -> Outcome:
    """End the run because it cannot go on, after a short wait for a checkpoint that is on its way."""
    if run.line is None or run.state not in (State.TRAINING, State.SAVING):
        return close(run, Ending(State.FAILED, FAILED, reason))
    storing = run.line.storing
    outcome: Outcome = [*run.line.saves.give_up_uncommitted(None if storing is None else storing.step + 1)]
    run.line.rounds.forget_evaluations()
    run.ending = Ending(State.FAILED, FAILED, reason)
    run.state = State.SAVING
    run.watch_at = None
    run.limit = Limit(now + FAILED_SAVING_LIMIT_S, reason)
    return [*outcome, *settle(run)]


def settle(run: RunState) -> Outcome:
    """End the run if nothing is awaited any more."""
    assert run.ending is not None
    line = run.line
    if run.exporting or (line is not None and (line.saves.pending or line.rounds.evaluating or line.storing)):
        return []
    if run.ending.state is State.FINISHED:
        assert run.tally.sealed_steps == run.tally.steps_done
        run.exporting = True
        run.limit = None
        return [ExportModel(steps_done=run.tally.sealed_steps)]
    return close(run, with_hint(run, run.ending))


def with_hint(run: RunState, ending: Ending) -> Ending:
    """Add where a resume will begin."""
    done, sealed = run.tally.steps_done, run.tally.sealed_steps
    if sealed is None:
        hint = f"{steps_are_done(done)}, none is in a checkpoint" if done else ""
    elif done > sealed:
        hint = f"{steps_are_done(done)}, the newest checkpoint holds {sealed}; `brigade up --resume` trains from there"
    else:
        saved = f"all {done} steps done so far are" if done > 1 else "the step done so far is"
        hint = f"{saved} in a checkpoint; `brigade up --resume` goes on"
    return Ending(ending.state, ending.exit_code, f"{ending.reason}; {hint}" if hint else ending.reason)


def await_saving(run: RunState, now: float) -> Outcome:
    """The last step is committed: wait for its checkpoint and its evaluation."""
    assert run.line is not None
    done, of = run.tally.steps_done, run.spec.training.max_steps
    if done >= of or run.closing is None:
        run.ending = Ending(State.FINISHED, 0, f"{'all ' if done > 1 else ''}{steps_are_done(done)}")
    else:
        run.ending = Ending(run.closing.state, run.closing.exit_code, run.closing.reason)
    failed_save, reason = run.save_failure
    if failed_save == done:
        run.ending = Ending(State.FAILED, FAILED, reason)
        run.line.rounds.forget_evaluations()
    run.state = State.SAVING
    run.watch_at = None
    run.limit = Limit(now + SAVING_LIMIT_S, "the files of the last checkpoint do not arrive")
    return settle(run)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def take_files(run: RunState, news: News, now: float) -> Outcome:
    """React to StateSaved."""
    assert isinstance(news.content, StateSaved)
    assert run.line is not None
    if run.line.rounds.is_stale(news.content.generation):
        return []
    run.check_sender(news, news.content.stage)
    return [*run.line.saves.take_files(news.content, now)]


def take_progress(run: RunState, news: News, now: float) -> Outcome:
    """React to PartsProgressed: the wait for a checkpoint starts anew."""
    assert isinstance(news.content, PartsProgressed)
    assert run.line is not None
    run.line.saves.progressed(news.content.steps_done, news.content.received_bytes, now)
    if run.state is State.SAVING and run.ending is not None and run.ending.state is not State.FAILED:
        run.limit = Limit(now + SAVING_LIMIT_S, "the files of the last checkpoint do not arrive")
    return []


def take_parts(run: RunState, news: News, now: float) -> Outcome:
    """React to PartsStored."""
    assert isinstance(news.content, PartsStored)
    assert run.line is not None
    return [*run.line.saves.parts_stored(news.content.steps_done, news.content.stage, now)]


def drop_stuck(run: RunState, now: float) -> Outcome:
    """Drop, during training, a checkpoint of which nothing has come for long, so that later ones can be made."""
    assert run.line is not None
    saves = run.line.saves
    outcome: Outcome = []
    for steps_done in saves.stuck(now - SAVING_LIMIT_S):
        owing = ", ".join(run.line.name_stage(stage) for stage in saves.owing(steps_done))
        text = (
            f"the checkpoint of {counted(steps_done, 'step')} is given up: for {SAVING_LIMIT_S:.0f} s nothing came of"
            f" the files that are missing from {owing}; training goes on"
        )
        outcome += [Note(kind="unsaved", text=text, level="warning"), DropCheckpoint(steps_done=steps_done)]
        saves.closed(steps_done)
        run.line.rounds.save_allowed = not saves.pending
    return outcome


def take_checkpoint(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to CheckpointSealed."""
    assert isinstance(news.content, CheckpointSealed)
    assert run.line is not None
    steps_done = news.content.steps_done
    run.line.saves.closed(steps_done)
    dropped = run.line.saves.give_up_older(steps_done)
    run.line.rounds.save_allowed = not run.line.saves.pending
    run.tally.sealed_steps = max(steps_done, run.tally.sealed_steps or 0)
    text = f"the checkpoint of {counted(steps_done, 'step')} is complete ({news.content.size / 1e6:.1f} MB)"
    outcome: Outcome = [Note(kind="saved", text=text), *dropped]
    return [*outcome, *(settle(run) if run.state is State.SAVING else [])]


def miss_checkpoint(run: RunState, news: News, now: float) -> Outcome:
    """React to CheckpointFailed: training goes on, but a run that is at its end has failed."""
    assert isinstance(news.content, CheckpointFailed)
    assert run.line is not None
    run.line.saves.closed(news.content.steps_done)
    run.line.rounds.save_allowed = not run.line.saves.pending
    reason = f"the checkpoint of {counted(news.content.steps_done, 'step')} could not be saved: {news.content.reason}"
    run.save_failure = (news.content.steps_done, reason)
    if run.state is State.SAVING:
        assert run.ending is not None
        if run.ending.state is not State.FAILED and news.content.steps_done == run.tally.steps_done:
            run.ending = Ending(State.FAILED, FAILED, reason)
            run.line.rounds.forget_evaluations()
        return [Note(kind="unsaved", text=reason, level="warning"), *settle(run)]
    if run.save_warned_at is not None and now < run.save_warned_at + SAVE_WARNING_INTERVAL_S:
        return []
    run.save_warned_at = now
    return [Note(kind="unsaved", text=f"{reason}; training goes on", level="warning")]


def finish(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to ModelExported."""
    assert isinstance(news.content, ModelExported)
    assert run.ending is not None
    run.tally.export_path = news.content.path
    reason = f"{run.ending.reason}; the model is in {news.content.path}"
    return close(run, Ending(run.ending.state, run.ending.exit_code, reason))


def end_without_export(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature
    """React to ExportFailed."""
    assert isinstance(news.content, ExportFailed)
    reason = f"all steps are done and saved, but the model could not be exported: {news.content.reason}"
    return close(run, Ending(State.FAILED, FAILED, f"{reason}; `brigade export` tries again"))


# --- nodes that go or fail ------------------------------------------------------------------------------------------


def lose_node(run: RunState, news: News, now: float) -> Outcome:
    """React to a node that has gone while stages stand."""
    assert isinstance(news.content, NodeGone)
    assert news.member is not None
    assert run.line is not None
    name, stage = news.member.name, run.stage_of(news.member)
    verb = "has left" if news.content.polite else "is lost"
    if stage is None:
        return [Note(kind="lost", text=f"spare node {name} {verb}: {news.content.reason}", node=name)]
    reason = f"node {run.line.name_stage(stage)} {verb}: {news.content.reason}"
    note = Note(kind="lost", text=reason, node=name, level="warning", cause=reason)
    return _tell_first(run, note, _go_without(run, stage, reason, now))


def _tell_first(run: RunState, note: Note, outcome: Outcome) -> Outcome:
    """Say what has happened before what follows from it; a run that ends at once gives it as its reason."""
    return outcome if run.state.over else [note, *outcome]


def _go_without(run: RunState, stage: int, reason: str, now: float) -> Outcome:
    """End the run without this stage; at its end the run may have all that it needs from it."""
    assert run.line is not None
    dropped = run.line.saves.give_up(stage)
    if run.state is not State.SAVING:
        return [*dropped, *fail(run, reason, now)]
    assert run.ending is not None
    if stage == len(run.line.plan.stages) - 1:
        run.line.rounds.forget_evaluations()
    if dropped and run.ending.state is not State.FAILED:
        run.ending = Ending(State.FAILED, FAILED, f"{reason}, before its part of the last checkpoint was here")
    return [*dropped, *settle(run)]


def close_line(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to a node that wants to go: let the step end, save, and end the run; a spare goes at once."""
    assert isinstance(news.content, Leaving)
    assert news.member is not None
    assert run.line is not None
    stage = run.stage_of(news.member)
    if stage is None:
        return run.membership.left(news.member, news.content.reason)
    return _close_for(run, news.member, f"node {run.line.name_stage(stage)} has left: {news.content.reason}")


def put_out(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to a revoked node: whoever holds a stage sees the step through; anybody else goes at once."""
    assert news.member is not None
    stage = needed_stage(run, news.member)
    if stage is None:
        return run.membership.put_out(news.member)
    assert run.line is not None
    return _close_for(run, news.member, f"node {run.line.name_stage(stage)} was revoked by the owner of the run")


def needed_stage(run: RunState, member: Member) -> int | None:
    """Return the stage that a node holds and that the run needs to end in good order; None when there is none."""
    return run.stage_of(member) if run.state in (State.TRAINING, State.SAVING) else None


def _close_for(run: RunState, member: Member, reason: str) -> Outcome:
    """Let the current step be the last one, because this node goes."""
    assert run.line is not None
    member.leaving = True
    if run.closing is None:
        run.closing = Ending(State.FAILED, FAILED, reason)
    run.line.rounds.closing = True
    if run.state is State.SAVING:
        return [Note(kind="leaving", text=f"{reason}; the run is at its end and saves", node=member.name)]
    text = f"{reason}; saving after this step"
    return [Note(kind="leaving", text=text, node=member.name, level="warning", cause=reason)]


def fail_of_node(run: RunState, news: News, now: float) -> Outcome:
    """React to a node that cannot do what it was told."""
    assert isinstance(news.content, NodeFailed)
    assert news.member is not None
    failed, name, stage = news.content, news.member.name, run.stage_of(news.member)
    who = name if stage is None or run.line is None else run.line.name_stage(stage)
    when = f" in step {failed.step}" if failed.step >= 0 else ""
    reason = f"node {who} failed{when}, {failed.what}: {failed.error}"
    if run.line is None:
        return fail(run, reason, now)
    if stage is None:
        note = Note(kind="failed", text=f"spare {reason}", node=name, level="warning")
        return [note, *run.membership.expel(news.member, "it failed")]  # it would go on to fail
    note = Note(kind="failed", text=reason, node=name, level="warning", cause=reason)
    return _tell_first(run, note, _go_without(run, stage, reason, now))


# --- the owner, the disk, the clock ---------------------------------------------------------------------------------


def end_without_store(run: RunState, news: News, now: float) -> Outcome:
    """React to a ledger that cannot be written: a step that is not on disk was never committed."""
    assert isinstance(news.content, StoreBroke)
    if run.line is not None:
        run.line.storing = None
    return fail(run, f"the ledger of the run cannot be written: {news.content.reason}", now)


def stop_now(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to the owner's wish before anything is trained."""
    early = "" if run.tally.steps_done else " before the first step"
    ending = Ending(State.STOPPED, STOPPED, f"{news.content}{early}")
    return close(run, with_hint(run, ending))


def stop_after_step(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to the owner's wish during training: the next decision is the last one."""
    assert run.line is not None
    if run.closing is not None:
        return []
    run.closing = Ending(State.STOPPED, STOPPED, str(news.content))
    run.line.rounds.closing = True
    text = f"{news.content}: saving after this step (once more to end at once)"
    return [Note(kind="stopping", text=text, cause=str(news.content))]


def abort(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to the owner's impatience."""
    reason = "interrupted twice"
    if run.state.over:
        return [EndRun(exit_code=INTERRUPTED, state=run.state.value, reason=reason, hurry=True)]
    outcome = close(run, with_hint(run, Ending(State.STOPPED, INTERRUPTED, reason)))
    return [*outcome[:-1], EndRun(exit_code=INTERRUPTED, state=State.STOPPED.value, reason=reason, hurry=True)]
