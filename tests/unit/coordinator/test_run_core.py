"""Whole runs of the core, told as transcripts, and what it does when something goes wrong."""

import pytest
from tests.unit.coordinator.scripted_fleet import OWNER_KEY, World, check_ledger, key_of, make_chain, make_spec

from brigade.coordinator.run_core import EVENT_TRIGGERS, MESSAGE_TRIGGERS, REACTIONS
from brigade.coordinator.run_events import (
    AbortAsked,
    CheckpointFailed,
    CollectParts,
    ConnectionClosed,
    ConnectionOpened,
    ExportFailed,
    ExportModel,
    MakePlan,
    MessageArrived,
    PlanRefused,
    RunEvent,
    SealCheckpoint,
    StopAsked,
    StoreBroke,
    StoreCommit,
    TimePassed,
)
from brigade.coordinator.run_table import TABLE, Reaction, State, Trigger
from brigade.wire import messages as m
from brigade.wire.message_parts import StageStatistics


def test_the_table_has_a_reaction_for_every_state_and_trigger():
    assert set(TABLE) == set(State)
    for state, row in TABLE.items():
        assert set(row) == set(Trigger), state
    assert set(REACTIONS) == set(Reaction)
    used = {reaction for row in TABLE.values() for reaction in row.values()}
    assert used == set(Reaction), "a reaction that nothing leads to"


def test_every_event_and_message_of_a_node_has_a_trigger():
    by_membership = {ConnectionOpened, ConnectionClosed, MessageArrived, TimePassed, StopAsked}
    assert set(EVENT_TRIGGERS) | by_membership == set(RunEvent.__args__)
    assert set(MESSAGE_TRIGGERS) <= set(m.MESSAGES.values())
    triggers = {*EVENT_TRIGGERS.values(), *MESSAGE_TRIGGERS.values()}
    by_core = {Trigger.NODE_JOINED, Trigger.NODE_GONE, Trigger.TIME_PASSED, Trigger.STOP_ASKED}
    assert triggers | by_core == set(Trigger)


def test_a_run_from_the_first_node_to_the_model():
    world = World(make_spec(max_steps=3, save_steps=2, eval_steps=2))
    world.join("ada")
    world.settle()
    world.join("bob")
    world.run()
    assert "\n".join(world.transcript) == TRANSCRIPT.strip("\n")
    assert world.end.exit_code == 0
    assert world.end.state == "finished"
    check_ledger(world.disk, world.spec)
    assert sorted(world.disk.checkpoints) == [2, 3]
    assert world.disk.exports == [3]
    assert sorted(step for step, _ in world.disk.evaluations) == [1, 2]


TRANSCRIPT = """
      -- waiting for nodes (0 of 2)
ada   <- Welcome
      -- node ada joined from tcp://10.0.0.1:5000
      -- waiting for nodes (1 of 2)
bob   <- Welcome
      -- node bob joined from tcp://10.0.0.1:5000
      -- 2 nodes time the model's blocks
ada   <- ProfileBlocks
bob   <- ProfileBlocks
ada   <- MeasureLinks
      -- the nodes time their links
bob   <- MeasureLinks
      -- plan 0: ada (stage 0, blocks 0-1), bob (stage 1, blocks 2-3)
ada   <- LoadStage 0
bob   <- LoadStage 1
      -- training begins at step 0 of 3
ada   <- BeginTraining 0
bob   <- BeginTraining 0
ada   <- ApplyStep 0
bob   <- ApplyStep 0
ada   <- ApplyStep 1 evaluate save
bob   <- ApplyStep 1 evaluate save
      -- the checkpoint of 2 steps is complete (0.0 MB)
ada   <- ApplyStep 2 evaluate save last
bob   <- ApplyStep 2 evaluate save last
      -- the checkpoint of 3 steps is complete (0.0 MB)
      -- all 3 steps are done; the model is in model.safetensors
ada   <- RunEnded
bob   <- RunEnded
"""


