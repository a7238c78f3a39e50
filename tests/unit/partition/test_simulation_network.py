"""Ports that are shared, links that are cut, values that wait for each other."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.partition.line_cases import even_line

from brigade.partition.closed_forms import Capacity, capacity, minimal_warm_ups, passage_s, period_s
from brigade.partition.line import Access, HopTime, Line, PortTime, Server, StageTime, connect
from brigade.partition.policy import alternation
from brigade.partition.simulation.agenda import Agenda
from brigade.partition.simulation.disturbances import QUIET, Calendar, Noise, Slowdown, Stall, calendars
from brigade.partition.simulation.network import Network
from brigade.partition.simulation.run import UpdateRound, simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.simulation.walks import strict_alternation
from brigade.wire.errors import PlanError

IDLE = StageTime(0.0, 0.0)


class Wire:
    """A network alone: what is sent when, and what arrives when."""

    def __init__(self, line: Line, disturbances=(), noise=QUIET) -> None:
        self.agenda = Agenda()
        self.arrivals: list[tuple[int, int, float]] = []
        self.network = Network(self.agenda, line, self.note, calendars(disturbances), noise, seed=5)

    def note(self, link: int, index: int) -> None:
        self.arrivals.append((link, index, round(self.agenda.now, 9)))

    def run(self, *sendings: tuple[float, int, int]) -> list[tuple[int, int, float]]:
        for at, link, index in sendings:
            self.agenda.at(at, self.network.send, link, index)
        self.agenda.run(lambda: False)
        return self.arrivals


def middle_port(**port) -> Line:
    """Three stages with pure latency of 1 s, and a port at the middle one."""
    return Line((IDLE,) * 3, (HopTime(0.0, 0.0, 1.0),) * 2, (PortTime(), PortTime(**port), PortTime()))


TO_LAST, TO_FIRST, FROM_FIRST, FROM_LAST = 2, 1, 0, 3  # links of the middle stage


def test_a_link_serves_in_order_then_the_way_takes_its_time() -> None:
    line = Line((IDLE,) * 2, (HopTime(2.0, 3.0, 10.0, 20.0),))
    assert Wire(line).run((0.0, 0, 0), (1.0, 0, 1), (7.0, 0, 2), (0.0, 1, 0)) == [
        (0, 0, 12.0),
        (0, 1, 14.0),
        (0, 2, 19.0),
        (1, 0, 23.0),
    ]


def test_on_a_shared_uplink_a_gradient_overtakes_an_activation() -> None:
    line = middle_port(activation_out_s=4.0, gradient_out_s=1.0)
    arrivals = Wire(line).run((0.0, TO_LAST, 0), (0.0, TO_LAST, 1), (1.0, TO_FIRST, 0), (1.5, TO_FIRST, 1))
    assert arrivals == [(TO_FIRST, 0, 3.0), (TO_FIRST, 1, 4.0), (TO_LAST, 0, 7.0), (TO_LAST, 1, 11.0)]


def test_a_half_duplex_pipe_serves_what_comes_first() -> None:
    line = middle_port(
        activation_out_s=4.0, gradient_out_s=1.0, activation_in_s=2.0, gradient_in_s=3.0, half_duplex=True
    )
    arrivals = Wire(line).run((0.0, FROM_FIRST, 0), (0.5, FROM_LAST, 0), (0.0, TO_LAST, 0), (2.0, TO_FIRST, 0))
    # the pipe: out until 4; in from 1, waits until 6; the other in until 9; out until 10
    assert arrivals == [(TO_LAST, 0, 5.0), (FROM_FIRST, 0, 6.0), (FROM_LAST, 0, 9.0), (TO_FIRST, 0, 11.0)]


def test_a_downlink_serves_what_comes_first_whenever_it_was_sent() -> None:
    line = Line(
        (IDLE,) * 3, (HopTime(0, 0, 5.0), HopTime(0, 0, 1.0)), (PortTime(), PortTime(0, 0, 2.0, 2.0), PortTime())
    )
    assert Wire(line).run((0.0, FROM_FIRST, 0), (1.0, FROM_LAST, 0)) == [(FROM_LAST, 0, 4.0), (FROM_FIRST, 0, 7.0)]


@pytest.mark.parametrize("shared", [False, True])
def test_a_value_passes_all_places_at_once(shared: bool) -> None:
    out = PortTime(activation_out_s=4.0, gradient_out_s=1.0 if shared else 0.0)
    line = Line(
        (IDLE,) * 3, (HopTime(0, 0, 1.0), HopTime(3.0, 0, 1.0)), (PortTime(), out, PortTime(activation_in_s=5.0))
    )
    assert Wire(line).run((0.0, TO_LAST, 0), (0.0, TO_LAST, 1)) == [(TO_LAST, 0, 6.0), (TO_LAST, 1, 11.0)]


def test_a_cut_one_way_leaves_the_other() -> None:
    line = Line((IDLE,) * 2, (HopTime(2.0, 2.0, 1.0),))
    arrivals = Wire(line, [Stall(Server("activations", 0), 1.0, 10.0)]).run((0.0, 0, 0), (0.0, 1, 0), (5.0, 0, 1))
    assert arrivals == [(1, 0, 3.0), (0, 0, 13.0), (0, 1, 15.0)], "half of the first was through"


def test_a_line_that_costs_nothing_can_be_cut() -> None:
    line = Line((IDLE,) * 2, (HopTime(0.0, 0.0, 1.0),))
    assert Wire(line, [Stall(Server("activations", 0), 1.0, 10.0)]).run((0.0, 0, 0), (5.0, 0, 1)) == [
        (0, 0, 1.0),
        (0, 1, 12.0),
    ]


def test_a_slower_uplink_also_where_it_is_shared() -> None:
    line = middle_port(activation_out_s=4.0, gradient_out_s=1.0)
    slower = [Slowdown(Server("uplink", 1), 2.0, 3.0)]
    assert Wire(line, slower).run((0.0, TO_LAST, 0)) == [(TO_LAST, 0, 2 + 6 + 1.0)]
    assert Wire(line, slower).run((0.0, TO_LAST, 0), (5.0, TO_FIRST, 0)) == [(TO_FIRST, 0, 9.0), (TO_LAST, 0, 12.0)]


def test_values_of_a_link_never_overtake_each_other() -> None:
    noise = Noise(transfer_cv=0.5, way_jitter_s=3.0, loss=0.2)
    arrivals = Wire(Line((IDLE,) * 2, (HopTime(0.1, 0.1, 1.0),)), noise=noise).run(
        *((0.2 * i, 0, i) for i in range(3000))
    )
    assert [index for _, index, _ in arrivals] == list(range(3000))


@given(
    pieces=st.lists(st.tuples(st.booleans(), st.floats(0, 20), st.floats(0.1, 5)), max_size=6),
    start=st.floats(0, 30),
    work=st.floats(0.01, 20),
)
def test_a_calendar_finishes_what_fits_in(pieces, start: float, work: float) -> None:
    server = Server("compute", 0)
    plan = Calendar([Stall(server, at, value) if stall else Slowdown(server, at, value) for stall, at, value in pieces])
    end = plan.finish(start, work)
    assert plan.work_between(start, end) == pytest.approx(work)
    assert 0 <= plan.stalled_between(start, end) <= end - start + 1e-9
    assert plan.finish(start, 0.0) >= start


def test_nonsense_is_refused() -> None:
    with pytest.raises(PlanError):
        Calendar([Slowdown(Server("compute", 0), 0.0, 0.0)])
    with pytest.raises(PlanError):
        Calendar([Stall(Server("compute", 0), -1.0, 1.0)])


# --- whole lines ------------------------------------------------------------------------------------------------------


def ported(stages, accesses, ways) -> Line:
    return connect(stages, accesses, [1e6] * len(ways), [1e6] * len(ways), ways)


@pytest.mark.parametrize(("half_duplex", "expected"), [(False, 0.4), (True, 0.8)])
def test_the_bound_of_a_shared_port_is_exact(half_duplex: bool, expected: float) -> None:
    """0.2 s on the port for each value and 0.3 s of computing: 0.4 s, not 0.3 s; half duplex 0.8 s."""
    line = ported([StageTime(0.1, 0.2)] * 4, [Access(5e6, 5e6, half_duplex)] * 4, [0.05] * 3)
    assert capacity(line).period_s == pytest.approx(expected)
    ample = [2 * w for w in minimal_warm_ups(line, expected)]
    assert simulate(line, alternation(ample), Work(400, 400)).period_s == pytest.approx(expected, rel=1e-3)
    separate = Line(line.stages, (HopTime(0.2, 0.2, 0.05),) * 3)
    warm_ups = minimal_warm_ups(separate, 0.3)
    assert simulate(separate, strict_alternation(warm_ups, 400), Work(400, 400)).period_s == pytest.approx(
        0.3, rel=1e-3
    )


def test_random_shared_ports_reach_the_bound_and_never_beat_it() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        count = chance.randint(2, 8)
        line = ported(
            [StageTime(chance.uniform(0.05, 0.3), chance.uniform(0.1, 0.6)) for _ in range(count)],
            [Access(chance.uniform(1e6, 9e6), chance.uniform(2e6, 2e7), chance.random() < 0.2) for _ in range(count)],
            [chance.uniform(0, 0.3) for _ in range(count - 1)],
        )
        best = capacity(line).period_s
        report = simulate(line, alternation(minimal_warm_ups(line, 0.8 * best), 2), Work(300, 300))
        assert report.period_s == pytest.approx(best, rel=0.01), seed
        assert report.wall_s >= max(300 * best, passage_s(line)) * (1 - 1e-9)
        assert max(report.utilisation.values()) <= 1


# --- gates and stalls, against worked numbers -----------------------------------------------------------------------------


def gated_period(per_update: int, versions: int = 2, lag_s: float = 0.0) -> float:
    """In units of the best period: eight equal stages, 14 forwards of warm-up, hops of 0.2 s there and back."""
    line = Line((StageTime(0.1, 0.2),) * 8, (HopTime(0.01, 0.01, 0.09),) * 7)
    warm_ups = minimal_warm_ups(line, 0.3)
    assert warm_ups[0] == 14
    work = Work(40 * per_update, per_update, versions)
    return simulate(line, alternation(warm_ups), work, update_round=UpdateRound(lag_s=lag_s)).period_s / 0.3


def test_two_versions_are_free_from_as_many_microbatches_as_the_warm_up() -> None:
    assert gated_period(16) == pytest.approx(1, abs=1e-3)
    assert gated_period(14) == pytest.approx(1, abs=1e-3)
    assert gated_period(13) == pytest.approx(1.036, abs=0.01)
    assert gated_period(12) == pytest.approx(1.08, abs=0.01)
    assert gated_period(7, versions=3) == pytest.approx(1, abs=1e-3)
    assert gated_period(6, versions=3) > 1.02


def test_updates_hide_behind_the_microbatches_that_are_spare() -> None:
    assert gated_period(22, lag_s=8 * 0.3) == pytest.approx(1, abs=1e-3)
    assert gated_period(21, lag_s=8 * 0.3) > 1.01
    assert gated_period(18, lag_s=8 * 0.3) == pytest.approx(1.12, abs=0.02)


def stall_loss(line: Line, stage: int, alpha: float, slack: int, stall_s: float) -> float:
    """Seconds by which microbatches come later, long after a stall; mean over where in a period it begins."""
    warm_ups = minimal_warm_ups(line, alpha * capacity(line).period_s)

    def finish(disturbances) -> float:
        return simulate(line, alternation(warm_ups, slack), Work(400, 400), disturbances=disturbances).finishes_s[350]

    quiet = finish([])
    starts = (40.0, 40.07, 40.13, 40.19, 40.25)
    return sum(finish([Stall(Server("compute", stage), at, stall_s)]) - quiet for at in starts) / len(starts)


def test_spare_microbatches_absorb_the_stall_of_a_stage_that_has_headroom() -> None:
    stages = [StageTime(0.08, 0.16)] * 6
    stages[3] = StageTime(0.1, 0.2)
    line = Line(tuple(stages), (HopTime(0.01, 0.01, 0.09),) * 5)
    assert stall_loss(line, 1, 1.0, 0, 0.5) == pytest.approx(0.04, abs=0.05)
    assert stall_loss(line, 1, 1.0, 0, 1.0) == pytest.approx(0.54, abs=0.15)
    assert stall_loss(line, 1, 0.8, 2, 1.0) <= 0.16
    assert stall_loss(line, 1, 0.6, 4, 2.0) <= 0.22


def test_nothing_absorbs_the_stall_of_the_slowest_stage() -> None:
    line = even_line(6, 0.3, 0.1)
    assert stall_loss(line, 2, 1.0, 0, 1.0) == pytest.approx(1.0, abs=0.1)
    assert stall_loss(line, 2, 0.8, 2, 1.0) > 0.7


def test_a_stalled_stage_says_so_and_its_times_add_up() -> None:
    line = even_line(3, 1.0, 0.1)
    disturbances = [Stall(Server("compute", 1), 10.5, 4.0), Slowdown(Server("compute", 2), 20.0, 2.0)]
    report = simulate(line, alternation([4, 2, 0]), Work(40, 40), disturbances=disturbances)
    assert report.stages[1].stalled_s == pytest.approx(4.0, abs=0.7)
    assert report.stages[0].stalled_s == report.stages[2].stalled_s == 0
    assert report.stages[2].computing_s > 55
    assert all(stage.wall_s == pytest.approx(report.wall_s) for stage in report.stages)
    assert report.wall_s > period_s(line, [4, 2, 0]) * 40 + 15


def test_hops_over_one_trunk_wait_for_each_other() -> None:
    """Two hops leave for the other side over one line, as where a line crosses between two sites twice."""
    stages = (StageTime(0.1, 0.1),) * 4
    hops = (HopTime(1.0, 0.0, 0.0), HopTime(0.0, 0.0, 0.0), HopTime(1.0, 0.0, 0.0))
    apart = Line(stages, hops)
    together = Line(stages, hops, trunks=((0, -1), (-1, -1), (0, -1)))
    assert capacity(apart).period_s == pytest.approx(1.0)
    assert capacity(together) == Capacity(pytest.approx(2.0), Server("trunk", 0))
    for line, period in ((apart, 1.0), (together, 2.0)):
        walks = alternation((20, 20, 20, 0), 1)
        report = simulate(line, walks, Work(200, 200))
        assert 200 * period <= report.makespan_s <= 200 * period * 1.03
    assert report.busy_s[Server("trunk", 0)] == pytest.approx(2 * 200)


def test_a_trunk_that_stalls_holds_up_whatever_takes_it() -> None:
    line = Line((StageTime(0.1, 0.1),) * 2, (HopTime(1.0, 0.0, 0.0),), trunks=((3, -1),))
    stall = Stall(Server("trunk", 3), 0.5, 4.0)
    held_up = simulate(line, alternation((0, 0)), Work(1, 1), disturbances=[stall])
    assert held_up.makespan_s == pytest.approx(simulate(line, alternation((0, 0)), Work(1, 1)).makespan_s + 4.0)


def test_trunks_must_match_the_hops() -> None:
    with pytest.raises(PlanError, match="trunks for 1 hops"):
        Line((StageTime(1.0, 1.0),) * 2, (HopTime(0.0, 0.0, 0.0),), trunks=((0, 0), (0, 0)))
