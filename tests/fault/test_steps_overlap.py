"""A run whose steps overlap is killed and taken up again: it trains what it would have trained, bit for bit."""

import pytest
from tests.fault.life import Moment
from tests.fault.test_node_killed import BACKWARD, FORWARD, halt
from tests.fault.trial import NAMES, Trial


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory):
    """The run that nobody disturbed: the directory of its coordinator."""
    with pytest.MonkeyPatch.context() as patch, Trial(tmp_path_factory.mktemp("overlapping")) as trial:
        patch.setenv("XDG_STATE_HOME", str(trial.root / "state"))
        patch.setenv("OMP_NUM_THREADS", "1")
        trial.train(mode="async")
        return trial.run_dir


@pytest.mark.parametrize("moment", [halt(BACKWARD, 17, 1), halt(FORWARD, 26, 0)])
def test_a_node_is_killed(trial, overlapping, moment):
    trial.lead(mode="async")
    trial.join(*NAMES, moment=moment)
    trial.kill(trial.wait_for_halt(moment.stage))
    assert "brigade up --resume" in trial.ends_without(moment.stage)

    trial.train("--resume", mode="async")
    trial.check(overlapping)


def test_the_coordinator_is_killed(trial, overlapping):
    decided = Moment("brigade.coordinator.run_steps:StepRounds.take_gradients", 23)
    trial.lead(mode="async", moment=decided)
    trial.join(*NAMES, patience_s=1)
    assert trial.code(trial.coordinator) == -9
    trial.codes()

    trial.train("--resume", mode="async")
    trial.check(overlapping)
