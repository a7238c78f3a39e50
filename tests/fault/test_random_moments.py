"""Anybody is killed at a random moment of training, and the run goes on with whoever is there."""

import random
import signal

import pytest
from tests.fault.life import Moment
from tests.fault.trial import NAMES

STAGE_CALLS = {  # and how many of them there are until the twelfth step is done
    "forward": 36,
    "backward": 36,
    "end_of_step": 12,
    "apply": 12,
    "snapshot": 3,  # a checkpoint is skipped while the one before is on its way
    "tied_parameter": 3,
}
COORDINATOR_CALLS = {
    "run_steps:StepRounds.take_gradients": 36,
    "run_steps:StepRounds.take_update": 36,
    "store:Store.save_commit": 12,
    "store:Store.save_evaluation": 2,
    "collector:Collector.expect": 8,
    "checkpoints:PartialCheckpoint.write": 18,
    "checkpoints:prune": 3,
}
FIRST_SEED = 20
ROLES = [0, 1, 2, "coordinator", "coordinator"] * 2


def draw(seed):
    """Return who is killed, when, and with how many nodes the run goes on."""
    dice = random.Random(FIRST_SEED + seed)
    role = ROLES[seed]
    if role == "coordinator":
        name, most = dice.choice(sorted(COORDINATOR_CALLS.items()))
        moment = Moment(f"brigade.coordinator.{name}", dice.randint(1, most))
    else:
        calls = {name: most for name, most in STAGE_CALLS.items() if name != "tied_parameter" or role != 1}
        name, most = dice.choice(sorted(calls.items()))
        moment = Moment(f"brigade.node.stage_compute:StageCompute.{name}", dice.randint(1, most), role)
    return role, moment, dice.choice([2, 3, 3])


@pytest.mark.parametrize("seed", range(len(ROLES)))
def test_whenever_anybody_is_killed_nothing_is_lost_and_nothing_counts_twice(trial, reference, seed, record_property):
    role, moment, nodes = draw(seed)
    record_property("killed", f"{role} at {moment.where} {moment.number}, then {nodes} nodes")
    if role == "coordinator":
        trial.lead(moment=moment)
        trial.join(*NAMES)
        assert trial.code(trial.coordinator) == -signal.SIGKILL, f"{moment} never came\n{trial.said()}"
        trial.lead("--resume", nodes=nodes, stages=nodes)  # and its nodes come back by themselves
        trial.finish()
    else:
        trial.lead()
        trial.join(*NAMES, moment=moment)
        trial.ends_without(role)
        trial.train("--resume", names=NAMES[:nodes], stages=nodes)
    trial.check(reference, relative=0.0 if nodes == 3 else 1e-5)
