"""Schedules as data: which microbatch each stage runs next, forward or backward, in one step that ends with a flush.

A schedule is one line of actions for each stage, and its text reads the same way: `F0 F1 B0 F2 B1 B2`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from brigade.wire.errors import ConfigError, PlanError

FORWARD: Literal["F"] = "F"
BACKWARD: Literal["B"] = "B"
LATENCY_SIZED = "ls-1f1b"  # alternation around warm-ups that are sized by latency: followed freely, not to the letter


@dataclass(frozen=True, slots=True)
class Action:
    """Run the forward or the backward of one microbatch of the step."""

    kind: Literal["F", "B"]
    index: int

    def __str__(self) -> str:
        return f"{self.kind}{self.index}"


Order = tuple[Action, ...]  # of one stage
Schedule = tuple[Order, ...]  # of all stages, first to last


def gpipe_order(stage: int, stages: int, microbatches: int) -> Order:
    """Return all forwards, then all backwards, both in ascending order (arXiv 1811.06965)."""
    del stage, stages  # every stage runs the same order
    return (*_run(FORWARD, 0, microbatches), *_run(BACKWARD, 0, microbatches))


def one_forward_one_backward_order(stage: int, stages: int, microbatches: int) -> Order:
    """Return 1F1B with flush: as many warm-up forwards as stages follow, then alternate, then drain (arXiv 2006.09503).

    At most `min(microbatches, stages - stage)` microbatches are in flight.
    """
    return alternating_order(stages - 1 - stage, microbatches)


def eager_order(stage: int, stages: int, microbatches: int) -> Order:
    """Return alternation after two warm-up forwards for each stage that follows: what LS-1F1B is without times.

    Right where a hop there and back takes as long as a stage; a plan that knows times has its own warm-ups, and a
    stage that follows it deviates from the order when something is late (`policy.AlternationPolicy`).
    """
    return alternating_order(eager_warm_up(stage, stages), microbatches)


def eager_warm_up(stage: int, stages: int) -> int:
    """Return two forwards for each stage that follows."""
    return 2 * (stages - 1 - stage)


def alternating_order(warm_up: int, microbatches: int) -> Order:
    """Return `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left."""
    warm_up = min(microbatches, warm_up)
    order = _run(FORWARD, 0, warm_up)
    for index in range(microbatches - warm_up):
        order += [Action(FORWARD, warm_up + index), Action(BACKWARD, index)]
    return (*order, *_run(BACKWARD, microbatches - warm_up, microbatches))


# A new schedule is one function here, and its name in `PipelineSpec.schedule`.
SCHEDULES: dict[str, Callable[[int, int, int], Order]] = {
    "gpipe": gpipe_order,
    "1f1b": one_forward_one_backward_order,
    LATENCY_SIZED: eager_order,
}


def build(name: str, stages: int, microbatches: int) -> Schedule:
    """Return the schedule called `name` for so many stages and microbatches a step.

    Raises PlanError for an unknown name or a count below one.
    """
    order = SCHEDULES.get(name)
    if order is None:
        raise PlanError(f"there is no schedule {name!r}; known are {', '.join(sorted(SCHEDULES))}")
    if stages < 1 or microbatches < 1:
        raise PlanError(f"a schedule needs at least one stage and one microbatch, not {stages} and {microbatches}")
    return tuple(order(stage, stages, microbatches) for stage in range(stages))


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return for each stage the most microbatches whose forward has started and whose backward is not done."""
    peaks = []
    for order in schedule:
        in_flight = peak = 0
        for action in order:
            in_flight += 1 if action.kind == FORWARD else -1
            peak = max(peak, in_flight)
        peaks.append(peak)
    return tuple(peaks)


def format_schedule(schedule: Schedule) -> str:
    """Return the text of a schedule: one line a stage, every line ended."""
    return "".join(" ".join(map(str, order)) + "\n" for order in schedule)


_WORD = re.compile(r"\S+")
_ACTION = re.compile(r"(?P<stage>[0-9]{1,6})?(?P<kind>[FB])(?P<index>[0-9]{1,6})")


def parse_schedule(text: str) -> Schedule:
    """Return the schedule that `text` spells: actions such as `F0` or `2F0` (at stage 2), one line a stage.

    Empty lines and what follows `#` are skipped. Only the spelling is checked; `order_check.check` checks the sense.
    Raises ConfigError that names line and column.
    """
    schedule: list[Order] = []
    for line_number, line in enumerate(text.split("\n"), start=1):
        order = tuple(
            _parse_action(word.group(), len(schedule), line_number, word.start() + 1)
            for word in _WORD.finditer(line.partition("#")[0])
        )
        if order:
            schedule.append(order)
    if not schedule:
        raise ConfigError("schedule, line 1, column 1: found no action, expected one line of actions for each stage")
    return tuple(schedule)


def _parse_action(word: str, stage: int, line: int, column: int) -> Action:
    where = f"schedule, line {line}, column {column}"
    match = _ACTION.fullmatch(word)
    if match is None:
        found = word if len(word) <= 20 else word[:20] + "..."
        raise ConfigError(f"{where}: found {found!r}, expected an action such as F0, B12 or 2F0")
    if match["stage"] is not None and int(match["stage"]) != stage:
        raise ConfigError(f"{where}: found {word!r}, but this is the line of stage {stage}")
    return Action(FORWARD if match["kind"] == "F" else BACKWARD, int(match["index"]))


def _run(kind: Literal["F", "B"], first: int, end: int) -> list[Action]:
    return [Action(kind, index) for index in range(first, end)]
