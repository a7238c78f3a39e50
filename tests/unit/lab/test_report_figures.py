"""The figures hold the numbers of the result and of the timelines, at the right places."""

import math

import pytest
from msgspec.structs import replace as changed
from tests.unit.lab.made_up import (
    BACKWARD_S,
    BEGAN_AT_S,
    FORWARD_S,
    WAY_S,
    made_up,
    made_up_lives,
    made_up_result,
    step_length,
)

from brigade.lab import attribution
from brigade.lab.relay_orders import RouteCount
from brigade.lab.report.fleet_graph import Use, bytes_text, edges_of, fleet_figure
from brigade.lab.report.pipeline import MOST_STEPS, last_steps, messages, pipeline_figure
from brigade.lab.report.progress import held_out_points, over_time, over_tokens, pauses, speeds, timed
from brigade.lab.report.waits import PARTS, parts_of, waits_figure
from brigade.lab.result import Point
from brigade.node.timeline import Action, StageBegan, StageLife


def test_speed_is_tokens_by_time_and_a_pause_belongs_to_the_step_after_it():
    curve = [Point(1, 1.0, 100, 5.0), Point(2, 2.0, 200, 4.0), Point(3, 12.0, 300, 3.0)]
    assert [speed.of_step for speed in speeds(curve)] == [100.0, 100.0, 10.0]  # ten usual steps are no pause yet
    assert [speed.of_some for speed in speeds(curve)] == pytest.approx([100.0, 100.0, 25.0])


def test_the_mean_of_five_steps_is_over_five_steps():
    curve = [Point(i, float(i * i), 100 * i, None) for i in range(1, 9)]
    assert speeds(curve)[-1].of_some == 500 / (64 - 9)


def test_points_without_a_time_are_left_out_of_time_only():
    curve = (Point(1, 1.0, 10, 5.0), Point(2, 0.0, 20, 4.0), Point(3, 2.0, 30, 3.0))
    assert [point.step for point in timed(curve)] == [1, 3]
    run = made_up(2)
    run = type(run)(title="x", result=changed(run.result, loss=changed(run.result.loss, curve=curve)))
    assert list(over_tokens([run]).data[0].x) == [10, 20, 30]
    assert list(over_time([run]).data[1].x) == [1.0, 2.0]


def test_held_out_losses_stand_where_their_step_does():
    result = made_up_result(2, steps=10, step_s=2.0)
    assert [(point.at_s, point.tokens, loss) for point, loss in held_out_points(result)] == [
        (10.0, 5000, 1.1),
        (20.0, 10_000, 0.6),
    ]


def test_means_begin_anew_after_a_pause_and_lines_break_there():
    curve = tuple(Point(i, float(i), 100 * i, 5.0) for i in range(1, 5))
    curve += tuple(Point(i, 30.0 + 0.5 * i, 100 * i, 4.0) for i in range(5, 9))
    assert pauses(curve) == [(4.0, 32.5)]
    assert [speed.of_some for speed in speeds(curve)] == [100.0] * 4 + [None] + [200.0] * 3
    run = made_up(2)
    run = type(run)(title="x", result=changed(run.result, loss=changed(run.result.loss, curve=curve)))
    loss = next(trace for trace in over_time([run]).data if trace.name == "training loss")
    assert loss.y[4] is None
    assert (4.0, 32.5) in {(shape.x0, shape.x1) for shape in over_time([run]).layout.shapes}


def test_the_axis_of_speeds_begins_at_zero_and_holds_the_bound_but_not_a_step_that_was_told_late():
    curve = tuple(Point(i, float(i), 1000 * i, 1.0) for i in range(1, 40))
    curve += (Point(40, 39.0001, 40_000, 1.0),)
    run = made_up(2)
    run = type(run)(title="x", result=changed(run.result, loss=changed(run.result.loss, curve=curve)))
    low, high = over_time([run]).layout.yaxis3.range
    assert low == 0
    assert run.result.bound_tokens_per_s < high < 10 * run.result.bound_tokens_per_s


def test_events_carry_their_numbers_and_those_before_training_are_not_drawn():
    run = made_up(2, events=((4.0, "a"), (4.001, "b"), (8.0, "c")))
    marks = over_time([run]).data[0]
    assert list(marks.x) == [0.0, 4.0, 4.001, 8.0]
    assert list(marks.text) == ["2", "", "3-4", "5"], "numbers do not lie on each other"


def test_the_parts_of_a_stage_are_drawn_as_shares_of_its_wall_time():
    run = made_up(3)
    assert [part.field for part in PARTS] == list(attribution.PARTS)
    for stage in run.result.waits:
        assert sum(seconds for _, seconds in parts_of(stage)) == pytest.approx(stage.wall_s)
    bars = {bar.name: bar for bar in waits_figure(run).data}
    assert list(bars["forward"].x) == pytest.approx([20.0] * 3)
    assert sum(bar.x[1] for bar in bars.values()) == pytest.approx(100.0)


