"""The life of a node: readable transcripts, and what the coordinator may not send."""

import itertools

import pytest

from brigade.node import node_core as nc
from brigade.node.node_core import MESSAGE_TABLE, NodeCore, State
from brigade.node.stage_error import StageError
from brigade.node.stage_events import StepDecided
from brigade.wire import messages as m
from brigade.wire.costs import ChainReport
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.plan import Plan
from brigade.wire.run_spec import GptSpec, RunSpec, TextData, TrainingSpec
from brigade.wire.validity import check_message

SPEC = RunSpec(name="r", model=GptSpec(), data=TextData(path="x"), training=TrainingSpec(max_steps=1))
WELCOME = m.Welcome(
    run_id="r", spec=SPEC, name="ada", pulse_port=1, bulk_port=2, pulse_interval_s=1.0, silence_limit_s=5.0
)
PROFILE = m.ProfileBlocks(roster=(), colocated=1, inputs=None)
LINKS = m.MeasureLinks(to=(), payload_bytes=10, deadline_s=1.0)
CHAIN = ChainReport(fingerprint="f", blocks=(), boundaries=(), tied=())
ENDED = m.RunEnded(success=True, reason="all steps done")
HELLO = m.Pulse(number=0, incarnation="x")  # a message that only nodes send


def plan(generation: int) -> Plan:
    return Plan(
        run_id="r",
        generation=generation,
        stages=(),
        schedule="1f1b",
        microbatches=1,
        train_samples=1,
        validation_samples=0,
        boundaries=(),
    )


def load(generation: int) -> m.LoadStage:
    return m.LoadStage(plan=plan(generation), stage=0, first_step=0)


def apply(generation: int, step: int = 0) -> m.ApplyStep:
    return m.ApplyStep(
        generation=generation,
        step=step,
        learning_rate=0.1,
        gradient_scale=1.0,
        skip=False,
        evaluate=False,
        save=False,
        last=False,
    )


def told(core: NodeCore, *messages: m.Welcome | object) -> list[nc.NodeCommand]:
    return list(itertools.chain(*(core.handle(nc.Told(message), 0.0) for message in messages)))  # type: ignore[arg-type]


def training(generation: int = 1) -> NodeCore:
    core = NodeCore()
    told(core, WELCOME, load(generation))
    core.handle(nc.StageBuilt(generation, 0, 10), 0.0)
    told(core, m.BeginTraining(generation=generation, step=0))
    assert core.state is State.TRAINING
    return core


def test_from_hello_to_the_end() -> None:
    core = NodeCore()
    assert told(core, WELCOME) == [nc.EnterRun(WELCOME)]
    assert told(core, PROFILE) == [nc.DropStage(), nc.MeasureChain(PROFILE)]
    assert core.handle(nc.ChainMeasured(CHAIN), 0.0) == [nc.Tell(m.Profiled(chain=CHAIN))]
    assert told(core, LINKS) == [nc.TimeLinks(LINKS)]
    assert core.handle(nc.LinksTimed(()), 0.0) == [nc.Tell(m.LinksMeasured(links=()))]
    assert told(core, load(1)) == [nc.DropStage(), nc.BuildStage(load(1))]
    assert core.handle(nc.StageBuilt(1, 0, 10), 0.0) == [
        nc.Tell(m.StageLoaded(generation=1, stage=0, parameter_count=10))
    ]
    assert told(core, m.BeginTraining(generation=1, step=0)) == [nc.BeginStage(0)]
    assert told(core, apply(1)) == [nc.DecideStep(StepDecided(0, 0.1, 1.0, False, False, False, False))]
    assert told(core, ENDED) == [nc.DropStage(), nc.EndDaemon(0, "all steps done")]
    assert told(core, ENDED) == []


def test_a_spare_is_shown_to_the_owner_of_the_machine_with_the_reason() -> None:
    core = NodeCore()
    told(core, WELCOME)
    assert told(core, m.StandBy(generation=1, reason="two nodes suffice")) == [nc.ShowSpare("two nodes suffice")]
    assert told(core, PROFILE, load(2))[-1] == nc.BuildStage(load(2)), "it can be used later"


def test_a_stage_that_was_built_for_an_older_plan_is_not_reported() -> None:
    core = NodeCore()
    told(core, WELCOME, load(1), load(2))
    assert core.handle(nc.StageBuilt(1, 0, 10), 0.0) == []
    assert core.state is State.LOADING


@pytest.mark.parametrize("built", [False, True])
def test_a_stage_is_dropped_when_the_run_gathers_again(built: bool) -> None:
    core = NodeCore()
    told(core, WELCOME, load(1))
    if built:
        core.handle(nc.StageBuilt(1, 0, 10), 0.0)
    assert told(core, PROFILE) == [nc.DropStage(), nc.MeasureChain(PROFILE)]
    assert core.handle(nc.StageBuilt(1, 0, 10), 0.0) == []
    assert core.state is State.MEASURING


def test_decisions_of_another_generation_are_dropped() -> None:
    assert told(training(2), apply(1)) == []


@pytest.mark.parametrize("exit_code", [0, 130])
def test_leaving_in_training_waits_for_the_coordinator_and_the_second_time_for_nobody(exit_code: int) -> None:
    core = training()
    assert core.handle(nc.LeaveAsked("SIGTERM", exit_code), 0.0) == [nc.Tell(m.Leaving(reason="SIGTERM"))]
    assert told(core, apply(1)) != []  # the step goes on
    patient, hasty = core, training()
    ended = told(patient, m.RunEnded(success=False, reason="ada left"))
    assert ended[-1] == nc.EndDaemon(exit_code, "ada left")
    hasty.handle(nc.LeaveAsked("SIGTERM", exit_code), 0.0)
    assert hasty.handle(nc.LeaveAsked("SIGTERM", exit_code), 0.0)[-1].exit_code == exit_code  # type: ignore[union-attr]


def test_leaving_outside_training_is_told_and_done_at_once() -> None:
    core = NodeCore()
    told(core, WELCOME)
    commands = core.handle(nc.LeaveAsked("SIGINT", 130), 0.0)
    assert commands[0] == nc.Tell(m.Leaving(reason="SIGINT"))
    assert commands[-1] == nc.EndDaemon(130, "left: SIGINT")


def test_a_lost_coordinator_is_looked_for_without_a_stage() -> None:
    core = training()
    assert core.handle(nc.CoordinatorLost("silent"), 0.0) == [nc.DropStage(), nc.Rejoin("silent")]
    assert told(core, WELCOME) == [nc.EnterRun(WELCOME)]
    assert told(core, load(2))[-1] == nc.BuildStage(load(2))


def test_a_failure_is_reported_once_and_later_decisions_are_ignored() -> None:
    core = training()
    commands = core.handle(nc.WorkFailed(0, 3, "forward", "boom"), 0.0)
    assert commands == [nc.Tell(m.NodeFailed(stage=0, step=3, what="forward", error="boom")), nc.DropStage()]
    assert told(core, apply(1, 3)) == []
    assert told(core, m.RunEnded(success=False, reason="ada failed"))[-1] == nc.EndDaemon(1, "ada failed")


def test_a_failure_that_this_node_has_shown_is_not_told_again_at_the_end() -> None:
    core = training()
    core.handle(nc.WorkFailed(0, 3, "forward", "boom"), 0.0)
    reason = "node ada (stage 0, block 0) failed in step 3, forward: boom; 3 steps are done, none is in a checkpoint"
    (*_, end) = told(core, m.RunEnded(success=False, reason=reason))
    assert end == nc.EndDaemon(1, "the run has ended because of that; 3 steps are done, none is in a checkpoint")


@pytest.mark.parametrize(
    ("stage", "step", "text"),
    [
        (-1, -1, "measuring failed: boom"),
        (2, -1, "stage 2 failed, measuring: boom"),
        (2, 7, "stage 2 failed in step 7, measuring: boom"),
    ],
)
def test_a_failure_outside_a_stage_names_none(stage: int, step: int, text: str) -> None:
    assert str(StageError(stage=stage, step=step, what="measuring", error="boom")) == text


@pytest.mark.parametrize(
    ("ended", "exit_code"), [({"success": True}, 0), ({"success": False}, 1), ({"success": False, "stopped": True}, 3)]
)
def test_a_node_ends_as_its_run_has_ended(ended: dict[str, bool], exit_code: int) -> None:
    message = m.RunEnded(reason="why", **ended)
    assert told(training(), message)[-1] == nc.EndDaemon(exit_code, "why")


def test_a_refusal_ends_with_its_reason() -> None:
    refused = m.Refused(code="bad_proof", reason="the invite is of another run")
    assert told(NodeCore(), refused)[-1] == nc.EndDaemon(
        2, "the coordinator refused this node: the invite is of another run"
    )


@pytest.mark.parametrize("state", list(State))
def test_what_no_state_allows_is_the_coordinators_fault(state: State) -> None:
    core = NodeCore()
    core.state = state
    messages = [WELCOME, PROFILE, LINKS, load(5), m.BeginTraining(generation=1, step=0), apply(1), ENDED, HELLO]
    for message in messages:
        core.state = state
        if state is State.OVER:
            assert told(core, message) == []
        elif (state, type(message)) not in MESSAGE_TABLE:
            with pytest.raises(RemoteProtocolError, match=f"to a node that is {state.value}"):
                told(core, message)


def test_an_older_plan_cannot_come_after_a_newer_one() -> None:
    core = training(3)
    with pytest.raises(RemoteProtocolError, match="plan 3 came after plan 3"):
        told(core, load(3))


def test_an_error_is_as_long_as_a_message_may_be() -> None:
    error = StageError(stage=0, step=0, what="w" * 10**6, error="\x1b" * 10**6)
    check_message(m.NodeFailed(stage=0, step=0, what=error.what, error=error.error))
