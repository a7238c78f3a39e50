"""A crowd costs the coordinator's core no more for each event than a small fleet does, and little memory."""

import tempfile
from pathlib import Path

import pytest

from brigade.coordinator.status import MOST_NODES_TOLD
from brigade.lab.crowd import Crowd, CrowdResult, measure_memory, run_crowd
from brigade.lab.crowd_spec import CrowdSpec
from brigade.wire.encoding import decode, encode
from brigade.wire.messages import StatusTold

MOST_BYTES = 10_000


def gather(nodes: int) -> CrowdResult:
    """Let so many nodes join and send heartbeats, as fast as volunteers change in an hour."""
    spec = CrowdSpec(nodes=nodes, seconds=12.0, compress=300.0)
    with tempfile.TemporaryDirectory() as directory:
        crowd = Crowd(spec, Path(directory))
        crowd.run()
        return crowd.result(0.0)


def test_what_an_event_costs_does_not_grow_with_the_number_of_nodes() -> None:
    """Medians, side by side: what looks at every node would take eight times as long."""
    few, many = ({d.kind: d for d in gather(nodes).decisions} for nodes in (500, 4000))
    for kind in ("Pulse", "ConnectionOpened", "ConnectionClosed", "Hello", "Leaving"):
        assert many[kind].count > 4 * few[kind].count
        assert many[kind].p50_us <= 2 * few[kind].p50_us, kind


def test_a_node_takes_little_memory(tmp_path: Path) -> None:
    assert 500 < measure_memory(CrowdSpec(nodes=500), tmp_path) < MOST_BYTES


def test_the_status_of_a_crowd_fits_into_a_message(tmp_path: Path) -> None:
    crowd = Crowd(CrowdSpec(nodes=3000, seconds=11.0, compress=1.0), tmp_path)
    crowd.run()
    status = crowd.core.status(11.0)
    assert status["nodes_there"] == 3000
    assert len(status["nodes"]) == MOST_NODES_TOLD
    decode(encode(StatusTold(status=status)))


def test_a_crowd_is_surveyed_planned_and_trained() -> None:
    result = run_crowd(CrowdSpec(nodes=200, blocks=6, seconds=200.0, compress=1.0))
    assert result.lives == 1
    assert result.plans == 1
    assert 1 <= result.plan_stages <= 6
    assert result.steps > 10
    kinds = {decision.kind: decision.count for decision in result.decisions}
    assert kinds["Pulse"] > 200 * 180
    assert kinds["StepApplied"] >= result.steps * result.plan_stages
    assert result.events == sum(kinds.values())


def test_a_run_that_loses_a_stage_begins_again_with_whoever_is_there() -> None:
    """At hundreds of times the usual rate nobody stays long: every run ends, and the next one gathers."""
    result = run_crowd(CrowdSpec(nodes=100, blocks=4, seconds=500.0, compress=300.0))
    assert result.lives > 1
    assert result.plans >= result.lives - 1


@pytest.mark.parametrize("seed", [0, 1])
def test_a_crowd_is_the_same_for_a_seed(seed: int) -> None:
    one, two = (run_crowd(CrowdSpec(nodes=40, blocks=4, seconds=60.0, seed=seed)) for _ in range(2))
    assert (one.events, one.steps, one.nodes_seen) == (two.events, two.steps, two.nodes_seen)
    assert [(d.kind, d.count) for d in one.decisions] == [(d.kind, d.count) for d in two.decisions]