def test_the_last_steps_are_those_of_the_last_plan():
    old, new = (
        made_up_lives(2, steps=9, generation=0),
        made_up_lives(3, steps=5, generation=1, began_at_s=BEGAN_AT_S + 90),
    )
    shown = last_steps([*new, *old])
    length = step_length(3, 4)
    assert (shown.stages, shown.first_step, shown.last_step) == (3, 5 - MOST_STEPS, 4)
    assert shown.begin_s == pytest.approx(BEGAN_AT_S + 90 + (5 - MOST_STEPS) * length)
    assert {action.step for _, action in shown.actions} == {3, 4}


def test_a_plan_that_trained_nothing_is_not_the_last():
    began = StageBegan(run_id="r", generation=5, stage=0, node="ada", stages=2, at_s=BEGAN_AT_S)
    idle = StageLife(began, [Action("load", 0, -1, BEGAN_AT_S, BEGAN_AT_S + 1)])
    assert last_steps([idle, *made_up_lives(2)]).stages == 2
    assert last_steps([idle]) is None


def test_bars_lie_where_the_actions_were():
    run = made_up(4)
    figure = pipeline_figure(run)
    bars = {bar.name: bar for bar in figure.data if bar.type == "bar"}
    forward = sorted(zip(bars["forward"].base, bars["forward"].x, bars["forward"].y, bars["forward"].text, strict=True))
    assert forward[0] == (pytest.approx(0.0, abs=1e-6), pytest.approx(FORWARD_S, abs=1e-6), pytest.approx(-0.05), "0")
    assert len(forward) == MOST_STEPS * 4 * 4
    assert bars["backward"].x[0] == pytest.approx(BACKWARD_S, abs=1e-6)
    assert figure.layout.yaxis.ticktext == tuple(f"node-{i} · {i}" for i in range(4))


def test_messages_lead_from_sender_to_receiver():
    found = messages(last_steps(made_up_lives(3)))
    assert len(found["activation"]) == len(found["gradient"]) == MOST_STEPS * 2 * 4
    for sent, source, arrived, target in found["activation"]:
        assert target == source + 1
        assert arrived.end_s - sent.begin_s == pytest.approx(WAY_S, abs=1e-6)


def test_a_stage_without_a_timeline_keeps_its_row():
    run = made_up(4)
    run = type(run)(title="x", result=run.result, lives=tuple(life for life in run.lives if life.began.stage != 2))
    assert pipeline_figure(run).layout.yaxis.ticktext[2].startswith("no timeline")


def test_neighbours_have_edges_both_ways_and_small_talk_has_none():
    run = made_up(3, spares=1)
    routes = (
        *run.result.wire.routes,
        RouteCount("node-0", "node-2", 70_000, 70_000),
        RouteCount("node-2", "spare-0", 900_000, 900_000),
    )
    result = changed(run.result, wire=changed(run.result.wire, routes=routes))
    edges = {
        (e.source, e.target): e
        for e in edges_of(type(run)(title="x", result=result))
        if "coordinator" not in (e.source, e.target)
    }
    assert {pair for pair, edge in edges.items() if edge.neighbours} == {
        ("node-0", "node-1"), ("node-1", "node-0"), ("node-1", "node-2"), ("node-2", "node-1"),
    }  # fmt: skip
    assert ("node-0", "node-2") not in edges
    assert not edges["node-2", "spare-0"].neighbours
    assert edges["node-0", "node-1"].rate == 4_000_000 / result.seconds


def test_a_link_has_the_colour_of_its_use():
    assert [Use.of(share)[0] for share in (0.0, 0.25, 0.6, 0.8, 0.9, 1.5)] == [
        "busy below 25 %", "25 to 50 %", "50 to 75 %", "75 to 90 %", "above 90 %", "above 90 %",
    ]  # fmt: skip
    run = made_up(7)
    shares = {(edge.source, edge.target): edge.busy_share for edge in edges_of(run) if edge.neighbours}
    assert shares["node-0", "node-1"] == 0.0
    assert shares["node-5", "node-6"] == 1.0
    assert shares["node-6", "node-5"] is None


def test_what_a_prediction_does_not_route_is_taken_from_its_links():
    run = made_up(3)
    result = changed(run.result, wire=changed(run.result.wire, routes=()))
    edges = edges_of(type(run)(title="x", result=result))
    assert {edge.bytes for edge in edges} == {900_000}
    assert len(edges) == 4


@pytest.mark.parametrize("nodes", [1, 2, 12, 13, 64])
def test_nobody_stands_on_anybody(nodes):
    figure = fleet_figure(made_up(nodes, spares=5))
    circles = [trace for trace in figure.data if trace.mode == "markers+text"]
    places = [place for trace in circles for place in zip(trace.x, trace.y, strict=True)]
    assert len(places) == nodes + 5 + 1
    (low_x, high_x), (low_y, high_y) = figure.layout.xaxis.range, figure.layout.yaxis.range
    assert all(low_x < x < high_x and low_y < y < high_y for x, y in places)
    nearest = min(math.dist(a, b) for i, a in enumerate(places) for b in places[:i])
    assert nearest > 60


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_615_000, "4.62 MB"), (2.5e12, "2,500 GB")]
)
def test_bytes_have_units(count, text):
    assert bytes_text(count) == text
