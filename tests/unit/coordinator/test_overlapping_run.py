"""A run whose steps overlap: nodes report a step before they have heard about the one before."""

from dataclasses import replace

import pytest
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import ScriptedNode, even_plan, make_spec

from brigade.coordinator.run_events import MakePlan, PlanMade, StopAsked
from brigade.wire import messages as m

VERSIONS = 3


class EagerNode(ScriptedNode):
    """It is through with as many steps as it has versions before it hears about the first."""

    def on_BeginTraining(self, message):
        for step in range(message.step, message.step + VERSIONS):
            self.begin(step)

    def begin(self, step):
        if step < self.world.spec.training.max_steps:
            self.train(step)

    def on_ApplyStep(self, order):
        super().on_ApplyStep(replace(order, last=True))  # do not begin the next one as a patient node would
        if not order.last:
            self.begin(order.step + VERSIONS)


def make_world(seed, **training):
    world = World(make_spec(**training), seed=seed)
    overlapping = {"mode": "async", "versions": VERSIONS, "schedule": "ls-1f1b"}
    world.refuse[MakePlan] = lambda order: PlanMade(plan=replace(even_plan(order), **overlapping))
    for name in ("ada", "bob"):
        world.nodes[name] = EagerNode(world, name)
        world.nodes[name].join()
    return world


@pytest.mark.parametrize("seed", range(12))
def test_every_step_is_committed_once_and_in_order(seed):
    world = make_world(seed)
    assert world.run().exit_code == 0, world.transcript[-10:]
    assert [step for step, _ in world.disk.commits] == list(range(8))
    assert sorted(step for step, _ in world.disk.evaluations) == [3, 7]
    assert world.disk.exports == [8]
    orders = [order.step for order in world.nodes["ada"].orders if isinstance(order, m.ApplyStep)]
    assert orders == list(range(8))


@pytest.mark.parametrize("seed", range(12))
def test_a_stop_drops_what_was_begun_beyond_the_last_step(seed):
    world = make_world(seed)
    world.run(until=lambda w: len(w.disk.commits) >= 2)
    world.handle(StopAsked(reason="enough"))
    assert world.run().exit_code == 3, world.transcript[-10:]
    steps = [step for step, _ in world.disk.commits]
    assert steps == list(range(len(steps)))
    assert len(steps) < 8
    assert max(world.disk.checkpoints) == len(steps)


@pytest.mark.parametrize("seed", range(6))
def test_a_lost_node_ends_the_run_with_what_is_committed(seed):
    world = make_world(seed)
    world.run(until=lambda w: len(w.disk.commits) >= 4)
    world.kill_node("bob")
    assert world.run().exit_code == 1
    steps = [step for step, _ in world.disk.commits]
    assert steps == list(range(len(steps)))
