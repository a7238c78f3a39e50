"""Before training nothing is lost when a node goes: the run gathers again."""

from dataclasses import replace

import pytest
from tests.unit.coordinator.scripted_fleet import World, check_ledger
from tests.unit.coordinator.scripted_node import even_plan, make_spec

from brigade.coordinator.run_events import MakePlan, PlanMade
from brigade.coordinator.run_table import State
from brigade.wire import messages as m
from brigade.wire.encoding import decode, encode


def loading_world():
    """A run whose node bob takes for ever to build its stage."""
    world = World()
    _, bob = world.join("ada", "bob")
    bob.on_LoadStage = lambda message: None
    world.run(until=lambda w: w.core.state is State.LOADING and not w._queues)
    return world


def test_a_node_that_is_lost_while_stages_are_built_makes_the_run_gather_again():
    world = loading_world()
    world.kill_node("bob")
    world.run(until=lambda w: w.core.state is not State.LOADING)
    assert world.core.state is State.GATHERING
    assert world.core.run.line is None

    world.nodes["ada"].say(m.StageLoaded(generation=0, stage=0, parameter_count=10))  # it had been built by then
    world.join("carl")
    assert world.run().exit_code == 0
    assert world.disk.generation == 1
    check_ledger(world.disk, world.spec)


def test_a_node_that_leaves_while_stages_are_built_makes_the_run_gather_again():
    world = loading_world()
    world.nodes["ada"].say(m.Leaving(reason="SIGTERM at ada"))
    world.settle()
    assert world.core.state is State.GATHERING


def test_a_spare_that_is_lost_while_stages_are_built_is_not_missed():
    world = loading_world()
    world.join("carl")
    world.settle()
    world.kill_node("carl")
    for _ in range(20):
        world.tick()
    assert world.core.state is State.LOADING
    assert any("carl" in note and "lost" in note for note in world.notes)


@pytest.mark.parametrize("silent_order", ["on_ProfileBlocks", "on_MeasureLinks"])
def test_a_node_more_than_needed_that_is_lost_while_it_is_measured_is_left_out(silent_order):
    world = loading_world()
    _, dave = world.join("carl", "dave")
    world.settle()
    setattr(dave, silent_order, lambda message: None)
    world.kill_node("bob")  # ada, carl and dave gather again, and are measured
    world.run(until=lambda w: w.core.state in (State.PROFILING, State.MEASURING) and not w._queues)
    survey = world.core.run.survey
    world.kill_node("dave")
    assert world.run().exit_code == 0
    assert world.core.run.survey is survey, "what was measured is kept"
    assert [stage.contact.name for stage in world.core.run.line.plan.stages] == ["ada", "carl"]
    check_ledger(world.disk, world.spec)


def test_a_node_that_the_plan_leaves_out_is_told_so_and_why():
    world = World(make_spec(nodes=3))

    def leave_cleo_out(order):
        used = tuple(contact for contact in order.contacts if contact.name != "cleo")
        spares = tuple(contact for contact in order.contacts if contact.name == "cleo")
        plan = even_plan(replace(order, contacts=used))
        return PlanMade(plan=replace(plan, reason="two are as fast", spares=spares))

    world.refuse[MakePlan] = leave_cleo_out
    world.join("ada", "bob", "cleo")
    assert world.run().exit_code == 0
    told = {name: [o for o in node.orders if isinstance(o, m.StandBy)] for name, node in world.nodes.items()}
    assert told == {
        "ada": [],
        "bob": [],
        "cleo": [m.StandBy(generation=0, reason="the plan uses 2 of 3 nodes (two are as fast)")],
    }


def test_a_spare_that_comes_before_the_first_plan_is_told_so_in_a_message_that_can_be_sent():
    world = World()
    for name in ("ada", "bob"):
        world.node(name).silent = True  # never done with its measurements
        world.nodes[name].join()
    world.settle()
    assert world.core.state is State.PROFILING
    (cleo,) = world.join("cleo")
    world.settle()
    (told,) = (order for order in cleo.orders if isinstance(order, m.StandBy))
    assert decode(encode(told)) == told
