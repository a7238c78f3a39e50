"""How the steps of a run follow each other on a line: mode, versions, schedule and warm-ups, and what that costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from brigade.partition.closed_forms import capacity
from brigade.partition.line import Line
from brigade.partition.policy import alternation
from brigade.partition.schedule import LATENCY_SIZED, build
from brigade.partition.simulation.run import UpdateRound, simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.sizing import (
    Sizing,
    ceaseless_period_s,
    enough_per_update,
    enough_versions,
    size_in_flight,
)
from brigade.partition.timeline import step_seconds
from brigade.wire.run_spec import PipelineSpec

GOOD_ENOUGH = 0.9  # of the devices' and links' best: from here on `auto` stays exact
FEWEST_VERSIONS = 2
WORTH_SAYING = 1.02


@dataclass(frozen=True, slots=True)
class Course:
    """What a plan says about the order of things, and the predicted seconds of a step."""

    mode: str  # exact, async or lowmem
    versions: int
    schedule: str
    sizing: Sizing | None  # of ls-1f1b
    step_s: float
    efficiency: float  # of the line's best
    remark: str = ""


def is_sized(pipeline: PipelineSpec) -> bool:
    """Tell whether latency decides how much is in flight."""
    return pipeline.mode != "exact" or pipeline.schedule == LATENCY_SIZED


def overlaps(pipeline: PipelineSpec) -> bool:
    """Tell whether a step begins before the one before it has ended; `auto` counts as exact until it is resolved."""
    return pipeline.mode not in {"exact", "auto"}


def least_versions(pipeline: PipelineSpec) -> int:
    """Return how many versions of its weights a stage has to hold at least."""
    match pipeline.mode:
        case "async":
            return pipeline.versions or FEWEST_VERSIONS
        case "stash":
            return FEWEST_VERSIONS
        case _:
            return 1


def set_course(
    line: Line,
    update_round: UpdateRound,
    pipeline: PipelineSpec,
    microbatches: int,
    most_in_flight: Sequence[int],
    steps: int,
) -> Course:
    """Return how steps of so many microbatches go over a line; exact ones are run on paper, `steps` of them.

    `auto` is taken for exact here: who asks decides what to make of its efficiency. `stash` takes as many versions as
    it needs so that nobody waits for an update.
    """
    best_s = microbatches * capacity(line).period_s
    if pipeline.mode in {"exact", "auto"}:
        if not is_sized(pipeline):
            schedule = build(pipeline.schedule, len(line.stages), microbatches)
            step_s = step_seconds(schedule, line, update_round, steps)
            return Course("exact", 1, pipeline.schedule, None, step_s, best_s / step_s)
        sizing = size_in_flight(line, most_in_flight, microbatches)
        work = Work(steps * microbatches, microbatches)
        step_s = simulate(line, alternation(sizing.warm_ups, sizing.slack), work, update_round=update_round).step_s
        return Course("exact", 1, LATENCY_SIZED, sizing, step_s, best_s / step_s)
    round_s = 2 * max(update_round.coordinator_way_s, default=0.0) + update_round.lag_s
    versions = pipeline.versions or FEWEST_VERSIONS
    if pipeline.mode == "stash":
        versions = enough_versions(line, microbatches, round_s)
    most_warm_up = microbatches if pipeline.mode == "lowmem" else (versions - 1) * microbatches
    sizing = size_in_flight(line, most_in_flight, most_warm_up)
    period_s = ceaseless_period_s(line, sizing, microbatches, versions, round_s)
    step_s = microbatches * period_s + max(stage.optimizer_s for stage in line.stages)
    remark = ""
    if period_s > capacity(line).period_s * WORTH_SAYING:
        remark = _what_would_help(line, microbatches, versions, round_s, sizing)
    mode = "lowmem" if pipeline.mode == "lowmem" else "async"
    return Course(mode, versions, LATENCY_SIZED, sizing, step_s, best_s / step_s, remark)


def _what_would_help(line: Line, microbatches: int, versions: int, round_s: float, sizing: Sizing) -> str:
    """Say what keeps a line from its best."""
    enough, more = enough_per_update(line, versions, round_s), enough_versions(line, microbatches, round_s)
    if microbatches < enough:
        return (
            f"{microbatches} microbatches a step are too few to hide the way through all stages and back;"
            f" raise training.microbatches to {enough} or pipeline.versions to {more}"
        )
    return f"memory lets only {sizing.caps[0]} microbatches be in flight"
