"""The figure of the last steps: what each stage did when, and the messages between them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plotly import graph_objects as go

from brigade.lab.report.reported import Reported
from brigade.lab.report.style import BLACK, BLUE, DARK, GREEN, ORANGE, PURPLE, SKY, WIDTH, YELLOW, arrange
from brigade.lab.report.waits import stage_label
from brigade.node.timeline import COMPUTE_KINDS, Action, StageLife

MOST_STEPS = 2
MOST_ACTIONS = 9_000  # of all kinds; a browser takes longer to draw more
OUTLINED_PX = 6  # narrower bars would be nothing but outline
MOST_LINES = 1_500  # messages that are drawn unasked
COMPUTE_HEIGHT, CODEC_HEIGHT, CODEC_PLACE = 0.56, 0.14, 0.36  # of a row


class Look(NamedTuple):
    """What kinds of actions are drawn alike."""

    title: str
    colour: str
    text: str = ""  # the colour of the microbatch's number in the bar; no number when empty
    thin: bool = False  # beside the device


LOOKS = {
    "forward": Look("forward", BLUE, "white"),
    "backward": Look("backward", ORANGE, "black"),
    "evaluation": Look("evaluation", PURPLE, "black"),
    "sum": Look("norm", YELLOW),
    "optimizer": Look("optimizer", GREEN),
    "snapshot": Look("snapshot", BLACK),
    "encode": Look("encode", DARK, thin=True),
    "decode": Look("decode", SKY, thin=True),
}
Messages = Mapping[str, Sequence[tuple[Action, int, Action, int]]]  # by what: sent, by stage, arrived, at stage


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSteps:
    """The last steps of the last plan that did any."""

    names: Mapping[int, str]  # of the nodes, by stage
    stages: int
    first_step: int
    last_step: int
    begin_s: float
    end_s: float
    actions: Sequence[tuple[int, Action]]  # with their stages


def last_steps(lives: Sequence[StageLife]) -> LastSteps | None:
    """Return what is drawn: the last steps that together are not too much; None when no stage trained any."""
    trained = [life for life in lives if any(_trains(action) for action in life.actions)]
    if not trained:
        return None
    generation = max(life.began.generation for life in trained)
    lives = [life for life in lives if life.began.generation == generation]
    every = [(life.began.stage, action) for life in lives for action in life.actions]
    last = max(action.step for _, action in every if _trains(action))
    count = defaultdict[int, int](int)
    for _, action in every:
        count[action.step] += 1
    first = last
    while first > 0 and last - first + 1 < MOST_STEPS and count[first - 1]:
        if sum(count[step] for step in range(first - 1, last + 1)) > MOST_ACTIONS:
            break
        first -= 1
    device = [action for _, action in every if action.kind in COMPUTE_KINDS and first <= action.step <= last]
    begin_s = min(action.begin_s for action in device if _trains(action) and action.step == first)
    end_s = max(action.end_s for action in device)
    return LastSteps(
        names={life.began.stage: life.began.node for life in lives},
        stages=max(life.began.stages for life in lives),
        first_step=first,
        last_step=last,
        begin_s=begin_s,
        end_s=end_s,
        actions=[(stage, each) for stage, each in every if each.end_s >= begin_s and each.begin_s <= end_s],
    )


def messages(shown: LastSteps) -> Messages:
    """Return what was sent and where it arrived, of the same microbatch between the same stages."""
    sent: dict[tuple[object, ...], tuple[Action, int]] = {}
    found = defaultdict[str, list[tuple[Action, int, Action, int]]](list)
    for way in ("sent", "arrived"):
        for stage, action in shown.actions:
            kind, _, what = action.kind.partition("_")
            if kind != way:
                continue
            ends = (stage, action.other) if way == "sent" else (action.other, stage)
            key = (what, action.step, action.index, action.evaluation, ends)
            if way == "sent":
                sent.setdefault(key, (action, stage))
            elif key in sent:
                found[what].append((*sent[key], action, stage))
    return found


def pipeline_figure(run: Reported) -> go.Figure | None:
    """Return the figure; None when the nodes noted nothing."""
    shown = last_steps(run.lives)
    if shown is None:
        return None
    figure = go.Figure()
    found = messages(shown)
    for what, colour in (("activation", BLUE), ("gradient", ORANGE), ("tied", GREEN)):
        if found.get(what):
            figure.add_trace(_message_lines(shown, what, found[what], colour))
    alike = defaultdict[str, list[tuple[int, Action]]](list)
    for stage, action in shown.actions:
        alike[_look_of(action)].append((stage, action))
    for name, look in LOOKS.items():
        if alike[name]:
            figure.add_trace(_bars(shown, look, alike[name]))
    row = 46 if shown.stages <= 16 else 26
    arrange(figure, 170 + row * shown.stages, barmode="overlay", bargap=0)
    figure.update_layout(margin={"l": 190}, uniformtext={"minsize": 8, "mode": "hide"})
    steps = f"steps {shown.first_step + 1} to {shown.last_step + 1}"
    if shown.first_step == shown.last_step:
        steps = f"step {shown.last_step + 1}"
    length = shown.end_s - shown.begin_s
    figure.update_xaxes(
        title_text=f"time since step {shown.first_step + 1} began (s); shown: {steps}",
        range=[-0.005 * length, length * 1.005],
    )
    figure.update_yaxes(
        title_text="node · stage", tickvals=list(range(shown.stages)), showgrid=False,
        ticktext=[stage_label(stage, shown.names.get(stage, "no timeline")) for stage in range(shown.stages)],
        range=[shown.stages - 0.4, -0.6],
    )  # fmt: skip
    return figure


def _trains(action: Action) -> bool:
    return action.kind in ("forward", "backward") and not action.evaluation


def _look_of(action: Action) -> str:
    if action.kind in COMPUTE_KINDS:
        return "evaluation" if action.evaluation or action.kind == "evaluate" else action.kind
    return action.kind.partition("_")[0]


def _bars(shown: LastSteps, look: Look, of_look: Sequence[tuple[int, Action]]) -> go.Bar:
    shortest_s = OUTLINED_PX / WIDTH * (shown.end_s - shown.begin_s)
    place, height = (CODEC_PLACE, CODEC_HEIGHT) if look.thin else (-0.05, COMPUTE_HEIGHT)
    return go.Bar(
        orientation="h", name=look.title, base=[action.begin_s - shown.begin_s for _, action in of_look],
        x=[action.end_s - action.begin_s for _, action in of_look], y=[stage + place for stage, _ in of_look],
        width=height, marker={"color": look.colour, "line": {
            "color": "white",
            "width": [0.6 if look.text and each.end_s - each.begin_s > shortest_s else 0 for _, each in of_look],
        }},
        text=[str(action.index) if look.text and action.index >= 0 else "" for _, action in of_look],
        textposition="inside", insidetextanchor="middle", textangle=0, constraintext="inside",
        insidetextfont={"color": look.text or "black", "size": 10},
        hovertext=[_hover(stage, action) for stage, action in of_look],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _hover(stage: int, action: Action) -> str:
    microbatch = f", microbatch {action.index}" if action.index >= 0 else ""
    lasted = f"{(action.end_s - action.begin_s) * 1e3:,.2f} ms"
    return f"{action.kind.replace('_', ' ')}{microbatch}, step {action.step + 1}<br>stage {stage}, {lasted}"


def _message_lines(
    shown: LastSteps, what: str, found: Sequence[tuple[Action, int, Action, int]], colour: str
) -> go.Scatter:
    """Return a thin line for each message, from the row of the sender to that of the receiver."""

    def corners() -> Iterator[tuple[float | None, float | None, str]]:
        for sent, source, arrived, target in found:
            down = 1 if target > source else -1
            size = max(sent.bytes, arrived.bytes)
            text = f"{what} {sent.index} of step {sent.step + 1}<br>stage {source} to {target}, {size:,} B, "
            text += f"{(arrived.end_s - sent.begin_s) * 1e3:,.1f} ms under way"
            yield sent.begin_s - shown.begin_s, source + down * 0.33, text
            yield arrived.end_s - shown.begin_s, target - down * 0.33, text
            yield None, None, ""

    x, y, texts = zip(*corners(), strict=True)
    return go.Scatter(
        x=x, y=y, mode="lines", line={"color": colour, "width": 0.9}, opacity=0.65,
        name={"tied": "tied weights"}.get(what, what), hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
        visible=True if len(found) <= MOST_LINES else "legendonly",
    )  # fmt: skip
