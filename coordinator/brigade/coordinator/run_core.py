"""The life of a run, from the first node to the last checkpoint: what happens and what follows from it.

A core without I/O: `handle` takes one event and returns what to do, in order. Membership sorts out who says what
(`run_membership`), the table says which reaction follows in which state (`run_table`), and the reactions stand in
`run_opening`, `run_training` and `run_closing`.
"""

from collections import deque
from collections.abc import Callable

from brigade.coordinator import run_closing, run_opening, run_training
from brigade.coordinator.run_events import (
    AbortAsked,
    CheckpointFailed,
    CheckpointSealed,
    CommitStored,
    ConnectionClosed,
    ConnectionOpened,
    ExportFailed,
    HangUp,
    MessageArrived,
    ModelExported,
    Note,
    PartsProgressed,
    PartsStored,
    PlanMade,
    PlanRefused,
    RunBegun,
    RunCommand,
    RunEvent,
    Status,
    StopAsked,
    StoreBroke,
    Tell,
    TimePassed,
)
from brigade.coordinator.run_members import NodeGone, NodeJoined
from brigade.coordinator.run_membership import Membership, Outcome
from brigade.coordinator.run_state import SAVING_LIMIT_S, Beginning, News, RunState
from brigade.coordinator.run_table import TABLE, Reaction, State, Trigger
from brigade.coordinator.status import describe_run
from brigade.wire.encoding import Message
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.messages import (
    Done,
    Evaluated,
    GradientsReady,
    Hello,
    Leaving,
    LinksMeasured,
    NodeFailed,
    Profiled,
    Pulse,
    RevokeWanted,
    StageLoaded,
    StateSaved,
    StatusTold,
    StatusWanted,
    StepApplied,
    StopWanted,
)

Respond = Callable[[RunState, News, float], Outcome]


