"""The coordinator is killed: its nodes say so and look for it, and take part again when it is back."""

import signal
import time

import pytest
from tests.fault.ledger import check_checkpoint, unfinished
from tests.fault.life import Moment
from tests.fault.trial import NAMES, SILENCE_LIMIT_S


def test_the_nodes_find_a_coordinator_that_is_back_at_once(trial, reference):
    trial.lead()
    trial.join(*NAMES)
    trial.wait_for_step(5)
    trial.kill(trial.coordinator)

    trial.lead("--resume")
    trial.finish()
    trial.check(reference)


def test_the_nodes_say_that_the_coordinator_is_gone_and_look_for_it(trial, reference):
    trial.lead()
    trial.join(*NAMES)
    trial.wait_for_step(7)
    trial.kill(trial.coordinator)

    killed_at = time.monotonic()
    for node in trial.nodes.values():
        trial.wait_for_text(node, "lost the coordinator")
        trial.wait_for_text(node, "looking for it for")
    assert time.monotonic() - killed_at < SILENCE_LIMIT_S + 5.0
    trial.lead("--resume")
    trial.finish()
    trial.check(reference)


WRITE, MANIFEST, SYNC, REMOVE = (
    f"brigade.coordinator.checkpoints:{name}"
    for name in ("PartialCheckpoint.write", "_write_durably", "_sync_folder", "_remove")
)


@pytest.mark.parametrize(
    ("moment", "sealed", "manifests"),  # what is there: whole checkpoints, and for each partial one, its manifest
    [
        pytest.param(Moment(WRITE, 9), 1, [False], id="between the parts of two nodes"),
        pytest.param(Moment(MANIFEST, 2), 1, [False], id="before the manifest"),
        pytest.param(Moment(SYNC, 3), 1, [True], id="before it has its name"),
        pytest.param(Moment(SYNC, 4), 2, [], id="after it has its name"),
        pytest.param(Moment(REMOVE, 1), 3, [], id="before the oldest is removed"),
    ],
)
def test_a_checkpoint_that_is_cut_off_is_none_and_the_one_before_it_is_whole(
    trial, reference, moment, sealed, manifests
):
    trial.lead(moment=moment)
    trial.join(*NAMES)
    assert trial.code(trial.coordinator) == -signal.SIGKILL, trial.said()
    folder = trial.run_dir / "checkpoints"
    partial = [*folder.glob("*.partial")]
    assert [(path / "manifest.json").exists() for path in partial] == manifests
    whole = {*folder.iterdir()} - {*partial}
    assert len(whole) == sealed
    for path in whole:
        check_checkpoint(path)

    trial.lead("--resume")
    trial.finish()
    trial.check(reference)


def test_a_run_that_was_killed_while_it_wrote_the_model_only_writes_the_model(trial, reference):
    trial.lead(moment=Moment("brigade.coordinator.export:serialize_file"))
    trial.join(*NAMES)
    assert trial.code(trial.coordinator) == -signal.SIGKILL, trial.said()

    trial.lead("--resume")
    assert trial.code(trial.coordinator) == 0, trial.said()
    trial.check(reference)


def test_a_small_file_that_was_cut_off_does_not_stay(trial, reference):
    trial.lead(moment=Moment("pathlib:Path.replace", 3))
    assert trial.code(trial.coordinator) == -signal.SIGKILL, trial.said()
    assert unfinished(trial.run_dir), "it was killed before a draft got its name"

    trial.train("--resume")
    trial.check(reference)
