"""Formulas against the recursion that they are the closed form of, and against worked tables."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.partition.line_cases import WORKED, even_line, lines, recursion_period_s

from brigade.partition.closed_forms import (
    capacity,
    capped_period_s,
    delay,
    flush_microbatches,
    gate_is_free,
    in_flight_depths,
    least_per_update,
    makespan_bound_s,
    minimal_warm_ups,
    overlap_budget_s,
    passage_s,
    period_s,
    plain_warm_ups,
    stall_loss_s,
)
from brigade.partition.line import Access, HopTime, Line, PortTime, Server, StageTime, connect
from brigade.wire.errors import PlanError


@pytest.mark.parametrize("case", WORKED, ids=lambda case: case.name)
def test_the_worked_table(case) -> None:
    line = case.line
    best = capacity(line).period_s
    stages = len(line.stages)
    warm_ups = minimal_warm_ups(line, best)
    assert best == pytest.approx(case.period_s)
    assert in_flight_depths(line, best)[0] == case.in_flight
    assert warm_ups[0] == case.warm_up
    assert round(100 * best / period_s(line, plain_warm_ups(stages))) == case.plain_percent
    if case.flush_microbatches is not None:
        assert flush_microbatches(line, best, 0.9) == case.flush_microbatches
        assert least_per_update(warm_ups[0], 2) == case.per_update
    assert period_s(line, warm_ups) == pytest.approx(best)


@given(line=lines(), data=st.data())
def test_the_period_is_that_of_the_recursion(line: Line, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 3), min_size=len(line.stages) - 1, max_size=len(line.stages) - 1))
    warm_ups = [sum(steps[k:]) for k in range(len(line.stages))]
    assert period_s(line, warm_ups) == pytest.approx(recursion_period_s(line, warm_ups), rel=0.01)


@given(line=lines())
def test_minimal_warm_ups_reach_the_capacity_and_fewer_do_not(line: Line) -> None:
    best = capacity(line).period_s
    warm_ups = minimal_warm_ups(line, best)
    assert period_s(line, warm_ups) == pytest.approx(best)
    assert all(near >= far for near, far in pairwise(warm_ups))
    assert all(w + 1 >= depth for w, depth in zip(warm_ups, in_flight_depths(line, best), strict=True)), "Little's law"
    for stage in range(len(warm_ups) - 1):
        fewer = [w - (k == stage) for k, w in enumerate(warm_ups)]
        if fewer[stage] >= warm_ups[stage + 1]:
            assert period_s(line, fewer) > best * (1 + 1e-9)


@given(stages=st.integers(2, 9), compute=st.floats(0.1, 5), hop=st.floats(0, 20))
def test_equal_stages(stages: int, compute: float, hop: float) -> None:
    line = even_line(stages, compute, hop / 2)
    plain = compute + hop * (stages - 1) / stages
    assert period_s(line, plain_warm_ups(stages)) == pytest.approx(plain)
    per_hop = 1 + math.ceil(hop / compute - 1e-9)
    if hop > 0.01:
        assert minimal_warm_ups(line, compute) == tuple(per_hop * (stages - 1 - k) for k in range(stages))


def test_without_hops_the_minimum_is_plain_1f1b() -> None:
    assert minimal_warm_ups(even_line(5, 0.3, 0.0), 0.3) == plain_warm_ups(5)
    assert minimal_warm_ups(even_line(5, 0.3, 0.001), 0.3 * 1.02) == plain_warm_ups(5), "a trifle of latency is none"


def test_a_shared_uplink_carries_both_of_its_values() -> None:
    stages = [StageTime(0.1, 0.2)] * 4
    wide = Access(1e9, 1e9)

    def best(narrow: Access) -> tuple[float, Server]:
        line = connect(stages, [wide, narrow, wide, wide], [1e6] * 3, [5e5] * 3, [0.05] * 3)
        found = capacity(line)
        return found.period_s, found.limited_by

    assert best(Access(3e6, 1e9)) == (pytest.approx(1.5e6 / 3e6), Server("uplink", 1))
    assert best(Access(1e9, 2e6)) == (pytest.approx(1.5e6 / 2e6), Server("downlink", 1))
    assert best(Access(6e6, 3e6, half_duplex=True)) == (pytest.approx(1.5 / 6 + 1.5 / 3), Server("pipe", 1))
    assert best(wide) == (pytest.approx(0.3), Server("compute", 0))
    assert str(Server("uplink", 1)) == "uplink of host 1"


def test_stages_on_one_host_share_its_port_and_hand_over_for_nothing() -> None:
    stages = [StageTime(0.01, 0.02)] * 4
    narrow = Access(1e6, 1e6)
    line = connect(stages, [narrow] * 4, [1e5, 1e5, 1e5], [1e5, 1e5, 1e5], [0.01] * 3, hosts=[0, 1, 1, 2])
    assert line.loads()[Server("uplink", 1)] == pytest.approx(0.2), "gradient 0 and activation 2"
    assert line.hop_round_trip_s(1) == 0
    assert line.hop_round_trip_s(0) == pytest.approx(0.2 + 0.02)


def test_the_narrowest_place_counts_once_on_the_way() -> None:
    line = Line(
        (StageTime(1, 1, encode_s=0.25, decode_s=0.5),) * 2,
        (HopTime(2.0, 3.0, 10.0, 20.0),),
        (PortTime(activation_out_s=4.0, gradient_in_s=1.0), PortTime(activation_in_s=5.0, gradient_out_s=2.0)),
    )
    assert line.hop_round_trip_s(0) == 5.0 + 3.0 + 30.0 + 2 * (0.25 + 0.5)
    assert passage_s(line) == 2 * 2 + line.hop_round_trip_s(0)
    assert passage_s(line, 1) == 2


def test_a_split_backward_needs_half_the_warm_up() -> None:
    whole = even_line(8, 0.3, 0.045)  # 20 ms on the line each way, 50 ms round trip
    split = Line((StageTime(0.1, 0.2, weights_s=0.1),) * 8, whole.hops)
    assert minimal_warm_ups(whole, 0.3)[0] == 14
    assert minimal_warm_ups(split, 0.3)[0] == 7


def test_what_is_in_flight_caps_the_rate() -> None:
    line = even_line(4, 1.0, 2.0)
    assert passage_s(line) == 4 + 3 * 4
    assert capped_period_s(line, 4) == 4
    assert capped_period_s(line, 100) == 1


def test_updates_crossed_and_gates() -> None:
    assert [delay(14, per_update) for per_update in (1, 2, 4, 8, 16)] == [14, 7, 4, 2, 1]
    assert delay(0, 4) == 0
    assert gate_is_free([14, 12, 0], 14, versions=2)
    assert not gate_is_free([14, 12, 0], 13, versions=2)
    assert gate_is_free([14], 7, versions=3)
    assert gate_is_free([14], 22, versions=2, update_s=8 * 0.3, period_s=0.3)
    assert not gate_is_free([14], 21, versions=2, update_s=8 * 0.3, period_s=0.3)
    assert overlap_budget_s(14, 22, 2, 0.3) == pytest.approx(8 * 0.3)
    assert least_per_update(14, 2, update_s=2.3, period_s=0.3) == 22
    assert least_per_update(14, 3) == 7
    with pytest.raises(PlanError):
        least_per_update(14, 1)


@given(
    w=st.integers(0, 40),
    versions=st.integers(2, 5),
    update_s=st.just(0.0) | st.floats(1e-6, 9),
    period=st.floats(0.1, 3),
)
def test_the_least_number_a_batch_is_the_least(w: int, versions: int, update_s: float, period: float) -> None:
    least = least_per_update(w, versions, update_s, period)
    assert gate_is_free([w], least, versions, update_s * (1 - 1e-9), period)
    assert least == 1 or not gate_is_free([w], least - 1, versions, update_s, period)


def test_a_stall_costs_what_spare_microbatches_do_not_cover() -> None:
    stages = [StageTime(0.1, 0.15)] * 4
    stages[2] = StageTime(0.1, 0.2)
    line = Line(tuple(stages), (HopTime(0.0, 0.0, 0.2),) * 3)
    minimal = minimal_warm_ups(line, 0.3)
    assert stall_loss_s(line, 1, 1.0, 0.3, minimal, slack=0) == pytest.approx(1.0)
    assert stall_loss_s(line, 1, 1.0, 0.3, minimal, slack=2) == pytest.approx(0.4)
    assert stall_loss_s(line, 1, 1.0, 0.3, minimal, slack=2, headroom_s=0.5) == 0
    assert stall_loss_s(line, 2, 1.0, 0.3, minimal, slack=9) == 1.0, "the slowest stage"


def test_a_step_with_a_flush() -> None:
    line = even_line(4, 1.0, 2.0)
    assert makespan_bound_s(line, minimal_warm_ups(line, 1.0), 10) == 16 + 9
    assert flush_microbatches(line, 1.0, 0.5) == 15
    with pytest.raises(PlanError):
        flush_microbatches(line, 1.0, 1.0)


def test_a_single_stage() -> None:
    line = Line((StageTime(1.0, 2.0),))
    assert capacity(line).period_s == period_s(line, [0]) == passage_s(line) == 3
    assert minimal_warm_ups(line, 3.0) == (0,)
    assert makespan_bound_s(line, [0], 5) == 15


def test_an_order_that_deadlocks_has_no_period() -> None:
    assert period_s(even_line(2, 1.0, 0.0), [0, 1]) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": ()},
        {"stages": (StageTime(1, 1),), "hops": (HopTime(0, 0, 0),)},
        {"stages": (StageTime(1, 1),), "ports": (PortTime(), PortTime())},
        {
            "stages": (StageTime(1, 1),) * 2,
            "hops": (HopTime(0, 0, 0),),
            "ports": (PortTime(half_duplex=True), PortTime()),
            "hosts": (5, 5),
        },
    ],
)
def test_a_line_that_does_not_fit_together_is_refused(wrong) -> None:
    with pytest.raises(PlanError):
        Line(**wrong)
