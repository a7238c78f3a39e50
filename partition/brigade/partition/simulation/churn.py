"""A simulated run whose plan changes: nodes fail and join, uncommitted work is lost or finished first."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brigade.partition.line import Line
from brigade.partition.simulation.disturbances import QUIET, Noise
from brigade.partition.simulation.report import SimulationReport
from brigade.partition.simulation.run import AT_ONCE, UpdateRound, simulate
from brigade.partition.simulation.stage import Work
from brigade.partition.simulation.walks import Walk
from brigade.wire.errors import PlanError


@dataclass(frozen=True, slots=True)
class Formation:
    """One plan on paper: its line, and fresh cores for so many microbatches."""

    line: Line
    walks: Callable[[int], Sequence[Walk]]
    per_update: int
    versions: int | None = 1
    update_round: UpdateRound = AT_ONCE


@dataclass(frozen=True, slots=True)
class Change:
    """Another plan takes over, `pause_s` after the old one has stopped.

    `abrupt` (a node failed): at once, and what is not committed is lost and done again. Otherwise (a node joins, blocks
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
    commits_s: NDArray[np.float64]  # from the start of the run
    committed: int  # microbatches that contributed to an update
    lost: int  # microbatches begun that did not, each begun again later
    paused_s: float  # between plans
    wasted_s: float  # from the last commit before each failure to the failure


def simulate_churn(
    formation: Formation, changes: Sequence[Change], updates: int, *, noise: Noise = QUIET, seed: int = 0
) -> ChurnReport:
    """Run until so many updates are committed, through all changes that come before; deterministic.

    A change that is due while another pauses takes over right after it. Raises PlanError as `simulate` does.
    """
    if updates < 1 or any(change.pause_s < 0 for change in changes):
        raise PlanError("a run has at least one update, and no pause ends before it begins")
    waiting = sorted(changes, key=lambda change: change.at_s)
    now = paused_s = wasted_s = 0.0
    committed = lost = done = 0
    segments: list[SimulationReport] = []
    commits: list[NDArray[np.float64]] = []
    while True:
        change = waiting.pop(0) if waiting else None
        report = _segment(formation, change, now, updates - done, noise, seed + len(segments))
        segments.append(report)
        commits.append(report.commits_s + now)
        done += len(report.commits_s)
        committed += len(report.commits_s) * formation.per_update
        now += report.wall_s
        if change is None or done == updates:
            break
        if change.abrupt:
            lost += report.started - len(report.commits_s) * formation.per_update
            wasted_s += report.wall_s - (report.commits_s[-1] if len(report.commits_s) else 0.0)
        now += change.pause_s
        paused_s += change.pause_s
        formation = change.formation
    return ChurnReport(now, tuple(segments), np.concatenate(commits), committed, lost, paused_s, float(wasted_s))


def _segment(
    formation: Formation, change: Change | None, now: float, updates: int, noise: Noise, seed: int
) -> SimulationReport:
    """Run one plan until it is through, or until it has to stop."""

    def run(microbatches: int, until_s: float) -> SimulationReport:
        return simulate(
            formation.line,
            formation.walks(microbatches),
            Work(microbatches, formation.per_update, formation.versions),
            update_round=formation.update_round,
            noise=noise,
            seed=seed,
            until_s=until_s,
        )

    whole = updates * formation.per_update
    if change is None:
        return run(whole, math.inf)
    report = run(whole, max(change.at_s - now, 0.0))
    if change.abrupt or len(report.commits_s) == updates:
        return report
    # Noise depends on the microbatch alone, so that this is the same run, but for the batches that no longer begin.
    under_way = -(-report.started // formation.per_update)
    return run(max(under_way, 1) * formation.per_update, math.inf)
