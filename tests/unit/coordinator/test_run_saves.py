"""Checkpoints on their way: whose files are taken, and what happens when they do not come."""

import pytest
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import make_spec

from brigade.coordinator.checkpoint_manifest import block_of, is_weights
from brigade.coordinator.run_events import CollectParts, DropCheckpoint, PartsProgressed
from brigade.coordinator.run_state import SAVING_LIMIT_S
from brigade.coordinator.run_table import State
from brigade.wire import messages as m
from brigade.wire.message_parts import FileSpec


def saved(stage, step=2, blocks=(0, 1)):
    files = tuple(FileSpec(name=f"block-{block:03d}.safetensors", size=1, sha256="0" * 64) for block in blocks)
    return m.StateSaved(generation=0, step=step, stage=stage, files=files)


@pytest.mark.parametrize("stage", [0, 1, 99])
def test_a_spare_that_announces_the_files_of_a_stage_is_sent_away(stage):
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    (spare,) = world.join("cleo")
    spare.say(saved(stage))
    assert world.run().exit_code == 0
    assert any(
        "cleo" in note and f"StateSaved of stage {stage}, which it does not hold" in note for note in world.notes
    )


def test_a_stage_cannot_announce_the_files_of_another():
    world = World()
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 2)
    world.nodes["bob"].say(saved(0))
    assert world.run().exit_code == 1
    assert "StateSaved of stage 0, which it does not hold" in world.end.reason


def stuck_world(max_steps=2000):
    """A run whose first checkpoint lacks the files of bob."""
    world = World(make_spec(max_steps=max_steps, save_steps=3))
    dropped = []

    def lose(command):
        return (
            PartsProgressed(steps_done=3, received_bytes=1) if (command.steps_done, command.stage) == (3, 1) else None
        )

    world.refuse[CollectParts] = lose
    world.refuse[DropCheckpoint] = lambda command: dropped.append(command.steps_done)
    world.join("ada", "bob")
    world.run(until=lambda w: w.core.run.tally.steps_done == 9)
    assert world.core.run.tally.sealed_steps is None
    return world, dropped


def idle(world, seconds):
    """Let time pass while the nodes compute."""
    held, world._queues = world._queues, {}
    for _ in range(int(seconds)):
        world.tick()
    for source, events in held.items():
        world._queues[source] = [*events, *world._queues.pop(source, [])]


def test_a_checkpoint_of_which_nothing_comes_is_given_up_so_that_later_ones_can_be_made():
    world, dropped = stuck_world()
    idle(world, SAVING_LIMIT_S - 5)
    assert not dropped
    idle(world, 10)
    assert dropped == [3]
    assert world.core.state is State.TRAINING
    (warning,) = [note for note in world.notes if "given up" in note]
    assert "missing from bob (stage 1, blocks 2-3)" in warning
    world.run(until=lambda w: w.core.run.tally.sealed_steps)
    assert world.core.run.tally.sealed_steps > 9


def test_a_checkpoint_that_comes_slowly_is_waited_for():
    world, dropped = stuck_world()
    for received in (2, 3):
        idle(world, SAVING_LIMIT_S - 10)
        world.handle(PartsProgressed(steps_done=3, received_bytes=received))
    assert not dropped
    world.handle(PartsProgressed(steps_done=3, received_bytes=3))  # parts without a byte
    idle(world, SAVING_LIMIT_S + 1)
    assert dropped == [3]


def test_a_run_that_is_saved_to_its_end_does_not_wait_for_an_older_checkpoint():
    world, dropped = stuck_world(max_steps=12)
    begun = world.now
    assert world.run().exit_code == 0
    assert dropped == [3]
    assert world.core.run.tally.sealed_steps == 12
    assert world.now == begun


def test_older_weights_belong_to_their_block_and_are_no_weights_to_export():
    name = "block-003.older-1.safetensors"
    assert block_of(name) == 3
    assert not is_weights(name)
    assert is_weights("block-003.safetensors")
    for odd in ("block-003.older-0.safetensors", "block-003.older-.safetensors", "block-03.older-1.safetensors"):
        assert block_of(odd) is None
