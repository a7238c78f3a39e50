"""The figure of the fleet: stages in their order, spares, the coordinator, and what each directed link carried.

Axes are pixels, so that curves and arrows keep their shape.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from plotly import graph_objects as go

from brigade.lab.quantities import show_rate
from brigade.lab.report.reported import Reported
from brigade.lab.report.style import BLACK, BLUE, DARK, GREY, LIGHT, VERMILLION, WIDTH, arrange, plain, shortened
from brigade.lab.result import LinkUse
from brigade.lab.scenario_spec import COORDINATOR

MOST_IN_A_ROW = 12
MOST_WITH_LABELS = 16  # stages; with more the numbers are told by hovering only
ROW_PX, COORDINATOR_PX, SPARES_PX, FOOT_PX = 190, 90, 90, 40
NODE_PX = 34
THINNEST_PX, THICKEST_PX = 1.2, 7.0
BEND, BEND_MOST_PX = 0.24, 44.0  # to the left of a link's direction: by its length, and at most
FAINT_BEND_MOST_PX = 80.0
NAME_PX, NUMBERS_PX = 32, 62  # below the middle of nodes, where no curve is
CURVE_POINTS = 24
LEAST_SHOWN = 0.1  # of the busiest link between neighbours: less than that was measuring and heartbeats

Place = tuple[float, float]


class Use:
    """Colours of links by the share of the time in which they are busy; darker is busier, and full stands out."""

    CLASSES = ((0.25, "#BDD7E7"), (0.5, "#6BAED6"), (0.75, "#3182BD"), (0.9, "#08519C"), (math.inf, VERMILLION))
    NAMES = ("busy below 25 %", "25 to 50 %", "50 to 75 %", "75 to 90 %", "above 90 %")

    @classmethod
    def of(cls, share: float) -> tuple[str, str]:
        """Return name and colour of a share."""
        return next((name, colour) for name, (top, colour) in zip(cls.NAMES, cls.CLASSES, strict=True) if share < top)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What one directed link carried."""

    source: str
    target: str
    bytes: int
    rate: float  # bytes a second, over all of the training
    use: LinkUse | None  # known between stages
    neighbours: bool  # of the last plan

    @property
    def busy_share(self) -> float | None:
        """Return the share of the time for which its narrowest line was busy; None where none is known."""
        return self.use.busy_share if self.use is not None else None


def edges_of(run: Reported) -> list[Edge]:
    """Return the links that carried something, those between neighbours of the last plan always."""
    result = run.result
    names = run.stage_names
    neighbours = {pair for left, right in pairwise(names) for pair in ((left, right), (right, left))}
    delivered = {(route.source, route.target): route.delivered for route in result.wire.routes}
    use = {(link.source, link.target): link for link in result.links}
    for pair in neighbours:
        delivered.setdefault(pair, use[pair].bytes if pair in use else 0)
    least = LEAST_SHOWN * max((delivered[pair] for pair in neighbours), default=0)
    return [
        Edge(
            source=source, target=target, bytes=count, rate=count / result.seconds if result.seconds > 0 else 0.0,
            use=use.get((source, target)),
            neighbours=(source, target) in neighbours,
        )
        for (source, target), count in delivered.items()
        if (source, target) in neighbours or count >= max(1.0, least) or COORDINATOR in (source, target)
    ]  # fmt: skip


def fleet_figure(run: Reported) -> go.Figure:
    """Return the graph."""
    edges = edges_of(run)
    stages = run.stage_names
    there = {name for edge in edges for name in (edge.source, edge.target)}
    there |= {name for route in run.result.wire.routes for name in (route.source, route.target)}
    spares = sorted(there - set(stages) - {COORDINATOR})
    places, height = _places(stages, spares)
    most = max((edge.bytes for edge in edges if edge.neighbours), default=0)
    most = most or max((edge.bytes for edge in edges), default=1)
    figure = go.Figure()
    others = [edge for edge in edges if not edge.neighbours]
    for name, group in (
        ("with the coordinator", [edge for edge in others if COORDINATOR in (edge.source, edge.target)]),
        ("others, of earlier plans or for measuring", [e for e in others if COORDINATOR not in (e.source, e.target)]),
    ):
        figure.add_traces(list(_faint(name, group, places, most)))
    near = [edge for edge in edges if edge.neighbours]
    for edge in near:
        figure.add_trace(_arrow(edge, places, most))
    figure.add_traces(list(_legend(near, most)))
    if len(stages) <= MOST_WITH_LABELS:
        figure.add_trace(_edge_labels(near, places))
    figure.add_traces(list(_nodes(run, stages, spares, places, connected=COORDINATOR in there)))
    arrange(figure, height + 70)
    figure.update_layout(margin={"l": 10, "r": 10, "t": 60, "b": 10})
    figure.update_xaxes(range=[0, WIDTH - 20], visible=False)
    figure.update_yaxes(range=[0, height], visible=False)
    return figure


