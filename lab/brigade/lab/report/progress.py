"""The figures of how training went: loss and speed against time with what happened meanwhile, loss against tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from textwrap import wrap
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from brigade.lab.report.reported import Reported
from brigade.lab.report.style import GREY, RUN_COLOURS, arrange, plain, run_line, shortened
from brigade.lab.result import Point, Result

MEAN_OF_STEPS = 5  # in the thick line of the speed
PAUSE_STEPS = 10  # a time without a commit of more usual steps than that breaks the lines
LATEST_EVENTS = 1.02  # of the time axis
NEAREST_EVENTS = 0.03  # of the width: beside events that are nearer there is no room for a number
MARK = "#777777"
LONGEST_TITLE = 24  # beside the strip of events
TITLE_PX = 7.5  # of a character of it, at most
LEFT_PX = 70  # what the axes need
STRIP_PX, PANEL_PX, MARGINS_PX = 24, 270, 150


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of a step, and of the last few steps together, at the time of its commit; None after a pause."""

    at_s: float
    of_step: float | None
    of_some: float | None


def timed(curve: Sequence[Point]) -> list[Point]:
    """Return the points whose time is known: time goes on from point to point."""
    points: list[Point] = []
    for point in curve:
        if point.at_s > (points[-1].at_s if points else 0.0):
            points.append(point)
    return points


def pauses(curve: Sequence[Point]) -> list[tuple[float, float]]:
    """Return begin and end of the times without a commit that are far longer than the usual step."""
    times = [0.0, *(point.at_s for point in timed(curve))]
    gaps = list(pairwise(times))
    usual_s = median(end - begin for begin, end in gaps) if gaps else 0.0
    return [(begin, end) for begin, end in gaps if end - begin > PAUSE_STEPS * usual_s]


def speeds(curve: Sequence[Point]) -> list[Speed]:
    """Return the speed at every point; the step after a pause has none, and means begin anew there."""
    before = [Point(0, 0.0, 0, None), *timed(curve)]
    resumed = {end for _, end in pauses(curve)}
    found: list[Speed] = []
    first = 0
    for index, point in enumerate(before[1:], start=1):
        if point.at_s in resumed:
            first = index
            found.append(Speed(point.at_s, None, None))
            continue
        begin = before[max(first, index - MEAN_OF_STEPS)]
        found.append(Speed(point.at_s, _rate(before[index - 1], point), _rate(begin, point)))
    return found


def held_out_points(result: Result) -> list[tuple[Point, float]]:
    """Return the held-out losses with the point of the curve after which each was measured."""
    point_of = {point.step: point for point in result.loss.curve}
    return [(point_of[step], loss) for step, loss in result.loss.held_out if loss is not None and step in point_of]


def during(result: Result) -> list[tuple[int, float, str]]:
    """Return number, seconds and text of the events since training began; numbers count all events from 1."""
    return [(number, at_s, text) for number, (at_s, text) in enumerate(result.events, start=1) if at_s >= 0]


def over_time(runs: Sequence[Reported]) -> go.Figure:
    """Return events, loss and speed over one axis of time."""
    strip = STRIP_PX * len(runs)
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.035, row_heights=[strip, PANEL_PX, PANEL_PX]
    )
    for index, run in enumerate(runs):
        figure.add_trace(_event_marks(index, runs), row=1, col=1)
        known = _with_breaks(run.result.loss.curve)
        figure.add_trace(_loss_line(runs, index, [p.at_s for p in known], known, "s"), row=2, col=1)
        held_out = [(point, loss) for point, loss in held_out_points(run.result) if point.at_s > 0]
        figure.add_trace(_held_out_marks(runs, index, [p.at_s for p, _ in held_out], held_out), row=2, col=1)
        for trace in _speed_lines(runs, index):
            figure.add_trace(trace, row=3, col=1)
    meanings = ["training", "held out", "speed", "bound"]
    meanings += ["best"] if any(run.result.best_bound_tokens_per_s is not None for run in runs) else []
    for trace in _meanings(runs, meanings):
        figure.add_trace(trace, row=2, col=1)
    arrange(figure, strip + 2 * PANEL_PX + MARGINS_PX)
    longest = max(len(name) for name in _strip_names(runs))
    figure.update_layout(margin={"l": max(LEFT_PX, 20 + TITLE_PX * longest)})
    last = max((seconds_of(run.result) for run in runs), default=1.0)
    figure.update_xaxes(range=[-0.012 * last, last * LATEST_EVENTS], showticklabels=True)
    figure.update_xaxes(showticklabels=False, ticks="", showgrid=False, showline=False, row=1, col=1)
    figure.update_xaxes(title_text="time since training began (s)", row=3, col=1)
    figure.update_yaxes(
        range=[len(runs) - 0.5, -0.5], showgrid=False, showline=False, ticks="", row=1, col=1,
        tickvals=list(range(len(runs))), ticktext=_strip_names(runs), tickfont={"size": 12},
    )  # fmt: skip
    figure.update_yaxes(title_text="loss (nats per target token)", row=2, col=1)
    figure.update_yaxes(title_text="speed (target tokens/s)", range=[0, _top_speed(runs)], row=3, col=1)
    if not any(point.loss is not None for run in runs for point in run.result.loss.curve):
        figure.update_yaxes(range=[0, 1], showticklabels=False, showgrid=False, row=2, col=1)
        figure.add_annotation(text="no loss is known", showarrow=False, x=last / 2, y=0.5, row=2, col=1)
    for index, run in enumerate(runs):
        colour = MARK if len(runs) == 1 else run_line(index)["color"]
        for begin, end in pauses(run.result.loss.curve):
            for row in (2, 3):
                figure.add_vrect(
                    begin, end, fillcolor=colour, opacity=0.12, line_width=0, layer="below", row=row, col=1
                )
        for _, at_s, _ in during(run.result):
            for row in (2, 3):
                line = {"color": colour, "width": 1, "dash": "dot"}
                figure.add_vline(at_s, line=line, opacity=0.6, layer="below", row=row, col=1)
    return figure


