"""The figure of where the time of each stage went."""

from collections.abc import Iterator
from typing import NamedTuple

from plotly import graph_objects as go

from brigade.lab.report.reported import Reported
from brigade.lab.report.style import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    arrange,
    plain,
    shortened,
)
from brigade.lab.result import StageWaits

LONGEST_NAME = 22
SMALLEST_TEXT = 0.04  # of the wall time; a smaller part has no room for its number


class Part(NamedTuple):
    """A part of a stage's wall time and how it is drawn."""

    field: str
    title: str
    colour: str
    pattern: str = ""  # hatched: the device does nothing


PARTS = (
    Part("forward_s", "forward", BLUE),
    Part("backward_s", "backward", ORANGE),
    Part("optimizer_s", "optimizer", GREEN),
    Part("wait_s", "waiting", LIGHT, "/"),
    Part("starved_s", "starved: nothing has come", LIGHT, "/"),
    Part("blocked_s", "blocked: nothing may be sent", GREY, "\\"),
    Part("gated_s", "gated: the end of the step", YELLOW, "/"),
    Part("encoding_s", "encoding somewhere", PURPLE, "/"),
    Part("sending_s", "bytes under way", SKY, "/"),
    Part("recovery_s", "no plan at work", VERMILLION, "x"),
)


def parts_of(stage: StageWaits) -> Iterator[tuple[Part, float]]:
    """Yield the parts that a stage has, with their seconds; they add up to its wall time."""
    for part in PARTS:
        seconds = getattr(stage, part.field, None)
        if seconds is not None:
            yield part, seconds


def stage_label(stage: int, node: str) -> str:
    """Return how a stage is called at the axes of figures."""
    return plain(f"{shortened(node, LONGEST_NAME)} · {stage}")


def waits_figure(run: Reported) -> go.Figure:
    """Return a bar for each stage, divided into what its time was spent on, in percent of its wall time."""
    stages = run.result.waits
    figure = go.Figure()
    for part in PARTS:
        held = [(stage, dict(parts_of(stage)).get(part)) for stage in stages]
        known = [(stage, seconds) for stage, seconds in held if seconds is not None]
        if not any(seconds > 0 for _, seconds in known):
            continue
        shares = [100 * seconds / stage.wall_s if stage.wall_s > 0 else 0.0 for stage, seconds in known]
        figure.add_trace(
            go.Bar(
                orientation="h", y=[stage.stage for stage, _ in known], x=shares, width=0.72, name=part.title,
                marker={
                    "color": part.colour, "line": {"color": "white", "width": 0.5},
                    "pattern": {"shape": part.pattern, "fgcolor": DARK, "fgopacity": 0.35, "size": 7, "solidity": 0.15},
                },
                text=[f"{share:.0f}" if share >= 100 * SMALLEST_TEXT else "" for share in shares],
                textposition="inside", insidetextanchor="middle", textangle=0,
                insidetextfont={"color": "white" if part.colour in (BLUE, GREEN, VERMILLION) else "black", "size": 11},
                customdata=[[plain(stage.node), seconds, stage.wall_s] for stage, seconds in known],
                hovertemplate="stage %{y}, %{customdata[0]}<br>%{x:.1f} % of the time: %{customdata[1]:.2f} of "
                f"%{{customdata[2]:.2f}} s<extra>{part.title}</extra>",
            )
        )  # fmt: skip
    row = 30 if len(stages) <= 16 else 18
    arrange(figure, 150 + row * max(2, len(stages)), barmode="stack", bargap=0)
    figure.update_layout(margin={"l": 190})
    figure.update_xaxes(title_text="share of the stage's wall time (%)", range=[0, 101])
    figure.update_yaxes(
        title_text="node · stage", tickvals=[stage.stage for stage in stages], showgrid=False,
        ticktext=[stage_label(stage.stage, stage.node) for stage in stages],
        range=[len(stages) - 0.5, -0.5],
    )  # fmt: skip
    return figure
