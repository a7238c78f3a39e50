"""The coordinator is killed: its nodes say so and look for it, and take part again when it is back."""

import time

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