def _with_breaks(curve: Sequence[Point]) -> list[Point]:
    """Return the points whose time is known, and one without a loss in every pause, where the line breaks."""
    between = [Point(0, (begin + end) / 2, 0, None) for begin, end in pauses(curve)]
    return sorted([*timed(curve), *between], key=lambda point: point.at_s)


def over_tokens(runs: Sequence[Reported]) -> go.Figure:
    """Return the loss against what was trained."""
    figure = go.Figure()
    for index, run in enumerate(runs):
        curve = run.result.loss.curve
        held_out = held_out_points(run.result)
        figure.add_trace(_loss_line(runs, index, [point.tokens for point in curve], curve, "tokens"))
        figure.add_trace(_held_out_marks(runs, index, [p.tokens for p, _ in held_out], held_out))
    figure.add_traces(list(_meanings(runs, ("training", "held out"))))
    arrange(figure, PANEL_PX + 110)
    figure.update_xaxes(title_text="target tokens trained", rangemode="tozero", tickformat="~s")
    figure.update_yaxes(title_text="loss (nats per target token)")
    return figure


def seconds_of(result: Result) -> float:
    """Return how long the time axis of a result is; how the processes of a run that finished end is of no interest."""
    last = max((at_s for _, at_s, _ in during(result)), default=0.0) if result.exit_code != 0 else 0.0
    return max(result.seconds, last, *(point.at_s for point in result.loss.curve), 1e-3)


def _rate(begin: Point, end: Point) -> float:
    return (end.tokens - begin.tokens) / (end.at_s - begin.at_s)


