"""A node is killed: the run ends and says who it was, and a resume trains what was to be trained."""

import pytest
from tests.fault.trial import NAMES


@pytest.mark.parametrize(("stage", "step"), [(0, 5), (1, 6), (2, 9)])
def test_whoever_is_killed_the_run_ends_and_goes_on(trial, reference, stage, step):
    trial.lead()
    trial.join(*NAMES)
    trial.wait_for_step(step)
    victim = trial.holder(stage)
    trial.kill(trial.nodes.pop(victim))

    assert trial.code(trial.coordinator) == 1
    assert set(trial.codes().values()) == {1}
    reason = trial.note("failed")
    assert f"node {victim} (stage {stage}, block {stage}) is lost: no heartbeat for " in reason
    assert "brigade up --resume" in reason
    for node in trial.nodes.values():
        assert reason in node.output.read_text()

    trial.train("--resume")
    trial.check(reference)
