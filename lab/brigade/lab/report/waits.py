"""The figure of where the time of each stage went."""

from collections.abc import Iterator
from typing import NamedTuple

from plotly import graph_objects as go

from brigade.lab.report.reported import Reported
from brigade.lab.report.style import (
    BLACK,
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

    @property
    def ink(self) -> str:
        """Return the colour of what is drawn on it."""
        return "white" if self.colour in (BLACK, BLUE, DARK, GREEN, VERMILLION) else "black"


PARTS = (
    Part("forward_s", "forward", BLUE),
    Part("backward_s", "backward", ORANGE),
    Part("optimizer_s", "optimizer", GREEN),
    Part("evaluation_s", "evaluation", PURPLE),
    Part("starved_s", "starved: input not computed yet", LIGHT, "/"),
    Part("blocked_s", "blocked: the order wanted another", GREY, "\\"),
    Part("gated_s", "gated: until the next step", YELLOW, "/"),
    Part("encoding_s", "encoding: input en- or decoded", DARK, "\\"),
    Part("sending_s", "sending: input on its way", SKY, "/"),
    Part("overhead_s", "overhead of the node", BLACK),
    Part("recovery_s", "recovery: no plan at work", VERMILLION, "x"),
)  # in the words of `StageWaits`


def parts_of(stage: StageWaits) -> Iterator[tuple[Part, float]]:
    """Yield the parts of a stage with their seconds; they add up to its wall time."""
    for part in PARTS:
        yield part, getattr(stage, part.field)


def stage_label(stage: int, node: str) -> str:
    """Return how a stage is called at the axes of figures."""
    return plain(f"{shortened(node, LONGEST_NAME)} · {stage}")


def waits_figure(run: Reported) -> go.Figure:
    """Return a bar for each stage, divided into what its time was spent on, in percent of its wall time."""
    stages = run.result.waits
    figure = go.Figure()
    for part in PARTS:
        seconds = [dict(parts_of(stage))[part] for stage in stages]
        if not any(seconds):
            continue
        both = list(zip(seconds, stages, strict=True))
        shares = [100 * each / stage.wall_s if stage.wall_s > 0 else 0.0 for each, stage in both]
        figure.add_trace(
            go.Bar(
                orientation="h", y=[stage.stage for stage in stages], x=shares, width=0.72, name=part.title,
                marker={
                    "color": part.colour, "line": {"color": "white", "width": 0.5},
                    "pattern": {
                        "shape": part.pattern, "bgcolor": part.colour, "fgcolor": part.ink, "fgopacity": 0.35,
                        "size": 7, "solidity": 0.15,
                    },
                },
                text=[f"{share:.0f}" if share >= 100 * SMALLEST_TEXT else "" for share in shares],
                textposition="inside", insidetextanchor="middle", textangle=0,
                insidetextfont={"color": part.ink, "size": 11},
                customdata=[[_hover(stage), each] for each, stage in both],
                hovertemplate="%{customdata[0]}<br>%{x:.1f} % of it: %{customdata[1]:.2f} s"
                f"<extra>{part.title}</extra>",
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


def _hover(stage: StageWaits) -> str:
    known = "" if stage.covered > 0.995 else f"<br>its timeline tells of {stage.covered:.0%} of the run"
    return f"stage {stage.stage}, {plain(stage.node)}: {stage.wall_s:,.2f} s{known}"
