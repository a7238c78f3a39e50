"""The facts of runs as tables of HTML; whatever comes from a file is escaped."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from brigade.lab.report.fleet_graph import bytes_text
from brigade.lab.report.reported import Reported
from brigade.lab.result import Result

NOTHING = "-"


class Fact(NamedTuple):
    """One row of the table of facts: its name, what it is for a run, and where the page explains it."""

    name: str
    of: Callable[[Result], str]
    explained: str = ""  # the anchor of the explanation


class Explanation(NamedTuple):
    """How something on the page was measured."""

    anchor: str
    name: str
    text: str


def _number(value: float | None, form: str = ",.0f", unit: str = "") -> str:
    return NOTHING if value is None else format(value, form) + unit


def _kind(result: Result) -> str:
    return "predicted, not run" if result.predicted else "measured"


def _ended(result: Result) -> str:
    if result.exit_code == 0 or result.predicted:
        return "finished"
    code = "the coordinator did not end" if result.exit_code is None else f"exit code {result.exit_code}"
    return f"{code}: {result.reason}" if result.reason else code


def _fleet(result: Result) -> str:
    hosts = {name for route in result.wire.routes for name in (route.source, route.target)} - {"coordinator"}
    stages = len(result.stages)
    spares = len(hosts) - stages
    return f"{stages} stages" + (f", {spares} other nodes" if hosts and spares > 0 else "")


def _ledger(result: Result) -> str:
    ledger = result.ledger
    return f"{ledger.committed:,} committed, {ledger.lost:,} lost, {ledger.repeated:,} repeated"


def _loss(result: Result) -> str:
    loss = result.loss
    if (loss.first, loss.last, loss.validation) == (None, None, None):
        return NOTHING
    return f"{_number(loss.first, '.3f')} → {_number(loss.last, '.3f')}; held out {_number(loss.validation, '.3f')}"


def _bytes(result: Result) -> str:
    return bytes_text(result.wire.bytes) + (", values between stages only" if result.predicted else "")


def _relay(result: Result) -> str:
    if result.predicted:
        return NOTHING
    return f"{result.relay_late_mean_s * 1e3:.2f} ms on average, {result.relay_late_most_s * 1e3:.0f} ms at most"


def _per_token(result: Result) -> str:
    wire = result.wire
    return f"{wire.activation_bytes_per_token:,.0f} B forwards, {wire.gradient_bytes_per_token:,.0f} B backwards"


FACTS = (
    Fact("result", _kind),
    Fact("end", _ended),
    Fact("seed of the fleet", lambda result: str(result.seed)),
    Fact("fleet", _fleet),
    Fact("links", lambda result: result.link_kind or NOTHING),
    Fact("steps committed", lambda result: f"{result.steps_committed:,} of {result.max_steps:,}"),
    Fact("time", lambda result: f"{result.seconds:,.1f} s", "speed"),
    Fact("speed", lambda result: f"{result.tokens_per_s:,.0f} target tokens/s", "speed"),
    Fact("bound", lambda result: _number(result.bound_tokens_per_s, unit=" target tokens/s"), "bound"),
    Fact(
        "bound of the fleet", lambda result: _number(result.best_bound_tokens_per_s, unit=" target tokens/s"), "bound"
    ),
    Fact("efficiency", lambda result: _number(result.efficiency, ".1%"), "bound"),
    Fact("limited by", lambda result: result.limited_by or NOTHING, "limit"),
    Fact("loss", _loss, "loss"),
    Fact("payload per token", _per_token, "wire"),
    Fact("bytes in all", _bytes, "wire"),
    Fact("samples", _ledger, "ledger"),
    Fact("recoveries", lambda result: str(result.recoveries), "recoveries"),
    Fact("steps trained again", lambda result: _number(result.replayed_steps), "recoveries"),
    Fact("blocks moved", lambda result: str(result.moves), "recoveries"),
    Fact("relay late", _relay, "relay"),
)

EXPLANATIONS = (
    Explanation(
        "loss",
        "Loss",
        "Mean over all target tokens of a step's global batch, in nats, from the ledger of the run; of a step that was "
        "trained again after a restart, the last time. Held out: over the validation samples, with the weights after "
        "that step.",
    ),
    Explanation(
        "speed",
        "Time and speed",
        "Time runs from when the coordinator said that training begins to when it said that a step is committed, on "
        "one clock, recoveries included. Speed counts the target tokens of committed steps, each step once. The "
        "lines break at a pause of more than ten usual steps, shaded, and means begin anew after it.",
    ),
    Explanation(
        "bound",
        "Bound and efficiency",
        "The most that any schedule could do with the stages of the last plan: the busiest device (with the seconds "
        "that its forwards and backwards took) or line (with the bytes that crossed it and the rate that the scenario "
        "gives it) works without a pause. Efficiency is speed by this bound. The bound of the fleet: the same over all "
        "choices, orders and cuts of its hosts.",
    ),
    Explanation(
        "limit",
        "Limited by",
        "What makes a step as long as it is: the busiest device or line when it works nearly always, otherwise, of "
        "what keeps it waiting, that which most can be won from, by closed forms over what was measured.",
    ),
    Explanation(
        "wire",
        "Bytes",
        "Payload: encoded activations and gradients as the stages counted them, over all links. Bytes of routes and in "
        "all: what was delivered between hosts, encryption, heartbeats, checkpoints and measurements before training "
        "included. Rates of links are these bytes by the time of training.",
    ),
    Explanation(
        "ledger",
        "Samples",
        "The ids that came back from the last stage with every committed step, held against those that belong to the "
        "step by seed. Lost or repeated samples are an error.",
    ),
    Explanation(
        "recoveries",
        "Recoveries",
        "Times that the run was taken up again from a checkpoint; committed steps that no checkpoint held and that "
        "were trained again; times that blocks changed their node in training.",
    ),
    Explanation(
        "waits",
        "Where time went",
        "From the timelines of all nodes, which share one clock, from the begin of training to the last update. A wait "
        "is divided by following the input that was missing: starved until it was computed, then encoding, sending. "
        "The parts of a stage add up to its wall time.",
    ),
    Explanation(
        "links",
        "Use of links",
        "How long the payload of a link would keep the narrowest line on its way busy, by the time of the run. A line "
        "that several links share is busier than each of them.",
    ),
    Explanation(
        "timeline",
        "Last steps",
        "Noted by the nodes themselves on the clock of one machine. A bar of a pretended device lasts as long as that "
        "device takes. A message's line leads from when it was handed to the connection to when all of it had arrived.",
    ),
    Explanation(
        "relay",
        "Relay",
        "How late the program that shapes the links was in its work; above 2 ms on average, the machine was too busy "
        "for this scenario.",
    ),
)


def facts_table(runs: Sequence[Reported]) -> str:
    """Return one column of facts for each run."""
    head = f"<thead><tr><th></th>{''.join(f'<th>{escape(run.title)}</th>' for run in runs)}</tr></thead>"
    places = "".join(f"<td>{escape(run.place)}</td>" for run in runs)
    rows = [f'<tr><th scope="row">lies in</th>{places}</tr>'] if any(run.place for run in runs) else []
    for fact in FACTS:
        name = f'<a href="#how-{fact.explained}">{escape(fact.name)}</a>' if fact.explained else escape(fact.name)
        cells = "".join(f"<td>{escape(fact.of(run.result))}</td>" for run in runs)
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return f'<table class="facts">{head if len(runs) > 1 else ""}<tbody>{"".join(rows)}</tbody></table>'


def ratio_sentences(runs: Sequence[Reported]) -> Iterable[str]:
    """Yield how fast each run is beside the first one."""
    first = runs[0]
    for run in runs[1:]:
        if first.result.tokens_per_s > 0:
            ratio = run.result.tokens_per_s / first.result.tokens_per_s
            yield f"{run.title} trains at {ratio:.2f} times the speed of {first.title}."


def events_table(run: Reported) -> str:
    """Return what happened to a run, with the numbers that the figure of time shows."""
    if not run.result.events:
        return "<p>Nothing was noted.</p>"
    rows = []
    for number, (at_s, text) in enumerate(run.result.events, start=1):
        when = "before" if at_s < 0 else f"{at_s:,.1f}"
        rows.append(f'<tr><td class="n">{number}</td><td class="n">{when}</td><td>{escape(text)}</td></tr>')
    head = "<tr><th>no.</th><th>time (s)</th><th>what, and why</th></tr>"
    return f'<table class="events"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def explanations_list() -> str:
    """Return how everything was measured."""
    return "".join(
        f'<dt id="how-{each.anchor}">{escape(each.name)}</dt><dd>{escape(each.text)}</dd>' for each in EXPLANATIONS
    )