def _ignore(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    return []


REACTIONS: dict[Reaction, Respond] = {
    Reaction.BEGIN: run_opening.begin,
    Reaction.COUNT: run_opening.count_nodes,
    Reaction.KEEP_WAITING: run_opening.keep_waiting,
    Reaction.KEEP_SPARE: run_opening.keep_spare,
    Reaction.REGROUP: run_opening.regroup,
    Reaction.SEE_OFF: run_opening.see_off,
    Reaction.TAKE_PROFILE: run_opening.take_profile,
    Reaction.TAKE_LINKS: run_opening.take_links,
    Reaction.LOAD: run_opening.load_stages,
    Reaction.NO_PLAN: run_opening.end_without_plan,
    Reaction.TAKE_STAGE: run_opening.take_stage,
    Reaction.TAKE_GRADIENTS: run_training.take_gradients,
    Reaction.TAKE_UPDATE: run_training.take_update,
    Reaction.TAKE_EVALUATION: run_training.take_evaluation,
    Reaction.COMMITTED: run_training.go_on_after_commit,
    Reaction.LOOK_AT_CLOCK: run_training.look_at_clock,
    Reaction.LOSE: run_closing.lose_node,
    Reaction.PUT_OUT: run_closing.put_out,
    Reaction.CLOSE_LINE: run_closing.close_line,
    Reaction.FAIL: run_closing.fail_of_node,
    Reaction.STORE_BROKE: run_closing.end_without_store,
    Reaction.TAKE_FILES: run_closing.take_files,
    Reaction.TAKE_PROGRESS: run_closing.take_progress,
    Reaction.TAKE_PARTS: run_closing.take_parts,
    Reaction.SEALED: run_closing.take_checkpoint,
    Reaction.UNSEALED: run_closing.miss_checkpoint,
    Reaction.EXPORTED: run_closing.finish,
    Reaction.NOT_EXPORTED: run_closing.end_without_export,
    Reaction.STOP_NOW: run_closing.stop_now,
    Reaction.STOP_LATER: run_closing.stop_after_step,
    Reaction.ABORT: run_closing.abort,
    Reaction.IGNORE: _ignore,
}

EVENT_TRIGGERS: dict[type, Trigger] = {
    RunBegun: Trigger.RUN_BEGUN,
    PlanMade: Trigger.PLAN_MADE,
    PlanRefused: Trigger.PLAN_REFUSED,
    CommitStored: Trigger.COMMIT_STORED,
    StoreBroke: Trigger.STORE_BROKE,
    PartsProgressed: Trigger.PARTS_PROGRESSED,
    PartsStored: Trigger.PARTS_STORED,
    CheckpointSealed: Trigger.CHECKPOINT_SEALED,
    CheckpointFailed: Trigger.CHECKPOINT_FAILED,
    ModelExported: Trigger.MODEL_EXPORTED,
    ExportFailed: Trigger.EXPORT_FAILED,
    AbortAsked: Trigger.ABORT_ASKED,
}

MESSAGE_TRIGGERS: dict[type, Trigger] = {
    Leaving: Trigger.NODE_LEAVING,
    NodeFailed: Trigger.NODE_FAILED,
    Profiled: Trigger.PROFILED,
    LinksMeasured: Trigger.LINKS_MEASURED,
    StageLoaded: Trigger.STAGE_LOADED,
    GradientsReady: Trigger.GRADIENTS_READY,
    StepApplied: Trigger.STEP_APPLIED,
    Evaluated: Trigger.EVALUATED,
    StateSaved: Trigger.STATE_SAVED,
}


class RunCore:
    """One run; `handle` is the only way in, `run` is there to be looked at."""

    def __init__(self, beginning: Beginning, membership: Membership) -> None:
        self.run = RunState(beginning, membership)

    @property
    def state(self) -> State:
        """Return where the run is."""
        return self.run.state

    def handle(self, event: RunEvent, now: float) -> list[RunCommand]:
        """Take one event and return what to do, in order; `now` is in monotonic seconds."""
        commands: list[RunCommand] = []
        queue = deque(self._sort(event, now))
        while queue:
            item = queue.popleft()
            if isinstance(item, News):
                queue.extendleft(reversed([_as_news(i) for i in self._react(item, now)]))
            else:
                commands.append(item)
                if isinstance(item, Note):
                    self.run.notes.append((now, item))
        return commands

    def next_deadline(self) -> float | None:
        """Return when `TimePassed` is due."""
        run = self.run
        if run.state.over:
            return None
        times = [run.membership.next_deadline(), run.limit.at if run.limit else None, run.watch_at]
        still_since = run.line.saves.still_since() if run.line and run.state is State.TRAINING else None
        times.append(None if still_since is None else still_since + SAVING_LIMIT_S)
        return min((t for t in times if t is not None), default=None)

    def status(self, now: float) -> Status:
        """Return the state of the run as plain JSON."""
        return describe_run(self.run, now)

    # --- inside -------------------------------------------------------------------------------------------------

    def _sort(self, event: RunEvent, now: float) -> list[RunCommand | News]:
        """Let membership look first, and turn what remains into news."""
        membership = self.run.membership
        match event:
            case ConnectionOpened():
                outcome = membership.opened(event, now)
            case ConnectionClosed(connection=connection):
                outcome = membership.closed(connection, now)
            case TimePassed():
                return [*map(_as_news, membership.time_passed(now)), News(Trigger.TIME_PASSED)]
            case MessageArrived(connection=connection, message=message):
                if membership.is_owner(connection):
                    return self._obey(connection, message, now)
                return self._hear(connection, message, now)
            case StopAsked(reason=reason):
                return [News(Trigger.STOP_ASKED, reason)]
            case _:
                return [News(EVENT_TRIGGERS[type(event)], event)]
        return [*map(_as_news, outcome)]

    def _hear(self, connection: int, message: Message, now: float) -> list[RunCommand | News]:
        """Take a message that is not the owner's."""
        membership = self.run.membership
        if isinstance(message, Hello):
            return [*map(_as_news, membership.greeted(connection, message, now))]
        if isinstance(message, Pulse):
            return [*map(_as_news, membership.pulsed(connection, message, now))]
        member, trigger = membership.member_of(connection), MESSAGE_TRIGGERS.get(type(message))
        if member is None:
            return [HangUp(connection=connection, reason="only a node of this run may say that")]
        if trigger is None:
            reason = f"it broke the protocol: {type(message).__name__} is not for the coordinator"
            return [*map(_as_news, membership.expel(member, reason))]
        membership.heard(connection, now)
        return [News(trigger, message, member)]

    def _obey(self, connection: int, message: Message, now: float) -> list[RunCommand | News]:
        """Take a command of the owner."""
        match message:
            case StatusWanted():
                return [Tell(connection=connection, message=StatusTold(status=self.status(now)))]
            case StopWanted(reason=reason):
                over = self.run.state.over
                answer = "the run is over" if over else "the run ends after its current step"
                told = Tell(connection=connection, message=Done(ok=not over, reason=answer))
                return [told, News(Trigger.STOP_ASKED, reason)]
            case RevokeWanted(node=node):
                return self._revoke(connection, node)
        return [HangUp(connection=connection, reason=f"{type(message).__name__} is no command of an owner")]

    def _revoke(self, connection: int, node: str) -> list[RunCommand | News]:
        """Admit a node no longer, and say what follows from that."""
        run, membership = self.run, self.run.membership
        if (known := membership.find(node)) is None:
            return [Tell(connection=connection, message=Done(ok=False, reason=f"no node {node!r} was ever admitted"))]
        member = membership.members.get(known.node_id)
        answer = f"{known.name} ({known.node_id}) is no longer admitted"
        if member is not None and (stage := run_closing.needed_stage(run, member)) is not None:
            saving = "is at its end and saves" if run.state is State.SAVING else "saves after the step under way"
            answer += f"; it holds stage {stage}, so the run {saving} before it ends"
        told = Tell(connection=connection, message=Done(ok=True, reason=answer))
        out = [] if member is None else [News(Trigger.NODE_REVOKED, None, member)]
        return [*map(_as_news, membership.revoke(known)), told, *out]

    def _react(self, news: News, now: float) -> Outcome:
        reaction = TABLE[self.run.state][news.trigger]
        try:
            return REACTIONS[reaction](self.run, news, now)
        except RemoteProtocolError as error:
            if news.member is None:
                raise
            return self.run.membership.expel(news.member, f"it broke the protocol: {error}")


def _as_news(item: object) -> "RunCommand | News":
    match item:
        case NodeJoined(member):
            return News(Trigger.NODE_JOINED, item, member)
        case NodeGone(member):
            return News(Trigger.NODE_GONE, item, member)
    return item  # type: ignore[return-value]  # the rest of an Outcome is commands
