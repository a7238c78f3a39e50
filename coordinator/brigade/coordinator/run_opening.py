"""How a run begins: gathers nodes, has them measured, has a plan made, and has its stages built.

Reactions of the run core, see `run_table`. Before training nothing is lost when a node goes: the run gathers again.
"""

from collections.abc import Iterable

from brigade.coordinator.checkpoint_manifest import files_of_blocks
from brigade.coordinator.run_closing import close, fail, settle
from brigade.coordinator.run_events import MakePlan, Note, OfferFiles, PlanMade, PlanRefused, StorePlan, Tell
from brigade.coordinator.run_members import Member, NodeGone, NodeJoined
from brigade.coordinator.run_membership import Outcome
from brigade.coordinator.run_state import Ending, Limit, News, RunState
from brigade.coordinator.run_survey import PROFILE_LIMIT_S, Survey, choose_candidates
from brigade.coordinator.run_table import State
from brigade.coordinator.run_training import begin_training, look_at_clock
from brigade.coordinator.wording import counted, show_duration
from brigade.partition.prediction import PLAIN
from brigade.wire.errors import PlanError
from brigade.wire.message_parts import FileSpec
from brigade.wire.messages import Leaving, LinksMeasured, LoadStage, Profiled, StageLoaded, StandBy

FIRST_REMINDER_S = 60.0

# --- gathering ------------------------------------------------------------------------------------------------------


