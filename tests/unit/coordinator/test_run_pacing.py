"""Warm-ups while a run trains: raised at once, lowered by one, and told once."""

from dataclasses import replace

from brigade.coordinator.run_pacing import MICROBATCHES, Pacing
from brigade.wire.costs import LinkReport
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import NodeContact, Plan, StagePlan

CONTACTS = [NodeContact(node_id=f"n{k}", name=f"n{k}", public_key="", endpoint="") for k in range(3)]
PLAN = Plan(
    run_id="r",
    generation=0,
    stages=tuple(StagePlan(contact=c, first_block=k, end_block=k + 1) for k, c in enumerate(CONTACTS)),
    schedule="ls-1f1b",
    microbatches=10,
    train_samples=1,
    validation_samples=0,
    boundaries=(),
    mode="async",
    versions=2,
    warm_ups=(4, 2, 0),
    slack=2,
)


def links(rtt_s=0.1):
    return {
        (f"n{a}", f"n{b}"): LinkReport(to=f"n{b}", rtt_s=rtt_s, bytes_per_s=1e6)
        for a in range(3)
        for b in range(3)
        if a != b
    }


def step(pacing, compute_s, microbatches=10):
    """One step in which every microbatch takes so long at each stage."""
    spent = StageStatistics(forward_s=compute_s * microbatches / 3, backward_s=compute_s * microbatches * 2 / 3)
    pacing.take((spent,) * 3, microbatches)


def news(pacing, compute_s):
    for _ in range(MICROBATCHES // 10):
        assert pacing.take_news() == ()
        step(pacing, compute_s)
    return pacing.take_news()


def test_too_little_is_raised_at_once_and_too_much_is_lowered_by_one():
    pacing = Pacing(PLAN, links())
    # a hop there and back takes 0.1 s; planned for 0.8 of the period of 0.05 s: w_1 = ceil(0.2 / 0.04) - 1 = 4
    assert news(pacing, 0.05) == (8, 4, 0)
    assert news(pacing, 0.05) == ()
    # at 0.4 s a microbatch: w_1 = ceil(0.9 / 0.32) - 1 = 2, w_0 = ceil(1.4 / 0.32) - 1 = 4
    assert [news(pacing, 0.4) for _ in range(5)] == [(7, 3, 0), (6, 2, 0), (5, 2, 0), (4, 2, 0), ()]


def test_memory_and_the_batch_bound_it():
    bounded = replace(PLAN, stages=(replace(PLAN.stages[0], most_in_flight=8), *PLAN.stages[1:]))
    assert news(Pacing(bounded, links()), 0.05) == (5, 4, 0)
    assert news(Pacing(PLAN, links(2.0)), 0.05) == (10, 10, 0)  # more would only wait for the update


def test_fixed_orders_and_unmeasured_links_are_left_alone():
    for pacing in (Pacing(replace(PLAN, schedule="1f1b", warm_ups=()), links()), Pacing(PLAN, {})):
        assert news(pacing, 0.05) == ()