def bytes_text(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def _places(stages: Sequence[str], spares: Sequence[str]) -> tuple[Mapping[str, Place], int]:
    """Return where everybody stands, and the height: rows that run to and fro, so that neighbours stay neighbours."""
    rows = max(1, math.ceil(len(stages) / MOST_IN_A_ROW))
    in_row = math.ceil(len(stages) / rows) if stages else 1
    spare_rows = math.ceil(len(spares) / MOST_IN_A_ROW)
    height = COORDINATOR_PX + rows * ROW_PX + spare_rows * SPARES_PX + FOOT_PX
    gap = (WIDTH - 20) / in_row
    places: dict[str, Place] = {COORDINATOR: ((WIDTH - 20) / 2, height - 25)}
    for index, name in enumerate(stages):
        row, column = divmod(index, in_row)
        column = column if row % 2 == 0 else in_row - 1 - column
        places[name] = ((column + 0.5) * gap, height - COORDINATOR_PX - (row + 0.5) * ROW_PX)
    for index, name in enumerate(spares):
        row, column = divmod(index, MOST_IN_A_ROW)
        count = min(MOST_IN_A_ROW, len(spares) - row * MOST_IN_A_ROW)
        places[name] = ((column + 0.5) * (WIDTH - 20) / count, FOOT_PX + (spare_rows - row - 0.35) * SPARES_PX)
    return places, height


def _curve(source: Place, target: Place, most_px: float = BEND_MOST_PX) -> tuple[list[float], list[float]]:
    """Return a curve that begins and ends at the rim of the nodes and bends to the left of its direction."""
    (x0, y0), (x1, y1) = source, target
    middle = _beside(source, target, 2.0, most_px)
    length = math.dist(source, target) or 1.0
    trim = min(0.4, (NODE_PX / 2 + 3) / length)
    x, y = [], []
    for step in range(CURVE_POINTS + 1):
        t = trim + (1 - 2 * trim) * step / CURVE_POINTS
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t**2
        x.append(a * x0 + b * middle[0] + c * x1)
        y.append(a * y0 + b * middle[1] + c * y1)
    return x, y


def _beside(source: Place, target: Place, times: float, most_px: float = BEND_MOST_PX) -> Place:
    """Return the point beside the middle of a link, so many times as far away as its curve comes."""
    (x0, y0), (x1, y1) = source, target
    bend = times * min(BEND, most_px / (math.dist(source, target) or 1.0))
    return (x0 + x1) / 2 - bend * (y1 - y0), (y0 + y1) / 2 + bend * (x1 - x0)


def _width(count: int, most: int) -> float:
    """Return the width of a line: its square grows with the bytes."""
    return THINNEST_PX + (THICKEST_PX - THINNEST_PX) * math.sqrt(min(1.0, count / max(1, most)))


def _colour(edge: Edge) -> str:
    return BLUE if edge.busy_share is None else Use.of(edge.busy_share)[1]


def _hover(edge: Edge) -> str:
    rate = f"{show_rate(edge.rate)} on average" if edge.rate > 0 else "nothing"
    lines = [f"{plain(edge.source)} → {plain(edge.target)}", f"{bytes_text(edge.bytes)}, {rate}"]
    if edge.busy_share is not None:
        lines.append(f"its narrowest line is busy {edge.busy_share:.0%} of the time")
    if edge.use is not None:
        lines.append(
            f"{bytes_text(edge.use.bytes)} payload; its target's device waited {edge.use.waiting_s:,.1f} s for it"
        )
    return "<br>".join(lines)


def _arrow(edge: Edge, places: Mapping[str, Place], most: int) -> go.Scatter:
    x, y = _curve(places[edge.source], places[edge.target])
    width = _width(edge.bytes, most)
    sizes = [0.0] * len(x)
    sizes[CURVE_POINTS * 3 // 4] = 9 + 1.7 * width
    return go.Scatter(
        x=x, y=y, mode="lines+markers", line={"color": _colour(edge), "width": width}, showlegend=False,
        marker={"symbol": "arrow", "angleref": "previous", "size": sizes, "color": _colour(edge), "line": {"width": 0}},
        hovertext=_hover(edge), hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _faint(name: str, edges: Iterable[Edge], places: Mapping[str, Place], most: int) -> Iterator[go.Scatter]:
    """Yield routes beside the plan, in few traces: one for each width of line."""
    by_width = defaultdict[float, list[Edge]](list)
    for edge in edges:
        if edge.source in places and edge.target in places:
            by_width[round(_width(edge.bytes, most) / 3) * 1.5 + 0.8].append(edge)
    for number, (width, alike) in enumerate(sorted(by_width.items())):
        x: list[float | None] = []
        y: list[float | None] = []
        texts: list[str] = []
        for edge in alike:
            curve_x, curve_y = _curve(places[edge.source], places[edge.target], FAINT_BEND_MOST_PX)
            x += [*curve_x, None]
            y += [*curve_y, None]
            texts += [_hover(edge)] * (len(curve_x) + 1)
        yield go.Scatter(
            x=x, y=y, mode="lines", line={"color": LIGHT, "width": width}, name=name, legendgroup=name,
            showlegend=number == 0, hovertext=texts, hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip


def _legend(near: Sequence[Edge], most: int) -> Iterator[go.Scatter]:
    """Yield the entries for widths, and for colours where use is known."""
    if not near:
        return
    shares = [edge.busy_share for edge in near if edge.busy_share is not None]
    looks = [(bytes_text(most), BLACK if shares else BLUE, THICKEST_PX)]
    looks += [(bytes_text(most / 9), BLACK if shares else BLUE, _width(most // 9, most))]
    if shares:
        looks += [(name, colour, 5.0) for name, (_, colour) in zip(Use.NAMES, Use.CLASSES, strict=True)]
    for name, colour, width in looks:
        yield go.Scatter(
            x=[None], y=[None], mode="lines", line={"color": colour, "width": width}, name=name, hoverinfo="skip"
        )


def _edge_labels(near: Sequence[Edge], places: Mapping[str, Place]) -> go.Scatter:
    """Return the numbers beside the links."""
    at = []
    for edge in near:
        x, y = _beside(places[edge.source], places[edge.target], 1.0)
        below = min(places[edge.source][1], places[edge.target][1]) - NUMBERS_PX
        forwards = places[edge.target][0] >= places[edge.source][0]
        at.append((x, y + 9 if forwards else min(y - 6, below)))
    lines = []
    for edge in near:
        use = [] if edge.busy_share is None else [f"busy {edge.busy_share:.0%}"]
        lines.append("<br>".join([bytes_text(edge.bytes), show_rate(edge.rate) if edge.rate > 0 else "-", *use]))
    upwards = [places[edge.target][0] >= places[edge.source][0] for edge in near]
    return go.Scatter(
        x=[x for x, _ in at], y=[y for _, y in at], mode="text",
        text=lines, textposition=["top center" if up else "bottom center" for up in upwards],
        textfont={"size": 10, "color": DARK}, showlegend=False, hoverinfo="skip",
    )  # fmt: skip


def _nodes(
    run: Reported, stages: Sequence[str], spares: Sequence[str], places: Mapping[str, Place], *, connected: bool
) -> Iterator[go.Scatter]:
    longest = max(12, 120 // max(1, min(MOST_IN_A_ROW, len(stages))))
    blocks = run.stage_blocks
    groups = (
        ("stages in their order", stages, "circle", "white", BLUE, [str(i) for i in range(len(stages))]),
        ("spares, and who has left", spares, "circle", LIGHT, GREY, [""] * len(spares)),
        ("coordinator", [COORDINATOR] if connected else [], "square", DARK, BLACK, [""]),
    )
    for title, names, symbol, fill, rim, inside in groups:
        if not names:
            continue
        about = [blocks[i] if title.startswith("stages") else title for i in range(len(names))]
        yield go.Scatter(
            x=[places[name][0] for name in names], y=[places[name][1] for name in names], mode="markers+text",
            marker={
                "symbol": symbol, "size": NODE_PX if symbol == "circle" else 22, "color": fill, "opacity": 1,
                "line": {"color": rim, "width": 2},
            },
            text=inside, textfont={"size": 13, "color": BLACK}, textposition="middle center", name=title,
            showlegend=False, hovertext=[f"{plain(name)}<br>{text}" for name, text in zip(names, about, strict=True)],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
        below = [f"<br>{blocks[i]}" if title.startswith("stages") else "" for i in range(len(names))]
        yield go.Scatter(
            x=[places[name][0] for name in names], y=[places[name][1] - NAME_PX for name in names], mode="text",
            text=[plain(shortened(name, longest)) + more for name, more in zip(names, below, strict=True)],
            textposition="bottom center", textfont={"size": 11}, showlegend=False, hoverinfo="skip",
        )  # fmt: skip