def test_nodes_on_one_machine_measure_one_after_the_other():
    world = World(make_spec(nodes=3))
    for name, host in (("ada", "one"), ("bob", "one"), ("cleo", "two")):
        world.node(name, host=host).silent = True
        world.nodes[name].join()
        world.settle()

    def profiling():
        return [n for n, node in world.nodes.items() if any(isinstance(o, m.ProfileBlocks) for o in node.orders)]

    order = next(o for o in world.nodes["ada"].orders if isinstance(o, m.ProfileBlocks))
    assert order.colocated == 2
    assert {c.name for c in order.roster} == {"ada", "bob", "cleo"}
    assert profiling() == ["ada", "cleo"]
    world.nodes["ada"].say(m.Profiled(chain=make_chain()))
    world.settle()
    assert profiling() == ["ada", "bob", "cleo"]
    assert world.core.status(world.now)["waiting_for"] == "bob, cleo to time the blocks (1 of 3 done)"


def test_different_models_end_the_run_and_name_both_nodes():
    world = World()
    world.node("ada").join()
    world.node("bob").fingerprint = "0" * 16
    world.nodes["bob"].join()
    assert world.run().exit_code == 1
    assert "not the same on nodes ada and bob" in world.end.reason
    assert not world.nodes["ada"].ended.success


def test_a_node_that_cannot_be_reached_is_told_plainly():
    world = World()
    world.node("ada").link_errors = {"bob": "connection refused"}
    world.nodes["ada"].join()
    world.join("bob")
    world.run()
    assert "bob takes part but is not reachable at tcp://10.0.0.1:5000 from ada: connection refused" in world.notes


def test_too_few_nodes_give_up_after_the_timeout():
    world = World()
    world.join("ada")
    assert world.run().exit_code == 1
    assert "only 1 of 2 nodes were there after 60 s" in world.end.reason


def test_a_node_lost_before_training_is_replaced_and_nothing_is_lost():
    world = World()
    world.node("ada").join()
    world.node("bob").silent = True  # never answers, never pulses
    world.nodes["bob"].join()
    world.run(until=lambda w: w.core.state is State.GATHERING and len(w.membership.members) == 1)
    world.join("cleo")
    assert world.run().exit_code == 0
    check_ledger(world.disk, world.spec)


def test_a_spare_is_told_nothing_but_the_end_and_may_go():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.state is State.TRAINING)
    spare, gone = world.join("cleo", "dan")
    gone.say(m.Leaving(reason="bored"))
    assert world.run().exit_code == 0
    assert [type(o).__name__ for o in spare.orders if not isinstance(o, m.PulseEcho)] == ["Welcome", "RunEnded"]
    assert "spare node dan has left: bored" in world.notes


def test_a_lost_node_ends_the_run_and_says_where_a_resume_begins():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 5 and w.core.run.tally.sealed_steps == 3)
    world.kill_node("bob")
    assert world.run().exit_code == 1
    assert "node bob (stage 1, blocks 2-3) is lost: its connection is gone" in world.end.reason
    assert "5 steps are done, the newest checkpoint holds 3" in world.end.reason
    assert not world.nodes["ada"].ended.success
    assert world.now < 110.0  # a closed connection costs the short grace, not the silence limit


def test_a_silent_node_is_lost_after_the_limit():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    begun = world.now
    world.nodes["bob"].silent = True
    assert world.run().exit_code == 1
    assert "no heartbeat for 15 s" in world.end.reason
    assert world.now - begun <= 17.0


def test_a_leaving_node_costs_no_step_and_no_timeout():
    world = World(make_spec(save_steps=0, max_steps=100))
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 5)
    begun = world.now
    world.nodes["bob"].say(m.Leaving(reason="its owner wants the machine"))
    assert world.run().exit_code == 1
    assert world.now == begun
    assert "has left: its owner wants the machine" in world.end.reason
    done = world.core.run.tally.steps_done
    assert done in world.disk.checkpoints, "the state as of the last step was saved"
    assert f"all {done} steps done so far are in a checkpoint" in world.end.reason
    check_ledger(world.disk, make_spec(max_steps=100), done)


def test_a_failing_block_reaches_the_screen():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    world.nodes["bob"].say(m.NodeFailed(stage=1, step=2, what="forward of microbatch 1", error="RuntimeError: boom"))
    assert world.run().exit_code == 1
    text = "node bob (stage 1, blocks 2-3) failed in step 2, forward of microbatch 1: RuntimeError: boom"
    assert text in world.end.reason
    assert text in world.nodes["ada"].ended.reason


