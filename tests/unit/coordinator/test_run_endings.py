"""How runs end: nodes that go, disks that fill, owners that stop; and what is saved before."""

import pytest
from tests.unit.coordinator.scripted_fleet import World, check_ledger
from tests.unit.coordinator.scripted_node import make_spec

from brigade.coordinator.run_events import (
    AbortAsked,
    CheckpointFailed,
    CollectParts,
    ExportFailed,
    ExportModel,
    MakePlan,
    PlanRefused,
    SealCheckpoint,
    StopAsked,
    StoreBroke,
    StoreCommit,
)
from brigade.wire import messages as m
from brigade.wire.encoding import decode, encode
from brigade.wire.message_parts import StageStatistics


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


def test_a_spare_that_fails_is_told_of_once_and_sent_away():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    (spare,) = world.join("cleo")
    for _ in range(5):
        spare.say(m.NodeFailed(stage=-1, step=-1, what="building", error="RuntimeError: boom"))
    assert world.run().exit_code == 0
    assert len([note for note in world.notes if "boom" in note]) == 1
    assert "spare node cleo failed, building: RuntimeError: boom" in world.notes
    assert "spare node cleo is lost: it failed" in world.notes
    assert any("cleo" in line and "xx it failed" in line for line in world.transcript)


def test_the_state_can_be_told_whatever_was_reported():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    most = 2**53 - 1
    world.core.run.tally.tokens_seen = most
    world.core.run.line.totals = [StageStatistics(tokens=most, forward_s=float(most))] * 2
    assert world.run().exit_code == 0
    status = decode(encode(m.StatusTold(status=world.core.status(world.now)))).status
    assert status["tokens"] == status["stages"][0]["tokens"] == most


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
    assert world.end.reason == "stopped by Ctrl-C before the first step"


def test_a_failed_run_that_waits_in_vain_for_a_checkpoint_still_says_where_it_stands():
    world = World(make_spec(max_steps=100))
    ada, _ = world.join("ada", "bob")
    ada.save = lambda order: None
    world.run(until=lambda w: w.core.run.tally.steps_done == 5)
    world.kill_node("bob")
    assert world.run().exit_code == 1
    assert world.end.reason.endswith("; 5 steps are done, none is in a checkpoint")


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
