"""What came out of a simulated run: times that add up, peaks, and how far apart microbatches left."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brigade.partition.line import Server

STATES = ("forward", "backward", "optimizer", "stalled", "starved", "blocked", "gated", "finished", "evaluation")
WINDOWS = 20  # of the middle half, for the spread of the period


@dataclass(frozen=True, slots=True)
class StageReport:
    """How one stage spent the wall time, in seconds that add up to it; its peaks; the delays of its gradients.

    It waits `starved` when no input is there, `blocked` when a forward could run but too much is in flight (or the
    order wants a backward first), `gated` when a forward could run but its weights are not there yet.
    `delays` counts microbatches by the number of updates between their forward and their backward here.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    stalled_s: float
    starved_s: float
    blocked_s: float
    gated_s: float
    finished_s: float  # after its last work
    peak_in_flight: int
    peak_activations: int  # that have arrived and wait
    peak_gradients: int
    delays: Mapping[int, int]
    evaluation_s: float = 0.0  # forwards of held-out microbatches

    @property
    def computing_s(self) -> float:
        """Seconds of work."""
        return self.forward_s + self.backward_s + self.optimizer_s + self.evaluation_s

    @property
    def wall_s(self) -> float:
        """The sum of all parts."""
        idle_s = self.stalled_s + self.starved_s + self.blocked_s + self.gated_s + self.finished_s
        return self.computing_s + idle_s

    def peak_bytes(self, persistent: int, saved: int, activation: int, gradient: int) -> int:
        """Return the most memory held at once: weights and states, what backwards need, what waits in queues."""
        queued = self.peak_activations * activation + self.peak_gradients * gradient
        return persistent + self.peak_in_flight * saved + queued


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """A whole run. Times are seconds from its start; arrays are by microbatch or by update, as far as it came."""

    wall_s: float
    stages: tuple[StageReport, ...]
    busy_s: Mapping[Server, float]  # of everything that computes, encodes or carries
    finishes_s: NDArray[np.float64]  # when each microbatch had come back to the first stage
    batch_ends_s: NDArray[np.float64]  # when the last backward of each batch was done, at the stage that was last
    commits_s: NDArray[np.float64]  # when each update was applied at all stages
    fill_s: float  # when the last stage began its first forward
    started: int  # microbatches whose forward at the first stage began
    per_update: int
    flushes: bool  # every batch ends before the next begins

    @property
    def period_s(self) -> float:
        """Mean seconds between microbatches in the middle half of the run; of whole steps where there are enough."""
        if self.flushes and len(self._whole_steps):
            return float(np.mean(self._whole_steps)) / self.per_update
        if not len(self.finishes_s):
            return math.inf  # it ended before any came back
        first, end = self._middle
        return float(self.finishes_s[end] - self.finishes_s[first]) / max(end - first, 1)

    @property
    def period_p90_s(self) -> float:
        """90th percentile of the period over windows of the middle half, or over steps."""
        if self.flushes and len(self._whole_steps):
            return float(np.percentile(self._whole_steps, 90)) / self.per_update
        first, end = self._middle
        edges = np.unique(np.linspace(first, end, WINDOWS + 1).astype(int))
        if len(edges) < 2:
            return self.period_s
        return float(np.percentile(np.diff(self.finishes_s[edges]) / np.diff(edges), 90))

    @property
    def makespan_s(self) -> float:
        """Seconds from the start to the last backward of the first batch."""
        return float(self.batch_ends_s[0])

    @property
    def step_s(self) -> float:
        """Mean seconds between updates, from the first to the last; of the only one, its end."""
        if len(self.commits_s) < 2:
            return float(self.commits_s[0])
        return float(self.commits_s[-1] - self.commits_s[0]) / (len(self.commits_s) - 1)

    @property
    def utilisation(self) -> dict[Server, float]:
        """Return the share of the wall time for which each server worked."""
        return {server: busy / self.wall_s for server, busy in self.busy_s.items()}

    @property
    def _middle(self) -> tuple[int, int]:
        count = len(self.finishes_s)
        return count // 4, max(count // 4, min(3 * count // 4, count - 1))

    @property
    def _whole_steps(self) -> NDArray[np.float64]:
        """Seconds between commits of full batches."""
        return np.diff(self.commits_s[: len(self.finishes_s) // self.per_update])