def test_the_owner_stops_a_run_in_good_order():
    world = World(make_spec(max_steps=100, save_steps=0))
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 5)
    world.handle(StopAsked(reason="stopped by Ctrl-C"))
    assert world.run().exit_code == 3
    done = world.core.run.tally.steps_done
    assert done in (6, 7)
    assert done in world.disk.checkpoints
    assert world.disk.exports == []


def test_a_stop_in_the_last_step_is_a_finish():
    world = World(make_spec(max_steps=3))
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    world.handle(StopAsked(reason="stopped by Ctrl-C"))
    assert world.run().exit_code == 0


@pytest.mark.parametrize("steps", [0, 4])
def test_a_second_interrupt_ends_at_once(steps):
    world = World()
    if steps:
        world.join("ada", "bob")
        world.run(until=lambda w: w.core.run.tally.steps_done == steps)
        world.handle(StopAsked(reason="stopped by Ctrl-C"))
    world.handle(AbortAsked())
    assert world.end.exit_code == 130
    assert world.end.hurry


def test_a_stop_while_nodes_gather_ends_at_once():
    world = World()
    world.join("ada")
    world.handle(StopAsked(reason="stopped by Ctrl-C"))
    assert world.end.exit_code == 3


def test_a_step_that_cannot_be_stored_ends_the_run():
    world = World()
    world.join("ada", "bob")
    world.refuse[StoreCommit] = lambda c: StoreBroke(reason="the disk is full") if c.commit.step == 4 else None
    assert world.run().exit_code == 1
    assert "the ledger of the run cannot be written: the disk is full" in world.end.reason
    assert sorted(world.disk.curve()) == [0, 1, 2, 3]


def test_a_checkpoint_that_fails_does_not_stop_training():
    world = World(make_spec(max_steps=9, save_steps=2))
    world.join("ada", "bob")
    failing = {2, 4}
    world.refuse[SealCheckpoint] = lambda c: (
        CheckpointFailed(steps_done=c.manifest.steps_done, reason="the disk is full")
        if c.manifest.steps_done in failing
        else None
    )
    assert world.run().exit_code == 0
    warnings = [note for note in world.notes if "could not be saved" in note]
    assert warnings == ["the checkpoint of 2 steps could not be saved: the disk is full; training goes on"]


def test_a_run_whose_last_checkpoint_fails_has_failed():
    world = World(make_spec(save_steps=0))
    world.join("ada", "bob")
    world.refuse[CollectParts] = lambda c: CheckpointFailed(steps_done=c.steps_done, reason="the disk is full")
    assert world.run().exit_code == 1
    assert "the checkpoint of 8 steps could not be saved: the disk is full" in world.end.reason


def test_an_export_that_fails_is_told_with_what_to_do():
    world = World()
    world.join("ada", "bob")
    world.refuse[ExportModel] = lambda c: ExportFailed(reason="the disk is full")
    assert world.run().exit_code == 1
    assert "`brigade export` tries again" in world.end.reason


def test_no_plan_ends_the_run_with_the_planner_s_reason():
    world = World()
    world.join("ada", "bob")
    world.refuse[MakePlan] = lambda c: PlanRefused(reason="block 2 needs 3.1 GiB, the largest node (ada) has 2.0 GiB")
    assert world.run().exit_code == 1
    assert "block 2 needs 3.1 GiB" in world.end.reason


def test_a_norm_that_is_not_finite_skips_the_step_everywhere():
    world = World(make_spec(max_steps=3, save_steps=0, eval_steps=0))
    world.finite = lambda step: step != 1
    world.join("ada", "bob")
    assert world.run().exit_code == 0
    for node in world.nodes.values():
        assert [o.skip for o in node.orders if isinstance(o, m.ApplyStep)] == [False, True, False]
    assert "step 1 changed nothing: its gradient was not finite" in world.notes
    assert world.disk.curve()[1].skipped


def test_clipping_uses_the_norm_over_all_stages():
    world = World(make_spec(max_steps=1, max_grad_norm=1.0))
    world.join("ada", "bob")
    world.run()
    # two stages with squared norm 4 each: the norm is sqrt(8)
    order = next(o for o in world.nodes["ada"].orders if isinstance(o, m.ApplyStep))
    assert order.gradient_scale == pytest.approx(1.0 / (8**0.5 + 1e-6), rel=1e-12)
    assert world.disk.curve()[0].gradient_norm == pytest.approx(8**0.5, rel=1e-12)


