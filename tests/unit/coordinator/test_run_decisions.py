"""What is decided about a step, who may say what about it, and what the owner hears."""

from dataclasses import replace

import msgspec
import pytest
from tests.unit.coordinator.scripted_fleet import World, check_ledger
from tests.unit.coordinator.scripted_node import OWNER_KEY, ScriptedNode, even_plan, key_of, make_spec

from brigade.coordinator.run_events import (
    MakePlan,
    MessageArrived,
    PlanMade,
)
from brigade.wire import messages as m
from brigade.wire.message_parts import StageStatistics
from brigade.wire.run_spec import ArrayData


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
    assert (status["unit"], status["waiting_for"]) == ("tokens", "")
    assert status["stages"][1]["back_link_bytes_per_s"] == 1e6
    assert status["limited_by"] == ""  # these nodes compute in no time
    assert world.core.run.line.steps == 5


def test_a_step_that_takes_long_says_whom_it_waits_for_and_a_usual_one_does_not():
    world = World(make_spec(max_steps=100))
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 5)
    bob.on_ApplyStep = lambda order: None
    for _ in range(3):
        world.settle()
        world.tick()
    assert world.core.status(world.now)["waiting_for"] == ""
    for _ in range(3):
        world.tick()
    assert world.core.status(world.now)["waiting_for"] == "updates of bob (stage 1, blocks 2-3)"


def test_status_compares_the_predicted_step_with_the_measured_one():
    world = World()
    world.refuse[MakePlan] = lambda order: PlanMade(plan=replace(even_plan(order), period_s=0.25))  # 2 microbatches
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    status = world.core.status(world.now)
    assert (status["predicted_step_s"], status["usual_step_s"]) == (0.5, 0.0)


def test_what_is_not_text_is_counted_in_samples():
    spec = msgspec.structs.replace(make_spec(), data=ArrayData(path="x.npz"))
    world = World(spec)
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    tally = world.core.run.tally
    tally.durations_s = [1.0, 3.0]
    assert tally.throughput(spec) == (4.0, "samples")
    assert tally.throughput(make_spec())[1] == "tokens"


def test_the_owner_may_stop_and_revoke_and_nobody_else_may():
    world = World(make_spec(max_steps=100))
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    assert ask(world, m.RevokeWanted(node="nobody"))[0].ok is False
    bob.say(m.StopWanted())  # a node is no owner
    assert ask(world, m.StopWanted())[0].ok is True
    world.run()
    assert world.end.exit_code in (1, 3)


def test_a_revoked_node_that_holds_a_stage_sees_the_step_through_and_the_run_is_saved():
    world = World(make_spec(save_steps=0, max_steps=100))
    _, bob = world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    (answer,) = ask(world, m.RevokeWanted(node="bob"))
    assert answer.ok
    assert answer.reason.endswith(
        "no longer admitted; it holds stage 1, so the run saves after the step under way before it ends"
    )
    assert not world.membership._admission.may_knock(key_of("bob"))
    assert world.run().exit_code == 1
    done = world.core.run.tally.steps_done
    assert done in world.disk.checkpoints
    assert f"(stage 1, blocks 2-3) was revoked by the owner of the run; all {done} steps" in world.end.reason
    assert bob.ended.reason == world.end.reason


def test_a_revoked_node_without_a_stage_is_out_at_once_and_the_run_goes_on():
    world = World(make_spec(max_steps=20))
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    (spare,) = world.join("cleo")
    world.run(until=lambda w: w.membership.find("cleo"))
    (answer,) = ask(world, m.RevokeWanted(node="cleo"))
    assert answer.reason.endswith("is no longer admitted")
    assert spare.refused.code == "revoked"
    again = ScriptedNode(world, "cleo", incarnation="2")
    again.join()
    assert world.run().exit_code == 0
    assert again.refused.code == "revoked"


def test_a_node_revoked_before_training_makes_the_run_gather_again():
    world = World()
    world.join("ada")
    world.settle()
    ask(world, m.RevokeWanted(node="ada"))
    assert world.nodes["ada"].refused.code == "revoked"
    assert any(note.startswith("waiting for nodes (0 of 2") for note in world.notes[-1:])
