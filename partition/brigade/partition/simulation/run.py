"""Simulates a run of a line of stages: who computes what when, what travels, what waits."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from brigade.partition.line import Line, Server
from brigade.partition.simulation.agenda import Agenda
from brigade.partition.simulation.disturbances import QUIET, Disturbance, Noise, calendars, factors
from brigade.partition.simulation.network import Network
from brigade.partition.simulation.report import SimulationReport
from brigade.partition.simulation.stage import Reactions, SimulatedStage, Watch, Work
from brigade.partition.walk import Walk
from brigade.wire.errors import PlanError


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter that two stages use: seconds that its gradient takes to the owner, and its new value back."""

    owner: int
    follower: int
    gradient_s: float
    weight_s: float


@dataclass(frozen=True, slots=True)
class UpdateRound:
    """What happens between the last backward of a batch and the first forward with its new weights.

    The owner of a tied parameter waits for its followers' gradients. With `coordinator_way_s` (one way, by stage) every
    stage reports to the coordinator and waits for its decision, which comes when all have reported; `lag_s` passes
    after that, or after the stage's own last backward. A follower goes on when the owner's new value is there.
    """

    coordinator_way_s: tuple[float, ...] = ()
    lag_s: float = 0.0
    ties: tuple[Tie, ...] = ()


AT_ONCE = UpdateRound()


def simulate(
    line: Line,
    walks: Sequence[Walk],
    work: Work,
    *,
    update_round: UpdateRound = AT_ONCE,
    noise: Noise = QUIET,
    disturbances: Sequence[Disturbance] = (),
    seed: int = 0,
    until_s: float = math.inf,
    watch: Watch | None = None,
) -> SimulationReport:
    """Run all microbatches through the line, or as far as they come by `until_s`; equal arguments give equal reports.

    `walks` has one fresh core for each stage; `watch` is told of everything that is computed, encoded and carried.
    Raises PlanError that says who waits when nobody can go on.
    """
    return _Run(line, walks, work, update_round, noise, disturbances, seed, watch).run(until_s)