def test_a_step_on_other_samples_is_the_end_of_that_node():
    world = World()
    _, bob = world.join("ada", "bob")
    train = bob.train

    def cheat(step):
        samples = tuple(int(i) for i in world.batching.sample_ids(step))[1:]
        bob.say(
            m.GradientsReady(
                generation=0,
                step=step,
                stage=1,
                squared_norm=1.0,
                finite=True,
                loss_sum=1.0,
                target_count=7,
                samples=samples,
            )
        )

    bob.train = lambda step: (cheat if step == 1 else train)(step)
    assert world.run().exit_code == 1
    assert "step 1 was trained on 7 samples instead of the 8 that belong to it" in world.end.reason


@pytest.mark.parametrize(
    "message",
    [
        m.GradientsReady(generation=0, step=7, stage=1, squared_norm=1.0, finite=True),
        m.GradientsReady(generation=0, step=2, stage=0, squared_norm=1.0, finite=True),
        m.StepApplied(generation=0, step=2, stage=1, statistics=StageStatistics()),
        m.Evaluated(generation=0, step=1, loss_sum=1.0, target_count=1),
        m.PulseEcho(number=1),
    ],
)
def test_a_node_that_breaks_the_protocol_ends_its_session_only(message):
    world = World(make_spec(eval_steps=0))
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    world._queues.clear()
    bob.say(message)
    world.run()
    assert world.end.exit_code == 1
    assert "it broke the protocol" in world.end.reason
    assert world.nodes["ada"].ended is not None


def test_messages_of_an_earlier_plan_are_dropped():
    world = World()
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    bob.say(m.StepApplied(generation=-1, step=0, stage=0, statistics=StageStatistics()))
    bob.say(m.GradientsReady(generation=-1, step=0, stage=0, squared_norm=1.0, finite=True))
    assert world.run().exit_code == 0
    check_ledger(world.disk, world.spec)


def test_a_slow_step_is_explained_less_and_less_often():
    world = World()
    _, bob = world.join("ada", "bob")
    bob.train = lambda step: None
    world.run(until=lambda w: w.now > 500)
    slow = [note for note in world.notes if note.startswith("step 0 waits")]
    assert len(slow) == 3  # after 30, 90 and 210 s
    assert slow[0] == "step 0 waits for gradients since 30 s or more; bob (stage 1, blocks 2-3): forward"


class Owner:
    name, id, key = "owner", "o" * 16, OWNER_KEY

    def __init__(self):
        self.heard = []

    def take(self, message):
        self.heard.append(message)


def ask(world, message):
    owner = Owner()
    connection = world.open(owner, "control")
    world.handle(MessageArrived(connection=connection, message=message))
    return owner.heard


def test_the_owner_is_told_how_the_run_is():
    import json

    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 5)
    (answer,) = ask(world, m.StatusWanted())
    status = json.loads(json.dumps(answer.status))
    assert status["state"] == "training"
    assert status["step"] == 5
    assert [(row["node"], row["first_block"], row["end_block"]) for row in status["stages"]] == [
        ("ada", 0, 2),
        ("bob", 2, 4),
    ]
    assert status["stages"][0]["wait_share"] == 0.25
    assert status["stages"][0]["link_to"] == "bob"
    assert {node["node"] for node in status["nodes"]} == {"ada", "bob"}
    assert status["events"][-1]["text"]


def test_the_owner_may_stop_and_revoke_and_nobody_else_may():
    world = World(make_spec(max_steps=100))
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    assert ask(world, m.RevokeWanted(node="nobody"))[0].ok is False
    bob.say(m.StopWanted())  # a node is no owner
    assert ask(world, m.StopWanted())[0].ok is True
    world.run()
    assert world.end.exit_code in (1, 3)


def test_a_revoked_node_is_out_and_stays_out():
    world = World()
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    (answer,) = ask(world, m.RevokeWanted(node="bob"))
    assert answer.ok
    assert bob.refused.code == "revoked"
    assert not world.membership._admission.may_knock(key_of("bob"))
    assert world.run().exit_code == 1
    assert "access to this run was revoked" in world.end.reason