def begin(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to the first moment: wait for nodes, or see that nothing is left to train."""
    if run.beginning.first_step >= run.spec.training.max_steps:
        run.state = State.SAVING
        run.ending = Ending(State.FINISHED, 0, f"all {counted(run.beginning.first_step, 'step')} were done already")
        run.membership.close_door(run.ending.reason)
        return settle(run)
    return _gather(run, now)


def _gather(run: RunState, now: float) -> Outcome:
    run.state = State.GATHERING
    run.survey = run.line = None
    run.limit = Limit(now + run.spec.pipeline.gather_timeout_s, "")
    run.watch_at, run.watch_interval_s = now, FIRST_REMINDER_S
    return _count(run, now)


def _count(run: RunState, now: float) -> Outcome:
    present, needed = len(run.membership.members), run.spec.pipeline.nodes
    limit_s = run.spec.pipeline.gather_timeout_s
    assert run.limit is not None
    run.limit = Limit(run.limit.at, f"only {present} of {needed} nodes were there after {limit_s:.0f} s")
    if present < needed:
        return [_tell_waiting(run, now)]
    run.state = State.PROFILING
    run.watch_at = None
    members = run.membership.members
    run.survey = Survey(choose_candidates(members.values()), run.beginning.inputs, run.beginning.costs)
    chosen = len(run.survey.members)
    commands: Outcome = [*run.survey.begin()]
    if chosen < present:
        ids = {member.node_id for member in run.survey.members}
        left_out = [member for member in members.values() if member.node_id not in ids]
        commands += _leave_out(run, left_out, f"{chosen} of {present} nodes are enough to choose from")
    _await_survey(run, now, PROFILE_LIMIT_S)
    text = f"{counted(chosen, 'node')} {'times' if chosen == 1 else 'time'} the model's blocks"
    if run.beginning.costs is not None:
        text = f"what blocks and links cost stands in {run.beginning.costs.source}"
    return [Note(kind="profiling", text=text), *commands]


def _tell_waiting(run: RunState, now: float) -> Note:
    """Say whom the run waits for and until when, and when to say it again: less and less often."""
    assert run.limit is not None
    if run.watch_at is not None and now >= run.watch_at:
        run.watch_at = now + run.watch_interval_s
        run.watch_interval_s *= 2
    present, left = len(run.membership.members), show_duration(run.limit.at - now)
    text = f"waiting for nodes ({present} of {run.spec.pipeline.nodes}, giving up in {left})"
    return Note(kind="waiting", text=text)


def keep_waiting(run: RunState, news: News, now: float) -> Outcome:
    """React to a deadline while the run gathers: give up, or say again that it waits."""
    if run.limit is not None and now < run.limit.at and run.watch_at is not None and now >= run.watch_at:
        return [_tell_waiting(run, now)]
    return look_at_clock(run, news, now)


def count_nodes(run: RunState, news: News, now: float) -> Outcome:
    """React to a node that came or went while the run gathers."""
    return [_tell_of(news), *_count(run, now)]


def keep_spare(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to a node that came when the others had begun."""
    assert news.member is not None
    text = f"node {news.member.name} joined as a spare: the run had begun"
    coming = max(0, run.generation)  # the first plan may still be in the making
    told = StandBy(generation=coming, reason="the run had begun when it joined")
    note = Note(kind="joined", text=text, node=news.member.name)
    return [note, Tell(connection=news.member.control, message=told)]


def regroup(run: RunState, news: News, now: float) -> Outcome:
    """React to a node that went before training: go on without it if enough are left that measure, or gather again."""
    assert news.member is not None
    assert run.survey is not None
    told: Outcome = [_tell_of(news)]
    if run.line is not None:
        return told if run.stage_of(news.member) is None else [*told, *_gather(run, now)]
    if all(member is not news.member for member in run.survey.members):
        return told
    enough = len(run.membership.members) >= run.spec.pipeline.nodes and len(run.survey.members) > 1
    if not enough:
        return [*told, *_gather(run, now)]
    told += run.survey.drop(news.member)
    match run.state:
        case State.PROFILING:
            return [*told, *_after_profile(run, now)]
        case State.MEASURING:
            return [*told, *_after_links(run, now)]
    return [*told, *_plan(run)]  # the planner's answer was for other nodes


def see_off(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to a node that wants to go before training: it may."""
    assert isinstance(news.content, Leaving)
    assert news.member is not None
    return run.membership.left(news.member, news.content.reason)


def _tell_of(news: News) -> Note:
    match news.content:
        case NodeJoined(member):
            return Note(kind="joined", text=f"node {member.name} joined from {member.endpoint}", node=member.name)
        case NodeGone(member, reason, polite):
            verb = "has left" if polite else "is lost"
            return Note(kind="lost", text=f"node {member.name} {verb}: {reason}", node=member.name, level="warning")
    raise AssertionError(f"no news of a node: {news}")


# --- measuring ------------------------------------------------------------------------------------------------------


def take_profile(run: RunState, news: News, now: float) -> Outcome:
    """React to Profiled."""
    assert isinstance(news.content, Profiled)
    assert news.member is not None
    assert run.survey is not None
    try:
        outcome: Outcome = [*run.survey.take_profile(news.member, news.content.chain)]
    except PlanError as error:
        return fail(run, str(error), now)
    return [*outcome, *_after_profile(run, now)]


def _after_profile(run: RunState, now: float) -> Outcome:
    """Let links be timed if all blocks are; wait for the rest otherwise."""
    assert run.survey is not None
    if not run.survey.profiled:
        _await_survey(run, now, PROFILE_LIMIT_S)
        return []
    run.state = State.MEASURING
    slower = run.survey.keep_fastest()
    kept = len(run.survey.members)
    outcome = _leave_out(run, slower, f"the {kept} fastest of {kept + len(slower)} nodes are enough to choose from")
    outcome += run.survey.begin_links()
    if run.survey.linked:
        return [*outcome, *_plan(run)]
    _await_survey(run, now, run.survey.links_limit_s)
    return [*outcome, Note(kind="measuring", text="the nodes time their links")]


def take_links(run: RunState, news: News, now: float) -> Outcome:
    """React to LinksMeasured."""
    assert isinstance(news.content, LinksMeasured)
    assert news.member is not None
    assert run.survey is not None
    outcome: Outcome = [*run.survey.take_links(news.member, news.content)]
    return [*outcome, *_after_links(run, now)]


def _after_links(run: RunState, now: float) -> Outcome:
    """Let a plan be made if all links are timed; wait for the rest otherwise."""
    assert run.survey is not None
    if run.survey.linked:
        return _plan(run)
    _await_survey(run, now, run.survey.links_limit_s)
    return []


def _leave_out(run: RunState, members: Iterable[Member], reason: str) -> Outcome:
    """Tell nodes that are not measured that they are spares."""
    told = StandBy(generation=run.generation, reason=reason)
    return [Tell(connection=member.control, message=told) for member in members]


def _await_survey(run: RunState, now: float, limit_s: float) -> None:
    assert run.survey is not None
    run.limit = Limit(now + limit_s, f"waited {limit_s:.0f} s in vain for {run.survey.waiting_for}")


# --- planning -------------------------------------------------------------------------------------------------------


def _plan(run: RunState) -> Outcome:
    survey = run.survey
    assert survey is not None
    run.state = State.PLANNING
    run.limit = None
    run.generation += 1
    first = survey.chains[survey.members[0].node_id]
    train, validation, costs = run.beginning.train_samples, run.beginning.validation_samples, run.beginning.costs
    contacts = tuple(member.contact for member in survey.members)
    return [
        MakePlan(
            generation=run.generation,
            contacts=contacts,
            devices={
                member.node_id: member.device if costs is None else costs.device(member.name, member.device)
                for member in survey.members
            },
            chains=dict(survey.chains),
            links=dict(survey.links),
            train_samples=train if train is not None else first.train_samples or 0,
            validation_samples=validation if validation is not None else first.validation_samples or 0,
            surroundings=PLAIN if costs is None else costs.surroundings(contacts),
        )
    ]


def end_without_plan(run: RunState, news: News, now: float) -> Outcome:  # noqa: ARG001 - one signature for all reactions
    """React to PlanRefused."""
    assert isinstance(news.content, PlanRefused)
    return close(run, Ending(State.FAILED, 1, f"no plan: {news.content.reason}"))


# --- loading --------------------------------------------------------------------------------------------------------


def load_stages(run: RunState, news: News, now: float) -> Outcome:
    """React to PlanMade: every node builds its stage."""
    assert isinstance(news.content, PlanMade)
    plan = news.content.plan
    if plan.generation != run.generation:
        return []  # of nodes that have gone since
    checkpoint, data = run.beginning.checkpoint, run.beginning.data
    if plan.train_samples < 1:
        return fail(run, "the training data holds no samples", now)
    if checkpoint is not None and checkpoint.blocks != plan.stages[-1].end_block:
        blocks = plan.stages[-1].end_block
        return fail(run, f"the checkpoint has {checkpoint.blocks} blocks, the model has {blocks}", now)
    run.line = run.make_line(plan, run.beginning.first_step)
    run.state = State.LOADING
    offered: tuple[FileSpec, ...] = () if data is None else (data,)
    outcome: Outcome = [StorePlan(plan=plan, attempt=run.attempt), Note(kind="planned", text=_describe(run))]
    orders: Outcome = []
    for index, stage in enumerate(plan.stages):
        files = () if checkpoint is None else files_of_blocks(checkpoint, stage.first_block, stage.end_block)
        offered += files
        order = LoadStage(
            plan=plan,
            stage=index,
            first_step=run.beginning.first_step,
            checkpoint=files,
            data=data if index == 0 else None,
        )
        member = run.membership.members[stage.contact.node_id]
        orders.append(Tell(connection=member.control, message=order))
    offer = OfferFiles(files=tuple({file.name: file for file in offered}.values()))
    return [*outcome, offer, *orders, *_stand_by(run)]


def _stand_by(run: RunState) -> Outcome:
    """Tell those whom the plan leaves out."""
    assert run.line is not None
    plan, members = run.line.plan, run.membership.members
    reason = f"the plan uses {len(plan.stages)} of {counted(len(plan.stages) + len(plan.spares), 'node')}"
    told = StandBy(generation=plan.generation, reason=reason + (f" ({plan.reason})" if plan.reason else ""))
    spares = [members[contact.node_id] for contact in plan.spares if contact.node_id in members]
    return [Tell(connection=member.control, message=told) for member in spares]


def take_stage(run: RunState, news: News, now: float) -> Outcome:
    """React to StageLoaded; when all stages stand, training begins."""
    assert isinstance(news.content, StageLoaded)
    assert news.member is not None
    assert run.line is not None
    loaded = news.content
    if loaded.generation != run.generation or run.stage_of(news.member) != loaded.stage:
        return []
    run.line.parameters[loaded.stage] = loaded.parameter_count
    if len(run.line.parameters) < len(run.line.plan.stages):
        return []
    return begin_training(run, now)


def _describe(run: RunState) -> str:
    assert run.line is not None
    plan = run.line.plan
    stages = ", ".join(run.line.name_stage(index) for index in range(len(plan.stages)))
    spares = f"; spare: {', '.join(spare.name for spare in plan.spares)}" if plan.spares else ""
    return f"plan {plan.generation}: {stages}{spares}" + (f" ({plan.reason})" if plan.reason else "")
