"""Whole runs of the core, told as transcripts, and how they begin."""

from tests.unit.coordinator.scripted_fleet import World, check_ledger
from tests.unit.coordinator.scripted_node import make_chain, make_spec

from brigade.coordinator.run_core import EVENT_TRIGGERS, MESSAGE_TRIGGERS, REACTIONS
from brigade.coordinator.run_events import (
    ConnectionClosed,
    ConnectionOpened,
    MessageArrived,
    RunEvent,
    StopAsked,
    TimePassed,
)
from brigade.coordinator.run_table import TABLE, Reaction, State, Trigger
from brigade.wire import messages as m


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
    by_core = {
        Trigger.NODE_JOINED, Trigger.NODE_GONE, Trigger.NODE_REVOKED, Trigger.TIME_PASSED, Trigger.STOP_ASKED,
    }  # fmt: skip
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
      -- waiting for nodes (0 of 2, giving up in 1:00)
ada   <- Welcome
      -- node ada joined from tcp://10.0.0.1:5000
      -- waiting for nodes (1 of 2, giving up in 1:00)
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


def test_a_run_that_waits_says_so_rarely():
    world = World(make_spec(gather_timeout_s=600.0))
    world.run()
    waits = [note for note in world.notes if note.startswith("waiting")]
    assert waits == [f"waiting for nodes (0 of 2, giving up in {left})" for left in ("10:00", "9:00", "7:00", "3:00")]


def test_a_node_lost_before_training_is_replaced_and_nothing_is_lost():
    world = World()
    world.node("ada").join()
    world.node("bob").silent = True  # never answers, never pulses
    world.nodes["bob"].join()
    world.run(until=lambda w: w.core.state is State.GATHERING and len(w.membership.members) == 1)
    world.join("cleo")
    assert world.run().exit_code == 0
    check_ledger(world.disk, world.spec)


def test_a_spare_is_told_that_it_is_one_and_may_go():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.state is State.TRAINING)
    spare, gone = world.join("cleo", "dan")
    gone.say(m.Leaving(reason="bored"))
    assert world.run().exit_code == 0
    assert [type(o).__name__ for o in spare.orders if not isinstance(o, m.PulseEcho)] == [
        "Welcome",
        "StandBy",
        "RunEnded",
    ]
    assert "spare node dan has left: bored" in world.notes
