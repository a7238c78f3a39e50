"""The states of a run, what can happen in each, and how it reacts: a table without a gap.

`run_core` has a method for each reaction; a test holds the two together.
"""

from enum import Enum


class State(Enum):
    """Where a run is."""

    GATHERING = "gathering"  # too few nodes
    PROFILING = "profiling"  # nodes time their blocks, one at a time on each machine
    MEASURING = "measuring"  # nodes time their links, in rounds
    PLANNING = "planning"
    LOADING = "loading"  # stages are built
    TRAINING = "training"
    SAVING = "saving"  # no step will follow; the last checkpoint and the export are on their way
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        """Tell whether nothing more will happen."""
        return self in (State.FINISHED, State.FAILED, State.STOPPED)


class Trigger(Enum):
    """What can happen; membership has already sorted out who says it."""

    RUN_BEGUN = "the coordinator listens"
    NODE_JOINED = "a node was welcomed"
    NODE_GONE = "a node is lost, has left or was put out"
    NODE_REVOKED = "the owner wants a node to take part no longer"
    NODE_LEAVING = "a node wants to go in good order"
    NODE_FAILED = "a node cannot do what it was told"
    PROFILED = "a node has timed its blocks"
    LINKS_MEASURED = "a node has timed its links"
    PLAN_MADE = "the planner has a plan"
    PLAN_REFUSED = "the planner has none"
    STAGE_LOADED = "a stage stands"
    GRADIENTS_READY = "a stage is through with a step"
    STEP_APPLIED = "a stage has made its update"
    EVALUATED = "the held-out loss is known"
    COMMIT_STORED = "a step is safe on disk"
    STORE_BROKE = "the ledger cannot be written"
    STATE_SAVED = "a stage announces its files"
    PARTS_PROGRESSED = "some files have come in"
    PARTS_STORED = "all files of a stage are here"
    CHECKPOINT_SEALED = "a checkpoint is complete"
    CHECKPOINT_FAILED = "a checkpoint cannot be completed"
    MODEL_EXPORTED = "the merged model is written"
    EXPORT_FAILED = "the merged model cannot be written"
    STOP_ASKED = "the owner wants the run to end in good order"
    ABORT_ASKED = "the owner wants the run to end now"
    TIME_PASSED = "a deadline has come"


class Reaction(Enum):
    """The name of the method of `RunCore` that reacts."""

    BEGIN = "begin"
    COUNT = "count_nodes"  # enough to begin?
    KEEP_SPARE = "keep_spare"
    REGROUP = "regroup"  # back to gathering: nothing is lost before training
    LOSE = "lose_node"
    SEE_OFF = "see_off"  # let it go, with whatever follows from that
    PUT_OUT = "put_out"  # a revoked node: at once, or after the current step if it holds a stage
    CLOSE_LINE = "close_line"  # end after the current step, with a checkpoint
    FAIL = "fail_of_node"
    TAKE_PROFILE = "take_profile"
    TAKE_LINKS = "take_links"
    LOAD = "load_stages"
    NO_PLAN = "end_without_plan"
    TAKE_STAGE = "take_stage"
    TAKE_GRADIENTS = "take_gradients"
    TAKE_UPDATE = "take_update"
    TAKE_EVALUATION = "take_evaluation"
    COMMITTED = "go_on_after_commit"
    STORE_BROKE = "end_without_store"
    TAKE_FILES = "take_files"
    TAKE_PROGRESS = "take_progress"
    TAKE_PARTS = "take_parts"
    SEALED = "take_checkpoint"
    UNSEALED = "miss_checkpoint"
    EXPORTED = "finish"
    NOT_EXPORTED = "end_without_export"
    STOP_NOW = "stop_now"
    STOP_LATER = "stop_after_step"
    ABORT = "abort"
    KEEP_WAITING = "keep_waiting"
    LOOK_AT_CLOCK = "look_at_clock"
    IGNORE = "ignore"  # late news of something that no longer matters


def _row(**reactions: Reaction) -> dict[Trigger, Reaction]:
    """Return a full row: what is not named is late news."""
    row = dict.fromkeys(Trigger, Reaction.IGNORE)
    row |= {Trigger[name.upper()]: reaction for name, reaction in reactions.items()}
    return row


_R = Reaction
_ALWAYS = {
    "store_broke": _R.STORE_BROKE,
    "abort_asked": _R.ABORT,
    "time_passed": _R.LOOK_AT_CLOCK,
    "node_joined": _R.KEEP_SPARE,
    "node_revoked": _R.PUT_OUT,
}
_BEFORE_TRAINING = _ALWAYS | {
    "node_gone": _R.REGROUP,
    "node_leaving": _R.SEE_OFF,
    "node_failed": _R.FAIL,
    "stop_asked": _R.STOP_NOW,
}
_LINE_STANDS = _ALWAYS | {
    "node_leaving": _R.CLOSE_LINE,
    "node_gone": _R.LOSE,
    "node_failed": _R.FAIL,
    "evaluated": _R.TAKE_EVALUATION,
    "commit_stored": _R.COMMITTED,
    "state_saved": _R.TAKE_FILES,
    "parts_progressed": _R.TAKE_PROGRESS,
    "parts_stored": _R.TAKE_PARTS,
    "checkpoint_sealed": _R.SEALED,
    "checkpoint_failed": _R.UNSEALED,
}

TABLE: dict[State, dict[Trigger, Reaction]] = {
    State.GATHERING: _row(
        **_BEFORE_TRAINING | {"node_joined": _R.COUNT, "node_gone": _R.COUNT, "time_passed": _R.KEEP_WAITING},
        run_begun=_R.BEGIN,
    ),
    State.PROFILING: _row(**_BEFORE_TRAINING, profiled=_R.TAKE_PROFILE),
    State.MEASURING: _row(**_BEFORE_TRAINING, links_measured=_R.TAKE_LINKS),
    State.PLANNING: _row(**_BEFORE_TRAINING, plan_made=_R.LOAD, plan_refused=_R.NO_PLAN),
    State.LOADING: _row(**_BEFORE_TRAINING, stage_loaded=_R.TAKE_STAGE),
    State.TRAINING: _row(
        **_LINE_STANDS,
        stop_asked=_R.STOP_LATER,
        gradients_ready=_R.TAKE_GRADIENTS,
        step_applied=_R.TAKE_UPDATE,
    ),
    State.SAVING: _row(
        **_LINE_STANDS,
        model_exported=_R.EXPORTED,
        export_failed=_R.NOT_EXPORTED,
    ),
    State.FINISHED: _row(abort_asked=_R.ABORT),
    State.FAILED: _row(abort_asked=_R.ABORT),
    State.STOPPED: _row(abort_asked=_R.ABORT),
}
