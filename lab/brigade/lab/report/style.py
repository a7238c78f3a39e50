"""How figures look: colours that colour-blind readers can tell apart, and one layout for all.

Colours: M. Okabe, K. Ito, "Color Universal Design", 2008.
"""

from html import escape
from typing import Any

from plotly import graph_objects as go

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
DARK, GREY, LIGHT, FAINT = "#444444", "#8C8C8C", "#D4D4D4", "#ECECEC"

RUN_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
RUN_DASHES = ("solid", "dash", "dot", "dashdot")  # for more runs than colours, and for prints without colour

WIDTH = 1120  # pixels
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
CONFIG = {
    "displaylogo": False,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    "responsive": False,
}


def run_line(index: int, **more: Any) -> dict[str, Any]:
    """Return colour and dash of the lines of a run."""
    dash = RUN_DASHES[index // len(RUN_COLOURS) % len(RUN_DASHES)]
    return {"color": RUN_COLOURS[index % len(RUN_COLOURS)], "dash": dash, **more}


def plain(text: str) -> str:
    """Return a text that a figure shows as it is: names may hold anything, and figures know some tags."""
    return escape(text, quote=False)


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def arrange(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Give a figure its size and the common looks, and return it."""
    figure.update_layout(
        template="none",
        width=WIDTH,
        height=height,
        font={"family": FONT, "size": 13, "color": "#222222"},
        paper_bgcolor="white",
        plot_bgcolor="white",
        margin={"l": 70, "r": 20, "t": 40, "b": 55},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "bottom",
            "font": {"size": 12},
            "traceorder": "normal",  # in one row, also where entries are grouped by run
        },
        hoverlabel={"align": "left", "bgcolor": "white", "font": {"family": FONT, "size": 12}},
        **layout,
    )
    axis = {
        "showline": True,
        "linecolor": GREY,
        "gridcolor": FAINT,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": GREY,
        "title": {"standoff": 8},
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure
