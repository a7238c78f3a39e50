"""Whoever is asked to go goes in good order: the step under way is saved, nothing is left behind, and a resume goes on."""

import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from tests.fault import ledger
from tests.fault.life import Moment
from tests.fault.trial import NAMES

INTERRUPT_LIMIT_S = 5.0


@pytest.fixture
def midway(trial):
    """A trial in the middle of its fifth step: stage 0 does nothing until it is told to go on."""
    trial.lead()
    trial.join(
        *NAMES, moment=Moment("brigade.node.stage_compute:StageCompute.forward", 14, 0, signal.SIGSTOP), patience_s=1
    )
    trial.halted = trial.wait_for_halt(0)
    trial.wait_for_step(3)  # word of the fourth may not have left the halted node
    return trial


def check_saved(trial, steps):
    """Every committed step is in the newest checkpoint."""
    assert len(ledger.ledger(trial.run_dir)) == steps
    assert ledger.check_checkpoints(trial.run_dir)[-1] == steps
    assert f"all {steps} steps done so far are in a checkpoint" in trial.lines()[-1]["text"]


@pytest.mark.parametrize("stages", [[0], [1], [2], [0, 2]])
def test_a_node_that_is_told_to_end_saves_the_step_under_way(midway, reference, stages):
    leaving = [midway.holder(stage) for stage in stages]
    for name in leaving:
        midway.nodes[name].send(signal.SIGTERM)
    midway.halted.send(signal.SIGCONT)

    assert midway.code(midway.coordinator) == 1
    assert midway.codes() == {name: 0 if name in leaving else 1 for name in NAMES}, midway.said()
    reason = midway.note("failed")
    assert any(
        f"node {name} (stage {k}, block {k}) has left: SIGTERM at {name}" in reason
        for k, name in zip(stages, leaving, strict=True)
    )
    check_saved(midway, 5)

    midway.train("--resume")
    midway.check(reference)


def test_a_run_that_is_stopped_goes_on_where_it_was(midway, reference):
    command = [sys.executable, "-m", "brigade.cli.app", "stop", str(midway.run_dir)]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (stopped.returncode, stopped.stdout) == (0, "the run ends after its current step\n")
    midway.halted.send(signal.SIGCONT)
    assert midway.code(midway.coordinator) == 3
    midway.codes()
    check_saved(midway, 5)

    midway.train("--resume")
    midway.check(reference)


def test_the_first_interrupt_waits_for_the_step_and_the_second_does_not(midway, reference):
    midway.coordinator.send(signal.SIGINT)
    midway.wait_for_note("stopping")
    asked_at = time.monotonic()
    midway.coordinator.send(signal.SIGINT)
    assert midway.code(midway.coordinator) == 130
    assert time.monotonic() - asked_at < 2.0
    midway.halted.send(signal.SIGCONT)
    assert 0 not in midway.codes().values(), midway.said()

    midway.train("--resume")
    midway.check(reference)


def test_an_interrupt_of_everything_leaves_nothing_behind(midway, reference):
    check_that_nothing_is_left(midway, midway.halted)
    assert midway.coordinator.exit_code in (1, 3), midway.said()  # whoever heard of it first

    midway.train("--resume")
    midway.check(reference)


def test_an_interrupt_of_nodes_that_wait_leaves_nothing_behind(trial):
    trial.lead(nodes=4)
    trial.join(*NAMES)
    trial.wait_until(lambda: sum(line.get("kind") == "joined" for line in trial.lines()) == 3, "three nodes joined")
    check_that_nothing_is_left(trial)
    assert trial.coordinator.exit_code == 3


@pytest.mark.parametrize("noticed", [False, True])
def test_an_interrupt_of_nodes_without_a_coordinator_leaves_nothing_behind(midway, noticed):
    midway.kill(midway.coordinator)
    if noticed:
        midway.wait_for_text(midway.nodes[midway.holder(1)], "looking for it")
    check_that_nothing_is_left(midway, midway.halted)


def check_that_nothing_is_left(trial, halted=None):
    """Interrupt everybody who lives; soon there is no process, no port and no half made file."""
    living = [process for process in (*trial.nodes.values(), trial.coordinator) if process.exit_code is None]
    children = [child for process in living for child in psutil.Process(process.pid).children(recursive=True)]
    listening = [
        connection.laddr
        for process in living
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= len(living)
    end = time.monotonic() + INTERRUPT_LIMIT_S
    for process in living:  # nodes first: without a coordinator they end by themselves
        process.send(signal.SIGINT)
    if halted is not None:
        halted.send(signal.SIGCONT)
    for process in living:
        assert process.wait(max(0.0, end - time.monotonic())) is not None, f"{process.name} goes on\n{trial.said()}"
    # a node may hear of the coordinator's end before it takes its own signal
    assert {trial.nodes[name].exit_code for name in trial.nodes} <= {3, 130}, trial.said()
    assert not [child for child in children if child.is_running()]
    for address in listening:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=1.0).close()
    assert ledger.unfinished(trial.root / "nodes") == []
    assert [*trial.root.rglob("outgoing")] == []
    if trial.coordinator in living:
        assert ledger.unfinished(trial.run_dir) == []
