"""Drawn availability: the distributions that were asked for, the same for a seed, in groups where groups go."""

import math
from collections import Counter
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import pytest
from msgspec.structs import replace

from brigade.lab.availability import WARM_UP_H, Period, draw_periods
from brigade.lab.availability_file import read_periods, trace_events, write_periods
from brigade.lab.availability_spec import Spot, TraceSpec, Volunteers
from brigade.lab.scenario_spec import Join, Kill, Leave
from brigade.wire.errors import ConfigError

STEADY = Volunteers(diurnal=0.0)


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def lengths_h(periods: list[Period], skip_h: float) -> list[float]:
    """Of the periods that begin after a while and end: those that are cut are not of the distribution."""
    return [(p.end_s - p.start_s) / 3600 for p in periods if p.start_s > skip_h * 3600 and math.isfinite(p.end_s)]


def test_sessions_of_volunteers_follow_their_weibull() -> None:
    """Quartiles within 5 %, against scale * (-ln(1 - q)) ** (1 / shape); few sessions are cut in 2,000 hours."""
    model = replace(STEADY, session_shape=0.7, session_scale_h=4.0, absence_log_mean=0.0, absence_log_sigma=0.5)
    spec = TraceSpec(generator="volunteers", hours=2000.0, shortest_s=0.0, volunteers=model)
    drawn = sorted(lengths_h(draw_periods(spec, names(60), 3), 0.0))
    assert len(drawn) > 10_000
    for quantile in (0.25, 0.5, 0.75):
        expected = 4.0 * (-math.log(1 - quantile)) ** (1 / 0.7)
        assert drawn[int(quantile * len(drawn))] == pytest.approx(expected, rel=0.05)
    assert mean(drawn) == pytest.approx(4.0 * math.gamma(1 + 1 / 0.7), rel=0.05)


def test_absences_of_volunteers_follow_their_lognormal() -> None:
    model = replace(STEADY, session_shape=1.0, session_scale_h=1.0, absence_log_mean=0.3, absence_log_sigma=0.8)
    spec = TraceSpec(generator="volunteers", hours=2000.0, shortest_s=0.0, volunteers=model)
    periods = draw_periods(spec, names(30), 4)
    gaps = [(two.start_s - one.end_s) / 3600 for one, two in pairwise(periods) if one.node == two.node]
    assert len(gaps) > 10_000
    assert median(gaps) == pytest.approx(math.exp(0.3), rel=0.05)
    assert mean(gaps) == pytest.approx(math.exp(0.3 + 0.8**2 / 2), rel=0.05)


def test_the_share_of_nodes_that_are_there_is_that_of_a_renewal_process() -> None:
    model = replace(STEADY, session_shape=1.0, session_scale_h=3.0, absence_log_mean=0.0, absence_log_sigma=0.5)
    spec = TraceSpec(generator="volunteers", hours=1.0, shortest_s=0.0, volunteers=model)
    nodes = names(6000)
    there = {period.node for period in draw_periods(spec, nodes, 5) if period.start_s == 0.0}
    absence_h = math.exp(0.5**2 / 2)
    assert len(there) / len(nodes) == pytest.approx(3.0 / (3.0 + absence_h), abs=0.02)
    assert 20 * (3.0 + absence_h) < WARM_UP_H


def test_volunteers_come_back_when_people_are_up() -> None:
    model = Volunteers(session_shape=1.0, session_scale_h=1.0, absence_log_mean=0.0, absence_log_sigma=0.5, diurnal=0.9)
    spec = TraceSpec(generator="volunteers", hours=480.0, start_hour=0.0, shortest_s=0.0, volunteers=model)
    returns = Counter(int(p.start_s / 3600) % 24 for p in draw_periods(spec, names(50), 6) if p.start_s > 0)
    evening, morning = sum(returns[h] for h in (19, 20, 21)), sum(returns[h] for h in (7, 8, 9))
    assert evening > 2 * morning


def test_preemptions_take_groups_at_the_rate_and_of_the_size_that_were_asked_for() -> None:
    model = Spot(preemptions_per_h=0.5, share=0.4, replaced_log_mean=-4.0, replaced_log_sigma=0.5)
    spec = TraceSpec(generator="spot", hours=1000.0, shortest_s=0.0, spot=model)
    groups = Counter(p.end_s for p in draw_periods(spec, names(20), 7) if math.isfinite(p.end_s))
    assert len(groups) == pytest.approx(500, rel=0.1)
    assert mean(groups.values()) == pytest.approx(0.4 * 20, rel=0.05), "all go at the same moment"


def test_the_published_zone_is_recovered() -> None:
    """12 machines of the zone that the defaults were counted in: three at a time, replaced after 13 minutes."""
    spec = TraceSpec(generator="spot", hours=500.0, shortest_s=0.0)
    periods = draw_periods(spec, names(12), 8)
    groups = Counter(p.end_s for p in periods if math.isfinite(p.end_s))
    assert mean(groups.values()) == pytest.approx(3.0, rel=0.15)
    waits = [b.start_s - a.end_s for a, b in pairwise(periods) if a.node == b.node]
    assert median(waits) == pytest.approx(760, rel=0.1)


