"""Whole plans: the choice of nodes, order and cuts, its reasons, and its refusals."""

import dataclasses
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.partition.planning_cases import (
    Fleet,
    check_is_whole,
    even_fleet,
    every_cut,
    every_order,
    fleets,
    name,
    price,
)

from brigade.partition.line import Access, HopTime, Line, StageTime, connect
from brigade.partition.order import rank_orders
from brigade.partition.schedule import build
from brigade.partition.solve import choose, format_seconds, plan, predict_step_s, propose, shortest_step_s
from brigade.partition.timeline import step_seconds
from brigade.wire.errors import PlanError
from brigade.wire.plan import Plan, TiedParameter
from brigade.wire.run_spec import CompressionSpec


def plan_for(fleet: Fleet, stages: int | None = None, **changes: Any) -> Plan:
    arguments: dict[str, Any] = {
        "run_id": "r",
        "generation": 3,
        "contacts": fleet.contacts(),
        "devices": fleet.devices(),
        "chains": fleet.chains(),
        "links": fleet.links(),
        "spec": fleet.spec(stages),
        "train_samples": 1000,
        "validation_samples": 50,
    }
    made = plan(**(arguments | changes))
    check_is_whole(made, fleet)
    return made


def names(made: Plan) -> list[str]:
    return [stage.contact.name for stage in made.stages]


def test_one_stage_is_named_in_the_singular() -> None:
    assert "; 1 stage would take " in plan_for(even_fleet(2, 6)).reason


def test_an_even_fleet_shares_evenly() -> None:
    made = plan_for(even_fleet(3, 6))
    assert [(stage.first_block, stage.end_block) for stage in made.stages] == [(0, 2), (2, 4), (4, 6)]
    assert names(made) == ["ada", "bob", "cyd"]
    assert [stage.compute_share for stage in made.stages] == pytest.approx([1 / 3] * 3)
    assert (made.run_id, made.generation, made.schedule, made.microbatches) == ("r", 3, "1f1b", 4)
    assert (made.train_samples, made.validation_samples) == (1000, 50)
    # 6 s a stage and microbatch, 4 microbatches and 2 more beats to fill and drain
    assert made.period_s == pytest.approx((4 + 2) * 6 / 4)
    assert made.reason == (
        "ada -> bob -> cyd: a step is predicted to take 36.00 s; the slowest stage is ada with blocks 0 to 1, "
        "6.00 s a microbatch; 2 stages would take 45.00 s"
    )


@settings(max_examples=60, deadline=None)
@given(fleet=fleets(), seed=st.integers(0, 1000))
def test_plan_does_not_depend_on_who_came_first(fleet: Fleet, seed: int) -> None:
    def shuffled(mapping: dict[Any, Any]) -> dict[Any, Any]:
        items = list(mapping.items())
        random.Random(seed).shuffle(items)
        return dict(items)

    contacts = fleet.contacts()
    random.Random(seed).shuffle(contacts)
    try:
        made = plan_for(fleet)
    except PlanError as error:
        with pytest.raises(PlanError) as again:
            plan_for(fleet, contacts=contacts, chains=shuffled(fleet.chains()), links=shuffled(fleet.links()))
        assert str(again.value) == str(error)  # noqa: PT017 - the error is a result that is compared
        return
    assert made == plan_for(fleet, contacts=contacts, chains=shuffled(fleet.chains()), links=shuffled(fleet.links()))


def simulated_step(fleet: Fleet, order: tuple[int, ...], cuts: tuple[int, ...]) -> float:
    """A step in which each node sends all that it sends over one line, as fast as the best of its links; and receives."""
    pairs = list(pairwise(cuts))
    times = [
        StageTime(sum(fleet.forward_s[node][a:b]), sum(fleet.backward_s[node][a:b]))
        for node, (a, b) in zip(order, pairs, strict=True)
    ]
    sizes = [fleet.output_bytes[cut - 1] for cut in cuts[1:-1]]
    rates = {
        pair: rate for pair, rate in fleet.bytes_per_s.items() if not {pair, pair[::-1]} & fleet.broken and rate > 0
    }
    up = [max((rate for (a, _), rate in rates.items() if a == node), default=math.inf) for node in order]
    down = [max((rate for (_, b), rate in rates.items() if b == node), default=math.inf) for node in order]
    line = connect(times, [Access(*rate) for rate in zip(up, down, strict=True)], sizes, sizes, [0.0] * len(sizes))
    hops = []
    for size, (near, far) in zip(sizes, pairwise(order), strict=True):
        way = (fleet.rtt_s.get((near, far), 0.0) + fleet.rtt_s.get((far, near), 0.0)) / 4
        hops.append(HopTime(size / fleet.bytes_per_s[near, far], size / fleet.bytes_per_s[far, near], way))
    line = dataclasses.replace(line, hops=tuple(hops))
    return step_seconds(build(fleet.schedule, len(order), fleet.microbatches), line)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(fleet=fleets(most_nodes=4, most_blocks=6))
