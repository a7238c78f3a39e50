"""A node is killed: the run ends and says who it was, and a resume trains what was to be trained."""

import signal

import pytest
from tests.fault.ledger import ask
from tests.fault.life import Moment
from tests.fault.trial import NAMES

FORWARD = "brigade.node.stage_compute:StageCompute.forward"
BACKWARD = "brigade.node.stage_compute:StageCompute.backward"


def halt(where, number, stage):
    return Moment(where, number, stage, signal.SIGSTOP)


@pytest.mark.parametrize("moment", [halt(FORWARD, 14, 0), halt(BACKWARD, 17, 1), halt(BACKWARD, 28, 2)])
def test_whoever_is_killed_the_run_ends_and_goes_on(trial, reference, moment):
    trial.lead()
    trial.join(*NAMES, moment=moment)
    trial.kill(trial.wait_for_halt(moment.stage))
    assert "brigade up --resume" in trial.ends_without(moment.stage)

    trial.train("--resume")
    trial.check(reference)


def test_two_nodes_are_killed_at_once(trial, reference):
    trial.lead()
    trial.join(*NAMES, moment=halt(FORWARD, 20, 1))
    halted = trial.wait_for_halt(1)
    other = trial.nodes[trial.holder(2)]
    trial.kill(halted, other)

    assert trial.code(trial.coordinator) == 1
    assert sorted(trial.codes().values()) == [-signal.SIGKILL, -signal.SIGKILL, 1]
    assert " is lost: no heartbeat for " in trial.note("failed")

    trial.train("--resume")
    trial.check(reference)


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2], (*NAMES, "hedy")], ids=len)
def test_another_number_of_nodes_goes_on(trial, reference, names):
    trial.lead()
    trial.join(*NAMES, moment=Moment(BACKWARD, 23, 2))
    trial.ends_without(2)

    trial.train("--resume", names=names, stages=min(3, len(names)))
    trial.check(reference, relative=0.0 if len(names) >= 3 else 1e-5)


@pytest.mark.slow
def test_a_node_that_hangs_is_lost_and_finds_out_when_it_wakes(trial, reference):
    trial.lead()
    trial.join(*NAMES, moment=halt(FORWARD, 14, 1), patience_s=1)
    halted = trial.wait_for_halt(1)
    assert trial.code(trial.coordinator) == 1
    assert f"node {halted.name} (stage 1, block 1) is lost: no heartbeat for " in trial.note("failed")

    halted.send(signal.SIGCONT)
    assert trial.codes() == {name: 2 if name == halted.name else 1 for name in NAMES}
    trial.wait_for_text(halted, "lost the coordinator")

    trial.train("--resume")
    trial.check(reference)


def test_a_spare_that_is_killed_is_not_missed(trial, reference):
    trial.lead(nodes=4, stages=3)
    trial.join(*NAMES, "hedy", moment=halt(FORWARD, 8, 0))
    halted = trial.wait_for_halt(0)
    (spare,) = {*trial.nodes} - {trial.holder(stage) for stage in range(3)}
    trial.kill(trial.nodes.pop(spare))
    halted.send(signal.SIGCONT)
    trial.finish()
    trial.check(reference)


@pytest.mark.parametrize(
    "moment",
    [
        Moment("brigade.node.daemon:measure_device"),
        Moment("brigade.node.data_links:DataLinks.measure"),
        Moment("brigade.node.daemon:build_stage"),
    ],
    ids=["timing blocks", "timing links", "loading"],
)
def test_a_node_killed_before_training_is_waited_for_again(trial, reference, moment):
    trial.lead()
    trial.join(*NAMES[:2])
    trial.join(NAMES[2], moment=moment)
    assert trial.code(trial.nodes.pop(NAMES[2])) == -signal.SIGKILL

    trial.wait_for_note("lost")
    trial.join(NAMES[2])
    trial.finish()
    trial.check(reference)
    assert ask(trial.run_dir, "SELECT max(attempt) FROM attempts") == [(1,)]


def test_what_a_killed_node_had_fetched_does_not_stay_for_ever(trial, reference):
    trial.lead()
    trial.join(*NAMES, moment=Moment(BACKWARD, 23, 2))
    trial.ends_without(2)
    trial.lead("--resume", nodes=1, stages=1)
    trial.join("ada", moment=Moment("brigade.node.daemon:build_stage"))
    assert trial.code(trial.nodes["ada"]) == -signal.SIGKILL
    trial.kill(trial.coordinator)
    assert fetched_states(trial, "ada") == 6, "those of all three blocks"

    trial.train("--resume")
    trial.check(reference)
    assert fetched_states(trial, "ada") == 0


def fetched_states(trial, name):
    return sum(1 for _ in (trial.root / "nodes" / name / "cache").rglob("block-*"))
