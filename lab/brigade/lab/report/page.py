"""Puts the page together: head, figures and tables in one file of HTML that needs nothing else, no network either."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from brigade.lab.report.facts import events_table, explanations_list, facts_table, ratio_sentences
from brigade.lab.report.fleet_graph import fleet_figure
from brigade.lab.report.pipeline import pipeline_figure
from brigade.lab.report.progress import over_time, over_tokens
from brigade.lab.report.reported import Reported, with_own_titles
from brigade.lab.report.style import CONFIG
from brigade.lab.report.waits import waits_figure
from brigade.lab.result import Result

GRAPH_CAPTION = (
    "Circles are stages in the order of the pipeline, with their blocks; activations flow with the numbers, gradients "
    "against them. The wider a line, the more bytes it carried (width by square root); its colour says how busy the "
    "narrowest line on its way was."
)


def report_page(runs: Sequence[Reported]) -> str:
    """Return the page of one run or of several; raises ValueError for none."""
    if not runs:
        raise ValueError("a page shows at least one run")
    named = with_own_titles(runs)
    title = " and ".join(run.title for run in named) if len(named) < 4 else f"{len(named)} runs"
    template = Template(files("brigade.lab.report").joinpath("page.html").read_text(encoding="utf-8"))
    body = "\n".join(_body(named, title))
    return template.substitute(title=escape(f"{title}: Bucket Brigade"), plotly=get_plotlyjs(), body=body)


def headline(result: Result) -> str:
    """Return the one sentence that matters."""
    speed = f"{'Predicted: ' if result.predicted else ''}{result.tokens_per_s:,.0f} target tokens/s"
    if result.bound_tokens_per_s is not None:
        speed += f", where these stages could do {result.bound_tokens_per_s:,.0f} at best"
    return f"{speed}. Limited by {result.limited_by}." if result.limited_by else f"{speed}."


def _body(runs: Sequence[Reported], title: str) -> Iterator[str]:
    several = len(runs) > 1
    yield f"<h1>{escape(title)}</h1>"
    for run in runs:
        yield f'<p class="lead">{f"<b>{escape(run.title)}</b>: " if several else ""}{escape(headline(run.result))}</p>'
    yield from (f"<p>{escape(sentence)}</p>" for sentence in ratio_sentences(runs))
    yield facts_table(runs)
    yield "<h2>Loss and speed over time</h2>"
    yield _caption(
        "Triangles are events; their numbers are those of the table of events, and pointing at one shows it.",
        ("loss", "speed", "bound"),
    )
    yield _plot(over_time(runs), "over-time")
    yield "<h2>Loss against tokens</h2>"
    if any(point.loss is not None for run in runs for point in run.result.loss.curve):
        yield _plot(over_tokens(runs), "over-tokens")
    else:
        yield "<p>No loss is known.</p>"
    for index, run in enumerate(runs):
        yield from _figures_of_one(run, index, f"{run.title}: " if several else "")
    yield "<h2>How it was measured</h2>"
    yield f"<dl>{explanations_list()}</dl>"


def _figures_of_one(run: Reported, index: int, prefix: str) -> Iterator[str]:
    yield f"<h2>{escape(prefix)}{'events' if prefix else 'Events'} and decisions</h2>"
    yield events_table(run)
    yield f"<h2>{escape(prefix)}{'the' if prefix else 'The'} fleet and its links</h2>"
    if run.result.stages:
        yield _caption(GRAPH_CAPTION, ("wire", "links"))
        yield _plot(fleet_figure(run), f"fleet-{index}")
    else:
        yield "<p>No plan was made.</p>"
    yield f"<h2>{escape(prefix)}{'where' if prefix else 'Where'} time went</h2>"
    if run.result.waits:
        yield _caption("By stage, over the whole run. Hatched: no training on the device.", ("waits",))
        yield _plot(waits_figure(run), f"waits-{index}")
    else:
        yield "<p>Without timelines of the nodes nothing is known of it.</p>"
    yield f"<h2>{escape(prefix)}{'the' if prefix else 'The'} last steps</h2>"
    figure = pipeline_figure(run)
    if figure is None:
        yield "<p>There are no timelines of the nodes beside this result.</p>"
        return
    trace = f" All steps are in {escape(run.place)}/trace.json, which ui.perfetto.dev opens." if run.place else ""
    yield _caption(
        "Numbers in bars are microbatches, lines are messages under way; drag to zoom, double-click to see all again.",
        ("timeline",),
    )
    yield _plot(figure, f"pipeline-{index}")
    yield f'<p class="caption">{trace}</p>' if trace else ""


def _caption(text: str, explained: Sequence[str]) -> str:
    links = ", ".join(f'<a href="#how-{anchor}">{anchor}</a>' for anchor in explained)
    return f'<p class="caption">{escape(text)} How it was measured: {links}.</p>'


def _plot(figure: go.Figure, name: str) -> str:
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG, div_id=name)
    return f'<div class="plot">{drawn}</div>'