def test_plan_is_nearly_the_fastest_of_all(fleet: Fleet) -> None:
    """Over every choice of nodes, order and cuts that fits; also that a plan exists exactly when one is possible."""
    steps = [
        simulated_step(fleet, order, cuts)
        for stages in range(1, min(fleet.nodes, fleet.blocks) + 1)
        for order in every_order(fleet.nodes, stages)
        for cuts in every_cut(fleet.blocks, stages)
        if price(fleet, order, cuts) is not None
    ]
    if not steps:
        with pytest.raises(PlanError):
            plan_for(fleet)
        return
    made = plan_for(fleet)
    order = tuple(int(stage.contact.node_id[2:]) for stage in made.stages)
    cuts = (0, *(stage.end_block for stage in made.stages))
    assert made.period_s * fleet.microbatches == pytest.approx(simulated_step(fleet, order, cuts))
    assert min(steps) <= made.period_s * fleet.microbatches * (1 + 1e-9)
    assert made.period_s * fleet.microbatches <= min(steps) * 1.25


@settings(max_examples=60, deadline=None)
@given(fleet=fleets(most_nodes=4, most_blocks=6))
def test_no_step_on_paper_is_shorter_than_the_bound(fleet: Fleet) -> None:
    measured = fleet.measurements()
    for splits in rank_orders(measured.tables(), None, keep=5).values():
        for split in splits:
            assert shortest_step_s(measured, split) <= predict_step_s(measured, split)


@settings(max_examples=60, deadline=None)
@given(fleet=fleets(most_nodes=4, most_blocks=6))
def test_what_the_bound_rules_out_would_not_have_been_chosen(fleet: Fleet) -> None:
    measured = fleet.measurements()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brigade.partition.solve.shortest_step_s", lambda *_: 0.0)
        everything = propose(measured, None)
    proposals = propose(measured, None)
    if everything:
        assert choose(proposals) == choose(everything)
        chosen = len(choose(everything).split.order)
        counts = {len(proposal.split.order) for proposal in everything}
        assert counts & {chosen - 1, chosen + 1} <= {len(proposal.split.order) for proposal in proposals}


def test_a_node_that_does_not_pay_is_spared() -> None:
    slow = even_fleet(3, 6)
    slow.forward_s[1] = slow.backward_s[1] = [300.0] * 6
    made = plan_for(slow)
    assert names(made) == ["ada", "cyd"]
    assert [spare.name for spare in made.spares] == ["bob"]
    assert names(plan_for(slow, stages=3)) != names(made), "unless so many stages are asked for"


def test_a_gain_below_three_percent_is_not_worth_a_node() -> None:
    # One block carries nearly everything: a second node takes 0.02 of a microbatch's 3.02 s off the first.
    tiny = 0.01
    fleet = even_fleet(2, 2, forward_s=[[1.0, tiny]] * 2, backward_s=[[2.0, tiny]] * 2, microbatches=50)
    assert len(plan_for(fleet).stages) == 1
    fleet = even_fleet(2, 2, forward_s=[[1.0, 10 * tiny]] * 2, backward_s=[[2.0, 10 * tiny]] * 2, microbatches=50)
    assert len(plan_for(fleet).stages) == 2


def test_links_decide_when_they_are_slow() -> None:
    fleet = even_fleet(2, 4, output_bytes=[100] * 4, bytes_per_s={(0, 1): 1.0, (1, 0): 1.0})
    assert len(plan_for(fleet).stages) == 1
    assert "a link takes 100.00 s a microbatch" in plan_for(fleet, stages=2).reason


def test_cuts_avoid_wide_boundaries() -> None:
    fleet = even_fleet(2, 4, output_bytes=[100, 100, 1, 0], bytes_per_s={(0, 1): 10.0, (1, 0): 10.0})
    assert [stage.end_block for stage in plan_for(fleet, stages=2).stages] == [3, 4]


def test_codecs_count() -> None:
    fleet = even_fleet(2, 4, output_bytes=[100] * 4, bytes_per_s={(0, 1): 1.0, (1, 0): 1.0})
    fleet.codecs = CompressionSpec(forward="int8", backward="bf16")
    ratios = {"int8": 100.0, "bf16": 50.0}
    made = plan_for(fleet, codec_ratio=ratios.__getitem__)
    assert [(stage.forward_codec, stage.backward_codec) for stage in made.stages] == [("int8", "raw"), ("raw", "bf16")]
    line = Line((StageTime(2.0, 4.0),) * 2, (HopTime(1.0, 2.0, 0.0),))
    expected = step_seconds(build("1f1b", 2, 4), line)
    assert made.period_s * 4 == pytest.approx(expected)


