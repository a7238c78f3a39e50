"""The sentence of `brigade status` about the pace: from statistics and links, with the names of nodes."""

import pytest

from brigade.coordinator.pace import Links, describe_limit
from brigade.wire.costs import LinkReport
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import NodeContact, Plan, StagePlan

NAMES = ("ada", "bob", "cy")
STEPS, MICROBATCHES = 5, 8


def plan(microbatches: int = MICROBATCHES) -> Plan:
    contacts = [NodeContact(node_id=name, name=name, public_key="", endpoint="") for name in NAMES]
    return Plan(
        run_id="r",
        generation=0,
        stages=tuple(StagePlan(contact=each, first_block=k, end_block=k + 1) for k, each in enumerate(contacts)),
        schedule="1f1b",
        microbatches=microbatches,
        train_samples=8,
        validation_samples=0,
        boundaries=(),
    )


def totals(*compute_s: float, bytes_: int = 1000, gated_s: float = 0.0) -> list[StageStatistics]:
    """Statistics of stages that compute so many seconds a microbatch and send so many bytes each way."""
    count = STEPS * MICROBATCHES
    return [
        StageStatistics(
            forward_s=seconds * count / 3,
            backward_s=seconds * count * 2 / 3,
            forward_bytes=bytes_ * count if k < len(compute_s) - 1 else 0,
            backward_bytes=bytes_ * count if k > 0 else 0,
            gated_s=gated_s * STEPS,
            tokens=count,
        )
        for k, seconds in enumerate(compute_s)
    ]


def links(bytes_per_s: float = 1e7, rtt_s: float = 0.001) -> Links:
    return {(a, b): LinkReport(to=b, rtt_s=rtt_s, bytes_per_s=bytes_per_s) for a in NAMES for b in NAMES if a != b}


@pytest.mark.parametrize(
    ("known", "step_s", "expected"),
    [
        (links(), 8 * 0.1 / 0.9, "the device of bob: 90% of what these stages can do"),
        (
            links(bytes_per_s=5e3),
            8 * 0.2 / 0.9,
            "the link from ada to bob, 0.04 Mbit/s: 90% of what these stages can do",
        ),
        (
            links(rtt_s=0.1),
            1.4,
            (
                'the order 1f1b: too few microbatches in flight for stages 50 ms apart (`schedule = "ls-1f1b"` or '
                '`"gpipe"` would help most): 57% of what these stages can do, of which the busiest is the device of bob'
            ),
        ),
    ],
)
def test_the_sentence_names_nodes_and_links(known: Links, step_s: float, expected: str) -> None:
    assert describe_limit(plan(), totals(0.05, 0.1, 0.05), known, STEPS, step_s) == expected


def test_the_wait_of_the_last_stage_for_the_decision_is_the_norm_round() -> None:
    told = describe_limit(plan(), totals(0.05, 0.1, 0.05, gated_s=1.0), links(), STEPS, 2.2)
    assert told.startswith("the norm round at the end of each step, 1000 ms (")
    assert ": 36% of" in told


def test_links_that_nobody_measured_count_as_fast() -> None:
    broken = {("ada", "bob"): LinkReport(to="bob", rtt_s=0.0, bytes_per_s=0.0, error="no answer")}
    for known in ({}, broken):
        told = describe_limit(plan(), totals(0.05, 0.1, 0.05), known, STEPS, 8 * 0.1 / 0.9)
        assert told == "the device of bob: 90% of what these stages can do"


def test_nothing_is_said_before_the_first_step() -> None:
    assert describe_limit(plan(), totals(0.0, 0.0, 0.0), links(), 0, None) == ""
    assert describe_limit(plan(), totals(0.0, 0.0, 0.0), {}, 1, 1.0) == ""
