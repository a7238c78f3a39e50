"""What a lab says when a run fails and is taken up again: who trains on and from where, and no advice to do it oneself."""

import pytest

from brigade.lab.recovery_story import tell_taken_up, without_advice


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "node ada is lost; 12 steps are done, the newest checkpoint holds 8; `brigade up --resume` trains from there",
            "node ada is lost; 12 steps are done, the newest checkpoint holds 8",
        ),
        (
            "node ada is lost; all 8 steps done so far are in a checkpoint; `brigade up --resume` goes on",
            "node ada is lost; all 8 steps done so far are in a checkpoint",
        ),
        ("training begins at step 0 of 8", "training begins at step 0 of 8"),
    ],
)
def test_a_lab_takes_a_run_up_by_itself(said: str, told: str) -> None:
    assert without_advice(said) == told


def test_whoever_trains_on_is_named_with_the_step_it_begins_at() -> None:
    assert tell_taken_up(8, ["ada", "ben", "cy"], 3) == (
        "the run is taken up again from its last checkpoint (step 8) with ada, ben, cy"
    )


def test_without_a_checkpoint_it_begins_anew() -> None:
    assert tell_taken_up(0, ["ada"], 1).startswith(
        "the run is taken up again from its beginning (no checkpoint yet) with"
    )


def test_a_run_that_waits_for_others_says_so() -> None:
    told = tell_taken_up(2, ["ada"], 3)
    assert told.endswith("; it waits for 2 more")
    assert tell_taken_up(2, [], 1) == (
        "the run is taken up again from its last checkpoint (step 2); it waits for 1 more"
    )