def test_zones_go_by_themselves() -> None:
    spec = TraceSpec(generator="spot", hours=200.0, shortest_s=0.0, spot=Spot(zones=2))
    periods = [p for p in draw_periods(spec, names(10), 9) if math.isfinite(p.end_s)]
    ends = [{p.end_s for p in periods if int(p.node[1:]) % 2 == zone} for zone in (0, 1)]
    assert ends[0]
    assert ends[1]
    assert not ends[0] & ends[1]


@pytest.mark.parametrize("generator", ["volunteers", "spot"])
def test_a_seed_and_a_name_make_a_node_s_periods(generator: str) -> None:
    spec = TraceSpec(generator=generator, hours=48.0)  # type: ignore[arg-type]
    few, many = draw_periods(spec, names(3), 1), draw_periods(spec, names(30), 1)
    assert few == [period for period in many if period.node in names(3)]
    assert draw_periods(spec, names(3), 2) != few
    by_node = Counter(period.node for period in many)
    assert max(by_node.values()) > 1


def test_a_day_fits_into_minutes() -> None:
    spec = TraceSpec(generator="volunteers", hours=24.0, shortest_s=0.0)
    quick = draw_periods(replace(spec, compress=288.0), names(9), 1)
    slow = draw_periods(spec, names(9), 1)
    assert [astuple(p)[1:] for p in quick] == [pytest.approx((p.start_s / 288, p.end_s / 288)) for p in slow]
    assert max(p.start_s for p in quick) < 300.0
    shorter = draw_periods(replace(spec, compress=288.0, shortest_s=10.0), names(9), 1)
    assert all(p.end_s - p.start_s >= 10.0 for p in shorter)
    for one, two in pairwise(shorter):
        assert one.node != two.node or two.start_s - one.end_s >= 10.0


@pytest.mark.parametrize("generator", ["volunteers", "spot"])
def test_the_largest_numbers_that_are_taken_draw_finite_ones_in_bounded_time(generator: str) -> None:
    extreme = Volunteers(session_shape=0.05, session_scale_h=10_000.0, absence_log_mean=20.0, absence_log_sigma=10.0)
    spec = TraceSpec(generator=generator, hours=10_000.0, volunteers=extreme, compress=0.001)  # type: ignore[arg-type]
    assert all(math.isfinite(period.start_s) for period in draw_periods(spec, names(30), 1))
    often = replace(spec, spot=Spot(preemptions_per_h=3600.0), volunteers=Volunteers(session_scale_h=1e-300))
    with pytest.raises(ConfigError, match="more than 1,000,000 comings and goings"):
        draw_periods(replace(often, volunteers=replace(often.volunteers, absence_log_mean=-20.0)), names(30), 1)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    periods = draw_periods(TraceSpec(generator="spot", hours=10.0), names(5), 1)
    write_periods(tmp_path / "t.csv", periods)
    again = read_periods(tmp_path / "t.csv", names(5))
    assert [p.node for p in again] == [p.node for p in periods]
    assert [astuple(p)[1:] for p in again] == [pytest.approx((p.start_s, p.end_s), abs=1e-3) for p in periods]


def test_a_trace_becomes_joins_and_ends(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("node,start_s,end_s\nn0,0,10\nn0,20,\nn1,5,7\n")
    events = trace_events(TraceSpec(file="t.csv", ends="leave"), tmp_path, names(2), 0)
    assert events == (
        Leave(host="n0", at_s=10.0),
        Join(host="n0", at_s=20.0),
        Join(host="n1", at_s=5.0),
        Leave(host="n1", at_s=7.0),
    )
    rare = Volunteers(session_scale_h=1e-6, session_shape=5.0)
    spec = TraceSpec(generator="volunteers", hours=1.0, volunteers=rare)
    assert trace_events(spec, tmp_path, ["n0"], 0) == (Join(host="n0", at_s=3600.0),), "never there before the end"
    assert any(isinstance(event, Kill) for event in trace_events(TraceSpec(generator="spot"), tmp_path, names(4), 0))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("node,start_s\nn0,1\n", "line 2: expected the columns node, start_s, end_s"),
        ("node,start_s,end_s\nn9,0,1\n", "line 2: node: 'n9' is not known; known: n0"),
        ("node,start_s,end_s\nn0,5,1\n", "line 2: a period ends after it starts; found 5 to 1"),
        ("node,start_s,end_s\nn0,0,9\nn0,8,10\n", "line 3: n0 is there already"),
        ("node,start_s,end_s\nn0,1e300,\n", "line 2: expected at most 100000000 seconds"),
        ("node,start_s,end_s\nn0,0,1e300\n", "line 2: expected at most 100000000 seconds"),
        ("node,start_s,end_s\n" + "n" * 200_000 + ",0,1\n", "cannot be read: field larger than field limit"),
    ],
)
def test_a_mistake_in_a_trace_names_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_periods(tmp_path / "t.csv", ["n0"])
