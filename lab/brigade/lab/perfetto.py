"""Timelines as a trace in Chrome's event format, which ui.perfetto.dev and chrome://tracing open.

One process for each node, with threads for the device, the threads that encode and decode, and the links; arrows lead
from where a message was handed over to where it arrived. Actions of one thread that overlap get a second row, because
slices of one row must nest. Format: "Trace Event Format", Google, 2016.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import json

from brigade.node.timeline import COMPUTE_KINDS, Action, StageLife

LANES = ("compute", "codec", "link", "run")
THREADS_OF_A_NODE, ROWS_OF_A_LANE = 10_000, 1000  # thread ids are unique over all processes
MOST_ACTIONS = 300_000  # of the last ones; a viewer gets slow with more
SHORTEST_US = 1  # an instant is drawn as a slice, so that an arrow can hold on to it

TraceEvent = dict[str, Any]


class Done(NamedTuple):
    """An action with the stage that did it."""

    generation: int
    stage: int
    action: Action


def lane_of(action: Action) -> str:
    """Return the lane in which an action is drawn."""
    if action.kind in COMPUTE_KINDS:
        return "compute"
    prefix = action.kind.partition("_")[0]
    return {"encode": "codec", "decode": "codec", "sent": "link", "arrived": "link"}.get(prefix, "run")


def chrome_trace(lives: Sequence[StageLife]) -> bytes:
    """Return the trace as JSON; times are microseconds after the first action in it. Of a long run it is the end."""
    done: dict[str, list[Done]] = {}
    zero_s = _first_shown(lives)
    for life in sorted(lives, key=lambda life: (life.began.generation, life.began.stage)):
        of_node = done.setdefault(life.began.node, [])
        began = life.began
        of_node.extend(Done(began.generation, began.stage, each) for each in life.actions if each.begin_s >= zero_s)
    events: list[TraceEvent] = []
    arrows = _Arrows()
    for process, (node, of_node) in enumerate(done.items(), start=1):
        events.append(_named("process_name", process, 0, node))
        events.append(_sorted("process_sort_index", process, 0, process))
        for number, lane in enumerate(LANES):
            in_lane = sorted(
                (each for each in of_node if lane_of(each.action) == lane),
                key=lambda each: (each.action.begin_s, -each.action.end_s),
            )
            events += _lane_events(in_lane, process, number, zero_s, arrows)
    return json.encode({"displayTimeUnit": "ms", "traceEvents": events + arrows.events()}) + b"\n"


class _Arrows:
    """Finds the arrival of what was sent: the same microbatch in the same direction between the same stages."""

    def __init__(self) -> None:
        self._sent: dict[tuple[object, ...], TraceEvent] = {}
        self._arrived: dict[tuple[object, ...], TraceEvent] = {}

    def note(self, done: Done, slice_: TraceEvent) -> None:
        """Remember the slice of something sent or arrived."""
        action = done.action
        way, _, what = action.kind.partition("_")
        if way not in ("sent", "arrived"):
            return
        ends = (done.stage, action.other) if way == "sent" else (action.other, done.stage)
        key = (done.generation, what, action.step, action.index, action.evaluation, *ends)
        (self._sent if way == "sent" else self._arrived).setdefault(key, slice_)

    def events(self) -> list[TraceEvent]:
        """Return begin and end of each arrow."""
        events: list[TraceEvent] = []
        both = self._sent.keys() & self._arrived.keys()
        for number, key in enumerate((key for key in self._sent if key in both), start=1):
            sent, arrived = self._sent[key], self._arrived[key]
            arrow = {"cat": "message", "name": str(key[1]), "id": number}
            events.append({"ph": "s", **arrow, "pid": sent["pid"], "tid": sent["tid"], "ts": sent["ts"]})
            end = {"pid": arrived["pid"], "tid": arrived["tid"], "ts": arrived["ts"] + arrived["dur"] - SHORTEST_US}
            events.append({"ph": "f", "bp": "e", **arrow, **end})
        return events


def _first_shown(lives: Iterable[StageLife]) -> float:
    begins = sorted(action.begin_s for life in lives for action in life.actions)
    return begins[-MOST_ACTIONS:][0] if begins else 0.0


def _lane_events(
    in_lane: Iterable[Done], process: int, lane: int, zero_s: float, arrows: _Arrows
) -> Iterable[TraceEvent]:
    """Yield the slices of one lane, each in the first row that is free, and the names of the rows."""
    free_at: list[int] = []
    for done in in_lane:
        action = done.action
        begin = _microseconds(action.begin_s - zero_s)
        length = max(SHORTEST_US, _microseconds(action.end_s - zero_s) - begin)
        row = next((row for row, free in enumerate(free_at) if free <= begin), len(free_at))
        thread = process * THREADS_OF_A_NODE + lane * ROWS_OF_A_LANE + row
        if row == len(free_at):
            free_at.append(0)
            yield _named("thread_name", process, thread, LANES[lane] + (f" {row + 1}" if row else ""))
            yield _sorted("thread_sort_index", process, thread, thread)
        free_at[row] = begin + length
        slice_ = {
            "ph": "X",
            "cat": LANES[lane],
            "name": _title(action),
            "pid": process,
            "tid": thread,
            "ts": begin,
            "dur": length,
            "args": _details(done),
        }
        arrows.note(done, slice_)
        yield slice_


def _title(action: Action) -> str:
    name = action.kind.replace("_", " ")
    if action.evaluation:
        name = f"evaluation: {name}"
    return name if action.index < 0 else f"{name} {action.index}"


def _details(done: Done) -> dict[str, int]:
    action = done.action
    details = {"step": action.step + 1, "plan": done.generation, "stage": done.stage}
    if action.index >= 0:
        details["microbatch"] = action.index
    if action.other >= 0:
        details["other stage"] = action.other
    if action.bytes:
        details["bytes"] = action.bytes
    return details


def _named(what: str, process: int, thread: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _sorted(what: str, process: int, thread: int, place: int) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"sort_index": place}}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
