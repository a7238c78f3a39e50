"""The ledger is exact whatever is killed and whenever: coordinator or node, before any command, in any order of arrival."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.coordinator.scripted_fleet import Disk, Killed, World, check_ledger, uninterrupted
from tests.unit.coordinator.scripted_node import make_spec

SPEC = make_spec(max_steps=7, save_steps=2, eval_steps=3)
NAMES = ("ada", "bob")


def live(disk, spec=SPEC, *, seed=0, kill_at=None, kill_node=None, names=NAMES):
    """One life of the coordinator; returns its exit code, or None when it was killed."""
    try:
        world = World(spec, disk, seed=seed, kill_at=kill_at)
        world.join(*names)
        if kill_node is not None:
            name, at = kill_node
            world.run(until=lambda w: w.end is not None or w.commands >= at)
            if world.end is None:
                world.kill_node(name)
        return world.run().exit_code
    except Killed:
        return None


def command_count(seed=0):
    world = World(SPEC, seed=seed)
    world.join(*NAMES)
    world.run()
    return world.commands


@pytest.mark.parametrize("seed", [0, 1])
def test_the_coordinator_is_killed_before_any_command(seed):
    for kill_at in range(command_count(seed)):
        disk = Disk()
        assert live(disk, seed=seed, kill_at=kill_at) is None
        check_consistent(disk)
        assert live(disk, seed=seed) == 0, f"killed before command {kill_at}"
        check_ledger(disk, SPEC)
        check_evaluations(disk)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_killed_before_any_command(name):
    for at in range(0, command_count(), 2):
        disk = Disk()
        code = live(disk, kill_node=(name, at))
        check_consistent(disk)
        if code != 0:
            assert live(disk) == 0, f"killed before command {at}"
        check_ledger(disk, SPEC)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), kills=st.lists(st.integers(5, 120), max_size=5))
def test_several_kills_in_any_order_of_arrival(seed, kills):
    disk = Disk()
    for number, kill_at in enumerate(kills):
        live(disk, seed=seed + number, kill_at=kill_at)
        check_consistent(disk)
    assert live(disk, seed=seed) == 0
    check_ledger(disk, SPEC)
    check_evaluations(disk)


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 4), (4, 2)])
def test_a_resume_with_another_number_of_nodes_continues_the_same_curve(counts):
    before, after = counts
    spec, names = make_spec(nodes=before, max_steps=7, save_steps=2, eval_steps=3), [f"n{i}" for i in range(before)]
    for kill_at in range(200):  # the first moment with five steps done and four of them saved
        disk = Disk()
        assert live(disk, spec, kill_at=kill_at, names=names) is None
        if len(disk.commits) == 5 and 4 in disk.checkpoints:
            break
    spec = make_spec(nodes=after, max_steps=7, save_steps=2, eval_steps=3)
    assert live(disk, spec, names=[f"n{i}" for i in range(after)]) == 0
    check_ledger(disk, SPEC)


def test_a_resume_with_more_microbatches_keeps_the_samples():
    disk = Disk()
    assert live(disk, kill_at=60) is None
    changed = make_spec(max_steps=7, save_steps=2, eval_steps=3, microbatches=4)
    assert live(disk, changed) == 0
    check_ledger(disk, SPEC)


def test_each_epoch_is_a_permutation_of_all_samples():
    spec = make_spec(max_steps=9, save_steps=4)
    disk = Disk()
    for kill_at in (60, 75, 90):
        live(disk, spec, kill_at=kill_at)
    assert live(disk, spec) == 0
    samples = [i for step in range(9) for i in disk.curve()[step].samples]
    for epoch in range(3):  # 20 samples in batches of 8: three steps an epoch
        assert sorted(samples[20 * epoch : 20 * epoch + 20]) == list(range(20))


def test_steps_trained_again_are_kept_under_their_attempt():
    disk = Disk()
    at = next(n for n in range(200) if killed_with(n, steps=5, sealed=4))
    live(disk, kill_at=at)
    assert live(disk) == 0
    assert {(4, 1), (4, 2)} <= set(disk.commits)
    assert disk.commits[4, 1].loss == disk.commits[4, 2].loss


def test_a_run_that_is_done_only_exports_again():
    disk = uninterrupted(SPEC)
    disk.exports.clear()
    world = World(SPEC, disk)
    assert world.run().exit_code == 0
    assert disk.exports == [7]


def killed_with(kill_at, *, steps, sealed):
    disk = Disk()
    live(disk, kill_at=kill_at)
    return len(disk.commits) == steps and max(disk.checkpoints, default=0) == sealed


def check_consistent(disk):
    """No checkpoint holds a step that the ledger does not know, and its parts are of one moment."""
    committed = {step for step, _ in disk.commits}
    for steps_done, manifest in disk.checkpoints.items():
        assert set(range(steps_done)) <= committed
        assert len({file.sha256 for file in manifest.files}) == 1
        assert manifest.tokens_seen == sum(len(c.samples) for s, c in disk.curve().items() if s < steps_done)


def check_evaluations(disk):
    """Held-out losses have no side effects; one may be missing where the coordinator died before it came."""
    reference = {step: e.loss for (step, _), e in uninterrupted(SPEC).evaluations.items()}
    for (step, _), evaluation in disk.evaluations.items():
        assert evaluation.loss == reference[step]
    assert {step for step, _ in disk.evaluations} <= set(reference)