class _Run:
    def __init__(
        self,
        line: Line,
        walks: Sequence[Walk],
        work: Work,
        update_round: UpdateRound,
        noise: Noise,
        disturbances: Sequence[Disturbance],
        seed: int,
        watch: Watch | None,
    ) -> None:
        count = len(line.stages)
        if len(walks) != count or len(update_round.coordinator_way_s) not in {0, count}:
            raise PlanError(f"{count} stages need as many walks and ways to the coordinator")
        if any(not 0 <= stage < count for tie in update_round.ties for stage in (tie.owner, tie.follower)):
            raise PlanError(f"{count} stages cannot share {update_round.ties}")
        if work.microbatches < 1 or work.per_update < 1 or work.versions == 0:
            raise PlanError(f"there is nothing to simulate in {work}")
        self._line = line
        self._work = work
        self._round = update_round
        self._watch = watch
        self._agenda = Agenda()
        self._woken: list[SimulatedStage] = []
        self._unfinished = count
        self._over = [0] * work.updates  # by batch: stages that are through with it
        self._told = [0] * work.updates
        self._applied = [0] * work.updates
        # by stage: what is there of what a batch's sum, and an update, take: its own part and those of others
        self._parts = [1 + sum(tie.owner == k for tie in update_round.ties) for k in range(count)]
        self._values = [1 + sum(tie.follower == k for tie in update_round.ties) for k in range(count)]
        self._summed: Counter[tuple[int, int]] = Counter()  # by stage and batch
        self._tied: Counter[tuple[int, int]] = Counter()
        self._batch_ends: list[float] = []
        self._commits: list[float] = []
        self._decode_s = [line.stages[k].decode_s for hop in range(count - 1) for k in (hop + 1, hop)]
        plans = calendars(disturbances)
        self._network = Network(self._agenda, line, self._deliver, plans, noise, seed)
        self._stages = [
            SimulatedStage(
                self._agenda,
                time,
                walks[k],
                work,
                self._reactions(k),
                plans.get(Server("compute", k)),
                factors(noise.compute_cv, work.microbatches, (seed, 0, k, 0)),
                factors(noise.compute_cv, work.microbatches, (seed, 0, k, 1)),
            )
            for k, time in enumerate(line.stages)
        ]

    def _reactions(self, k: int) -> Reactions:
        last = len(self._line.stages) - 1
        watch = self._watch
        return Reactions(
            send_activation=partial(self._send, k, 2 * k) if k < last else None,
            send_gradient=partial(self._send, k, 2 * k - 1) if k > 0 else None,
            batch_over=partial(self._batch_over, k),
            applied=partial(self._update_applied, k),
            wake=self._woken.append,
            watch=None if watch is None else lambda kind, *facts: watch(kind, k, *facts),
        )

    def run(self, until_s: float) -> SimulationReport:
        for stage in self._stages:
            stage.start()
        self._agenda.run(self._settle, until_s)
        if self._unfinished and self._agenda.now < until_s:
            waits = "; ".join(f"stage {k} is {s.waits}" for k, s in enumerate(self._stages) if not s.finished)
            raise PlanError(f"deadlock at {self._agenda.now:.3f} s: {waits}")
        return self._report()

    def _settle(self) -> bool:
        woken = self._woken
        while woken:
            woken.pop().start()
        return not self._unfinished

    def _send(self, k: int, link: int, index: int) -> None:
        if self._watch is not None:
            now = self._agenda.now
            self._watch("sent_gradient" if link % 2 else "sent_activation", k, index, now, now)
        self._network.send(link, index)

    def _deliver(self, link: int, index: int) -> None:
        hop, is_gradient = divmod(link, 2)
        k = hop if is_gradient else hop + 1
        stage = self._stages[k]
        if self._watch is not None:
            now = self._agenda.now
            self._watch("arrived_gradient" if is_gradient else "arrived_activation", k, index, now, now)
        if is_gradient:
            stage.code("decode_gradient", self._decode_s[link], stage.gradient_arrived, index)
        else:
            stage.code("decode_activation", self._decode_s[link], stage.activation_arrived, index)

    def _batch_over(self, k: int, batch: int) -> None:
        now = self._agenda.now
        self._over[batch] += 1
        if self._over[batch] == len(self._stages):
            self._batch_ends.append(now)
        for tie in self._round.ties:
            if tie.follower == k:
                self._agenda.at(now + tie.gradient_s, self._part_summed, tie.owner, batch)
        self._part_summed(k, batch)

    def _part_summed(self, k: int, batch: int) -> None:
        self._summed[k, batch] += 1
        if self._summed[k, batch] < self._parts[k]:
            return
        now, ways = self._agenda.now, self._round.coordinator_way_s
        if ways:
            self._agenda.at(now + ways[k], self._told_coordinator, batch)
        elif self._round.lag_s:
            self._agenda.at(now + self._round.lag_s, self._stages[k].update_due)
        else:
            self._stages[k].update_due()

    def _told_coordinator(self, batch: int, _: None) -> None:
        self._told[batch] += 1
        if self._told[batch] == len(self._stages):
            for stage, way_s in zip(self._stages, self._round.coordinator_way_s, strict=True):
                self._agenda.at(self._agenda.now + way_s + self._round.lag_s, stage.update_due)

    def _update_applied(self, k: int, update: int) -> None:
        for tie in self._round.ties:
            if tie.owner == k:
                self._agenda.at(self._agenda.now + tie.weight_s, self._value_taken, tie.follower, update)
        self._value_taken(k, update)

    def _value_taken(self, k: int, update: int) -> None:
        self._tied[k, update] += 1
        if self._tied[k, update] < self._values[k]:
            return
        self._stages[k].take_update()
        self._applied[update] += 1
        if self._applied[update] == len(self._stages):
            self._commits.append(self._agenda.now)
        if update == self._work.updates - 1:
            self._unfinished -= 1

    def _report(self) -> SimulationReport:
        stages = tuple(stage.report() for stage in self._stages)
        busy = {Server("compute", k): stage.computing_s for k, stage in enumerate(stages)}
        busy |= {Server("codec", k): stage.codec_s for k, stage in enumerate(self._stages) if stage.codec_s}
        started = self._stages[-1].first_start
        return SimulationReport(
            wall_s=self._agenda.now,
            stages=stages,
            busy_s=busy | self._network.busy(),
            finishes_s=np.array(self._stages[0].backward_ends_s),
            batch_ends_s=np.array(self._batch_ends),
            commits_s=np.array(self._commits),
            fill_s=math.inf if started is None else started,
            started=self._stages[0].forwards,
            per_update=self._work.per_update,
            flushes=self._work.versions == 1,
        )