def _top_speed(runs: Sequence[Reported]) -> float:
    """Return the end of the axis of speeds: the bound and nearly all steps fit, a step that was told late does not."""
    tops: list[float] = []
    for run in runs:
        tops += filter(None, (run.result.bound_tokens_per_s, run.result.best_bound_tokens_per_s))
        known = speeds(run.result.loss.curve)
        tops += [speed.of_some for speed in known if speed.of_some is not None]
        of_steps = sorted(speed.of_step for speed in known if speed.of_step is not None)
        tops += of_steps[: max(1, len(of_steps) * 95 // 100)]
    return 1.08 * max(tops, default=0.0) or 1.0


def _loss_line(
    runs: Sequence[Reported], index: int, x: Sequence[float], points: Sequence[Point], unit: str
) -> go.Scatter:
    form = ":,.1f" if unit == "s" else ":,"
    return go.Scatter(
        x=x, y=[point.loss for point in points], customdata=[point.step for point in points], mode="lines",
        line=run_line(index, width=1.6), name=_entry(runs, index, "training loss"), legendgroup=str(index),
        hovertemplate=f"step %{{customdata}}, %{{x{form}}} {unit}<br>loss %{{y:.4f}}<extra>%{{fullData.name}}</extra>",
    )  # fmt: skip


def _held_out_marks(
    runs: Sequence[Reported], index: int, x: Sequence[float], held_out: Sequence[tuple[Point, float]]
) -> go.Scatter:
    colour = RUN_COLOURS[index % len(RUN_COLOURS)]
    return go.Scatter(
        x=x, y=[loss for _, loss in held_out], customdata=[point.step for point, _ in held_out], mode="markers",
        marker={"symbol": "diamond", "size": 10, "color": "white", "line": {"color": colour, "width": 2}},
        name="held-out loss", legendgroup=str(index), showlegend=len(runs) == 1 and bool(held_out),
        hovertemplate="after step %{customdata}<br>held-out loss %{y:.4f}<extra></extra>",
    )  # fmt: skip


def _speed_lines(runs: Sequence[Reported], index: int) -> Iterator[go.Scatter]:
    result = runs[index].result
    known = speeds(result.loss.curve)
    alone = len(runs) == 1
    step_x, step_y = _stairs([(speed.at_s, speed.of_step) for speed in known])
    some_x, some_y = _stairs([(speed.at_s, speed.of_some) for speed in known])
    yield go.Scatter(
        x=step_x, y=step_y, mode="lines",
        line=run_line(index, width=0.8, shape="vh"), opacity=0.45, name="speed of each step", legendgroup=str(index),
        showlegend=alone, hovertemplate="%{x:.1f} s<br>this step %{y:,.0f} tokens/s<extra></extra>",
    )  # fmt: skip
    yield go.Scatter(
        x=some_x, y=some_y, mode="lines", line=run_line(index, width=2.2, shape="vh"),
        name=f"mean of {MEAN_OF_STEPS} steps", legendgroup=str(index), showlegend=alone,
        hovertemplate=f"%{{x:.1f}} s<br>{MEAN_OF_STEPS} steps: %{{y:,.0f}} tokens/s<extra></extra>",
    )  # fmt: skip
    for bound, meaning, dash in (
        (result.bound_tokens_per_s, "bound of these stages", "dash"),
        (result.best_bound_tokens_per_s, "bound of the fleet", "dot"),
    ):
        if bound is not None:
            yield go.Scatter(
                x=[0.0, seconds_of(result)], y=[bound] * 2, mode="lines",
                line={"color": run_line(index)["color"], "dash": dash, "width": 1.4}, name=meaning,
                legendgroup=str(index), showlegend=alone,
                hovertemplate=f"{meaning}: %{{y:,.0f}} tokens/s<extra></extra>",
            )  # fmt: skip


def _stairs(known: Sequence[tuple[float, float | None]]) -> tuple[list[float], list[float | None]]:
    """Return a line of steps in which each value reaches back to the time before it; None breaks the line."""
    x: list[float] = []
    y: list[float | None] = []
    for (begin, _), (end, value) in pairwise([(0.0, None), *known]):
        x += [begin, end]
        y += [value, value]
    return x, y


def _event_marks(index: int, runs: Sequence[Reported]) -> go.Scatter:
    result = runs[index].result
    events = [event for event in during(result) if event[1] <= LATEST_EVENTS * seconds_of(result)]
    room = NEAREST_EVENTS * max(seconds_of(run.result) for run in runs)
    labels = _numbers(events, room)
    return go.Scatter(
        x=[at_s for _, at_s, _ in events], y=[index] * len(events), mode="markers+text", text=labels,
        customdata=[f"{number}: {_wrapped(text)}" for number, _, text in events], textposition="middle right",
        textfont={"size": 11}, marker={"symbol": "triangle-down", "size": 10, "color": run_line(index)["color"]},
        showlegend=False, legendgroup=str(index), cliponaxis=False,
        hovertemplate="%{x:.1f} s<br>%{customdata}<extra></extra>",
    )  # fmt: skip


def _numbers(events: Sequence[tuple[int, float, str]], room: float) -> list[str]:
    """Return what stands beside each event: the number, or behind events that lie close together all of theirs."""
    labels: list[str] = []
    first = 0
    for index, (number, at_s, _) in enumerate(events):
        if index + 1 < len(events) and events[index + 1][1] - at_s < room:
            labels.append("")
            continue
        labels.append(str(number) if first == index else f"{events[first][0]}-{number}")
        first = index + 1
    return labels


def _strip_names(runs: Sequence[Reported]) -> list[str]:
    return ["events"] if len(runs) == 1 else [plain(shortened(run.title, LONGEST_TITLE)) for run in runs]


def _entry(runs: Sequence[Reported], index: int, meaning: str) -> str:
    return meaning if len(runs) == 1 else plain(runs[index].title)


def _meanings(runs: Sequence[Reported], which: Sequence[str]) -> Iterator[go.Scatter]:
    """Yield entries of the legend that say what lines and marks mean, where a colour stands for a run."""
    looks: dict[str, dict[str, Any]] = {
        "training": {"mode": "lines", "line": {"color": GREY, "width": 1.6}, "name": "training loss"},
        "held out": {
            "mode": "markers",
            "marker": {"symbol": "diamond", "size": 10, "color": "white", "line": {"color": GREY, "width": 2}},
            "name": "held-out loss",
        },
        "speed": {
            "mode": "lines",
            "line": {"color": GREY, "width": 2.2},
            "name": f"speed, mean of {MEAN_OF_STEPS} steps",
        },
        "bound": {
            "mode": "lines",
            "line": {"color": GREY, "width": 1.4, "dash": "dash"},
            "name": "bound: its stages",
        },
        "best": {"mode": "lines", "line": {"color": GREY, "width": 1.4, "dash": "dot"}, "name": "bound: fleet"},
    }
    if len(runs) > 1:
        yield from (go.Scatter(x=[None], y=[None], hoverinfo="skip", **looks[name]) for name in which)


def _wrapped(text: str, columns: int = 90) -> str:
    return "<br>".join(plain(line) for line in wrap(text, columns))