def test_in_flight_microbatches_need_memory() -> None:
    """GPipe holds all four microbatches everywhere, 1F1B fewer towards the end."""
    fleet = even_fleet(2, 4, persistent_bytes=[0] * 4, saved_bytes=[100] * 4, memory_bytes=[900, 700])
    made = plan_for(fleet, stages=2)  # (2 + 1) * 200 = 600 of 810 on ada, (1 + 1) * 200 = 400 of 630 on bob
    assert names(made) == ["ada", "bob"]
    fleet.schedule = "gpipe"
    with pytest.raises(PlanError, match="closest one is short of"):
        plan_for(fleet, stages=2)  # (4 + 1) * 200 = 1000


def test_neighbours_have_links_both_ways() -> None:
    made = plan_for(even_fleet(3, 6, broken={(0, 1)}), stages=3)
    assert names(made) in (["ada", "cyd", "bob"], ["bob", "cyd", "ada"])


def test_stages_with_a_tied_parameter_have_a_link() -> None:
    tied = (TiedParameter(owner="0.weight", followers=("5.head.weight",)),)
    fleet = even_fleet(3, 6, broken={(0, 2), (2, 0)})
    assert names(plan_for(fleet, stages=3))[1] == "bob"
    fleet.tied = tied
    with pytest.raises(PlanError, match="links fail"):  # ends of the line must be ada and cyd, who cannot meet
        plan_for(fleet, stages=3)
    made = plan_for(fleet)
    assert made.tied == tied
    assert set(names(made)) != {"ada", "bob", "cyd"}


def test_the_optimizer_counts_once_a_step() -> None:
    fleet = even_fleet(1, 2)
    chain = fleet.chains()["id0"]
    blocks = tuple(dataclasses.replace(block, optimizer_s=8.0) for block in chain.blocks)
    made = plan_for(fleet, chains={"id0": dataclasses.replace(chain, blocks=blocks)})
    assert made.period_s * 4 == pytest.approx(4 * 6.0 + 2 * 8.0)


def test_small_batches_have_fewer_microbatches() -> None:
    assert plan_for(even_fleet(2, 4), train_samples=3).microbatches == 3


GIB = 2**30


@pytest.mark.parametrize(
    ("fleet", "stages", "reason"),
    [
        (
            even_fleet(2, 3, persistent_bytes=[1, 1, 3 * GIB], memory_bytes=[2 * GIB, GIB]),
            None,
            "block 2 needs 3.0 GiB, the largest node (ada) has 2.0 GiB, of which a plan uses 1.8 GiB",
        ),
        (
            even_fleet(2, 4, persistent_bytes=[GIB] * 4, memory_bytes=[2 * GIB, 2 * GIB]),
            None,
            "the closest one is short of 204.8 MiB: blocks 0 to 1 need 2.0 GiB, there (ada) has 2.0 GiB, of which",
        ),
        (even_fleet(2, 4), 3, "pipeline.stages is 3, but there are 2 nodes"),
        (even_fleet(3, 2), 3, "pipeline.stages is 3, but the model has 2 blocks"),
        (
            even_fleet(2, 4, broken={(1, 0)}),
            2,
            "the nodes cannot stand in a line, because links fail (bob to ada: unreachable)",
        ),
        (
            even_fleet(2, 4, bytes_per_s={(0, 1): 0.0}),
            2,
            "the nodes cannot stand in a line, because links fail (ada to bob: no data came through)",
        ),
    ],
)
def test_refusals_say_what_is_missing(fleet: Fleet, stages: int | None, reason: str) -> None:
    with pytest.raises(PlanError) as error:
        plan_for(fleet, stages)
    assert reason in str(error.value)


def test_incomplete_measurements_are_refused() -> None:
    fleet = even_fleet(2, 4)
    with pytest.raises(PlanError, match="no node"):
        plan_for(fleet, contacts=[])
    with pytest.raises(PlanError, match="node bob has not reported"):
        plan_for(fleet, devices={"id0": fleet.devices()["id0"]})
    with pytest.raises(PlanError, match="ada to bob: not measured"):
        plan_for(fleet, 2, links={})
    with pytest.raises(PlanError, match="0 samples"):
        plan_for(fleet, train_samples=0)
    other = dataclasses.replace(fleet.chains()["id1"], fingerprint="other")
    with pytest.raises(PlanError, match="ada and bob have different models"):
        plan_for(fleet, chains={"id0": fleet.chains()["id0"], "id1": other})


def test_eight_nodes_are_planned() -> None:
    made = plan_for(even_fleet(8, 16))
    assert sorted(names(made)) == [name(node) for node in range(8)]
    assert [stage.end_block - stage.first_block for stage in made.stages] == [2] * 8


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00042, "0.42 ms"), (0.0042, "4.2 ms"), (0.0951, "95 ms"), (2.345, "2.35 s")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
