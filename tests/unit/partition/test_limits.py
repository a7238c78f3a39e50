"""What limits a run: the busiest server where it is busy, else what keeps it waiting, with the right numbers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from brigade.partition.limits import Limit, Pace, find_limit
from brigade.partition.line import Access, HopTime, Line, Server, StageTime, connect
from brigade.partition.schedule import Order, gpipe_order, one_forward_one_backward_order
from brigade.partition.simulation.run import simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.walk import OrderedWalk

OrderMaker = Callable[[int, int, int], Order]


def _step_of(order: Order, step: int) -> Order:
    del step  # all are alike
    return order


def homes(stages: int = 4, one_way_s: float = 0.025, compute_s: float = 0.06, **costs: float) -> Line:
    stage = StageTime(compute_s / 3, compute_s * 2 / 3, **costs)
    return Line((stage,) * stages, (HopTime(0.001, 0.001, one_way_s),) * (stages - 1))


def limit(line: Line, pace: Pace, share: float | None = None) -> Limit:
    found = find_limit(line, pace, lambda server: f"<{server}>", share)
    assert found is not None
    return found


def pace(step_s: float, microbatches: int = 8, schedule: str = "1f1b", **parts: float) -> Pace:
    return Pace(step_s=step_s, microbatches=microbatches, schedule=schedule, **parts)


def test_a_device_that_always_works_sets_the_pace() -> None:
    found = limit(homes(2, one_way_s=0.0), pace(0.06 * 50 / 0.93, 50))
    assert (found.cause, found.busiest) == ("server", Server("compute", 0))
    assert found.text == "<compute of stage 0>: 93% of what these stages can do"


def test_an_uplink_that_always_works_sets_the_pace() -> None:
    line = connect(
        [StageTime(0.01, 0.02)] * 3, [Access(up_bytes_per_s=1e6)] * 3, [5e4] * 2, [5e4] * 2, [0.001] * 2
    )  # the middle one sends 100 kB a microbatch
    found = limit(line, pace(0.1 * 20 / 0.9, 20))
    assert found.text == "<uplink of host 1>: 90% of what these stages can do"


MORE = "(more `microbatches` in a larger `batch_size` would help most)"
OTHER_ORDERS = '(`schedule = "ls-1f1b"` or `"gpipe"` would help most)'


def test_the_order_is_named_where_it_costs_more_than_the_flush() -> None:
    found = limit(homes(), pace(1.2))
    # R_0 = 4 * 0.06 + 3 * (0.002 + 0.05) = 0.396; T(w) = R_0 / 4 = 0.099, T* = 0.06
    assert found.losses["order"] == pytest.approx((0.396 + 7 * 0.099) - (0.396 + 7 * 0.06))
    assert found.losses["flush"] == pytest.approx((0.396 + 7 * 0.099) - (0.396 + 31 * 0.099) / 4)  # 32 microbatches
    assert found.losses["other"] == pytest.approx(1.2 - 0.396 - 7 * 0.099)
    assert found.busy == pytest.approx(0.4)
    assert found.text == (
        f"the order 1f1b: too few microbatches in flight for stages 25 ms apart {OTHER_ORDERS}: 40% of what these"
        " stages can do, of which the busiest is <compute of stage 0>"
    )


def test_few_microbatches_between_far_homes_are_limited_by_the_flush() -> None:
    found = limit(homes(), pace(0.83, schedule="gpipe"))
    assert found.losses["order"] == 0
    assert found.losses["flush"] == pytest.approx(0.75 * (0.396 - 0.06))
    assert found.text == (
        f"the flush at the end of each step: 8 microbatches are too few for 4 stages 25 ms apart {MORE}: 58% of what"
        " these stages can do, of which the busiest is <compute of stage 0>"
    )


@pytest.mark.parametrize("microbatches", [4, 6, 8, 12, 16, 40])
def test_the_largest_lever_is_the_one_that_saves_most_in_the_simulator(microbatches: int) -> None:
    def step_s(order: OrderMaker, count: int) -> float:
        walks = [
            OrderedWalk(partial(_step_of, order(stage, 4, count)), first=stage == 0, last=stage == 3)
            for stage in range(4)
        ]
        return simulate(homes(), walks, Work(count, count)).makespan_s

    now_s = step_s(one_forward_one_backward_order, microbatches)
    saved = {
        "order": now_s - step_s(gpipe_order, microbatches),
        "flush": now_s - step_s(one_forward_one_backward_order, 4 * microbatches) / 4,
    }
    found = limit(homes(), pace(now_s, microbatches))
    assert found.cause == max(saved, key=lambda each: saved[each])
    for cause, seconds in saved.items():
        assert found.losses[cause] == pytest.approx(seconds, abs=0.05 * now_s)


def test_many_microbatches_in_an_order_that_keeps_few_in_flight_are_limited_by_the_order() -> None:
    found = limit(homes(), pace(100 * 0.099, 100))
    assert found.cause == "order"
    assert f"the order 1f1b: too few microbatches in flight for stages 25 ms apart {OTHER_ORDERS}: 61% of" in found.text
    # GPipe has all of them in flight: what it lost must be something else
    assert limit(homes(), pace(100 * 0.099, 100, "gpipe")).cause == "other"


def test_an_order_with_warm_ups_of_its_own_is_judged_by_them() -> None:
    # two more in flight at each stage than that follow: the cycle of two stages, 0.172, carries three microbatches
    enough = replace(pace(1.2, schedule="ls-1f1b"), warm_ups=(6, 4, 2, 0))
    assert limit(homes(), enough).losses["order"] == pytest.approx(0)
    few = limit(homes(), replace(pace(100 * 0.099, 100, "ls-1f1b"), warm_ups=(3, 2, 1, 0)))
    assert 'in flight for stages 25 ms apart (`schedule = "gpipe"` would help most): 61%' in few.text


def test_latency_is_not_blamed_where_there_is_none() -> None:
    found = limit(homes(one_way_s=0.0), pace(0.7))
    assert found.what == f"the flush at the end of each step: 8 microbatches are too few for 4 stages {MORE}"
    one = limit(homes(one_way_s=0.0), pace(0.3, 1))
    assert one.what == f"the flush at the end of each step: a single microbatch keeps one stage busy at a time {MORE}"


def test_links_of_different_length_are_told_by_the_longest() -> None:
    line = homes()
    hops = tuple(replace(hop, one_way_s=way) for hop, way in zip(line.hops, (0.01, 0.05, 0.37), strict=True))
    assert limit(replace(line, hops=hops), pace(3.0)).what.endswith(
        f" in flight for stages up to 370 ms apart {OTHER_ORDERS}"
    )


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"norm_round_s": 0.5}, "norm round"),
        ({"evaluation_s": 0.5}, "evaluation"),
        ({"recovery_s": 0.5}, "recovery"),
        ({}, "other"),
    ],
)
def test_what_was_measured_is_named_when_it_costs_most(parts: dict[str, float], cause: str) -> None:
    found = limit(homes(one_way_s=0.0), pace(1.3, **parts))
    assert found.cause == cause
    assert found.text.endswith(
        f": {0.48 / 1.3:.0%} of what these stages can do, of which the busiest is <compute of stage 0>"
    )


def test_encoding_is_what_the_line_would_gain_without_it() -> None:
    # R_0 is 0.246 without and 0.366 with four codings of 10 ms a hop; T(w) is a quarter of that.
    found = limit(homes(one_way_s=0.0, encode_s=0.01, decode_s=0.01), pace(1.2))
    assert found.losses["encoding"] == pytest.approx(0.12 + 7 * 0.03)
    assert found.losses["other"] == pytest.approx(1.2 - 0.366 - 7 * 0.0915)
    assert found.what.startswith("encoding and decoding what the links carry (")


def test_the_optimizer_counts_once_a_step() -> None:
    found = limit(homes(one_way_s=0.0, optimizer_s=0.7), pace(1.5))
    assert (found.cause, found.losses["optimizer"]) == ("optimizer", pytest.approx(0.75 * 0.7))


def test_the_share_may_be_known_better() -> None:
    assert ": 31% of what these stages can do, of which" in limit(homes(), pace(1.2), share=0.31).text


def test_nothing_limits_what_did_not_begin() -> None:
    idle = Line((StageTime(0.0, 0.0),))
    assert find_limit(idle, pace(1.0), str) is None
    assert find_limit(homes(), pace(0.0), str) is None
