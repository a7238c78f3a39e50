"""A simulated run whose plan changes: nodes fail and join, uncommitted work is lost or finished first."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brigade.partition.line import Line
from brigade.partition.simulation.disturbances import QUIET, Disturbance, Noise, Slowdown, Stall
from brigade.partition.simulation.report import SimulationReport
from brigade.partition.simulation.run import AT_ONCE, UpdateRound, simulate
from brigade.partition.simulation.stage import HeldOut, Watch, Work
from brigade.partition.walk import Walk
from brigade.wire.errors import PlanError


@dataclass(frozen=True, slots=True)
class Formation:
    """One plan on paper: its line, fresh cores for so many microbatches, and what goes wrong, in seconds of the run."""

    line: Line
    walks: Callable[[int], Sequence[Walk]]
    per_update: int
    versions: int | None = 1
    update_round: UpdateRound = AT_ONCE
    disturbances: Sequence[Disturbance] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Another plan takes over, `pause_s` after the old one has stopped.

    `abrupt` (a node failed): at once, and what is not kept is lost and done again. Otherwise (a node joins, blocks
    move): after the batches that are under way.
    """

    at_s: float
    formation: Formation
    pause_s: float
    abrupt: bool


@dataclass(frozen=True, slots=True)
class ChurnReport:
    """A run of several plans: `wall_s` is the sum of its segments' and `paused_s`."""

    wall_s: float
    segments: tuple[SimulationReport, ...]
    begins_s: tuple[float, ...]  # of the segments, from the start of the run
    first_updates: tuple[int, ...]  # with which update each segment begins
    commits_s: NDArray[np.float64]  # from the start of the run, of each update the one that counts
    committed: int  # microbatches that contributed to an update
    lost: int  # microbatches begun that did not, or whose update was not kept, each begun again later
    paused_s: float  # between plans
    wasted_s: float  # from the last kept commit before each failure to the failure


@dataclass(frozen=True, slots=True)
class Course:
    """What a run has to do and what it keeps, whatever happens.

    Of a failed plan only a multiple of `kept_every` updates is kept: those of the newest checkpoint. `held_out` counts
    the updates of the whole run.
    """

    updates: int
    kept_every: int = 1
    held_out: HeldOut | None = None
    noise: Noise = QUIET
    seed: int = 0
    watch: Callable[[int], Watch | None] = lambda _: None  # by segment


def simulate_churn(formation: Formation, changes: Sequence[Change], course: Course) -> ChurnReport:
    """Run until all updates are committed, through all changes that come before; deterministic.

    A change that is due while another pauses takes over right after it. Raises PlanError as `simulate` does.
    """
    if course.updates < 1 or course.kept_every < 1 or any(change.pause_s < 0 for change in changes):
        raise PlanError("a run has at least one update, and no pause ends before it begins")
    waiting = sorted(changes, key=lambda change: change.at_s)
    now = paused_s = wasted_s = 0.0
    lost = 0
    segments: list[SimulationReport] = []
    begins, firsts = [], []
    commits: list[float] = []
    kept_at = 0.0  # when the newest update that is kept was committed
    while True:
        change = waiting.pop(0) if waiting else None
        before = len(commits)
        begins.append(now)
        firsts.append(before)
        report = _segment(formation, change, now, before, course, len(segments))
        segments.append(report)
        commits += (report.commits_s + now).tolist()
        now += report.wall_s
        if change is None or len(commits) == course.updates:
            break
        if change.abrupt:
            kept = max(before, len(commits) // course.kept_every * course.kept_every)
            lost += report.started - (kept - before) * formation.per_update
            kept_at = commits[kept - 1] if kept > before else max(kept_at, begins[-1])
            wasted_s += now - kept_at
            del commits[kept:]
        now += change.pause_s
        paused_s += change.pause_s
        formation = change.formation
    return ChurnReport(
        wall_s=now,
        segments=tuple(segments),
        begins_s=tuple(begins),
        first_updates=tuple(firsts),
        commits_s=np.array(commits),
        committed=course.updates * formation.per_update,
        lost=lost,
        paused_s=paused_s,
        wasted_s=wasted_s,
    )


@dataclass(frozen=True, slots=True)
class _Later:
    """A set of updates of the whole run, as a segment counts them."""

    updates: Container[int]
    before: int

    def __contains__(self, update: object) -> bool:
        return isinstance(update, int) and update + self.before in self.updates


def _segment(
    formation: Formation, change: Change | None, now: float, before: int, course: Course, number: int
) -> SimulationReport:
    """Run one plan until it is through, or until it has to stop."""
    held_out = course.held_out
    if held_out is not None:
        held_out = replace(held_out, after=_Later(held_out.after, before))

    def run(microbatches: int, until_s: float) -> SimulationReport:
        return simulate(
            formation.line,
            formation.walks(microbatches),
            Work(microbatches, formation.per_update, formation.versions, held_out),
            update_round=formation.update_round,
            noise=course.noise,
            disturbances=[each for each in (_since(now, d) for d in formation.disturbances) if each is not None],
            seed=course.seed + number,
            until_s=until_s,
            watch=course.watch(number),
        )

    updates = course.updates - before
    whole = updates * formation.per_update
    if change is None:
        return run(whole, math.inf)
    report = run(whole, max(change.at_s - now, 0.0))
    if change.abrupt or len(report.commits_s) == updates:
        return report
    # Noise depends on the microbatch alone, so that this is the same run, but for the batches that no longer begin.
    under_way = -(-report.started // formation.per_update)
    return run(max(under_way, 1) * formation.per_update, math.inf)


def _since(now: float, disturbance: Disturbance) -> Disturbance | None:
    """Return a disturbance of the run in seconds of a segment that begins now; None when it is over by then."""
    match disturbance:
        case Stall(server, at_s, duration_s):
            begin, end = max(at_s - now, 0.0), at_s + duration_s - now
            return Stall(server, begin, end - begin) if end > begin else None
        case Slowdown(server, at_s, factor):
            return Slowdown(server, max(at_s - now, 0.0), factor)
