"""Simulates a run of a line of stages: who computes what when, what travels, what waits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from brigade.partition.line import Line, Server
from brigade.partition.simulation.agenda import Agenda
from brigade.partition.simulation.disturbances import QUIET, Disturbance, Noise, calendars, factors
from brigade.partition.simulation.network import Network
from brigade.partition.simulation.report import SimulationReport
from brigade.partition.simulation.stage import Reactions, SimulatedStage, Work
from brigade.partition.simulation.walks import Walk
from brigade.wire.errors import PlanError


@dataclass(frozen=True, slots=True)
class UpdateRound:
    """What happens between the last backward of a batch and the optimizer.

    With `coordinator_way_s` (one way, by stage) every stage reports to the coordinator and waits for its decision,
    which comes when all have reported; `lag_s` passes after that, or after the stage's own last backward.
    """

    coordinator_way_s: tuple[float, ...] = ()
    lag_s: float = 0.0


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
) -> SimulationReport:
    """Run all microbatches through the line, or as far as they come by `until_s`; equal arguments give equal reports.

    `walks` has one fresh core for each stage. Raises PlanError that says who waits when nobody can go on.
    """
    return _Run(line, walks, work, update_round, noise, disturbances, seed).run(until_s)


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
    ) -> None:
        count = len(line.stages)
        if len(walks) != count or len(update_round.coordinator_way_s) not in {0, count}:
            raise PlanError(f"{count} stages need as many walks and ways to the coordinator")
        if work.microbatches < 1 or work.per_update < 1 or work.versions == 0:
            raise PlanError(f"there is nothing to simulate in {work}")
        self._line = line
        self._work = work
        self._round = update_round
        self._agenda = Agenda()
        self._woken: list[SimulatedStage] = []
        self._unfinished = count
        self._over = [0] * work.updates  # by batch: stages that are through with it
        self._told = [0] * work.updates
        self._applied = [0] * work.updates
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
        return Reactions(
            send_activation=partial(self._network.send, 2 * k) if k < last else None,
            send_gradient=partial(self._network.send, 2 * k - 1) if k > 0 else None,
            batch_over=partial(self._batch_over, k),
            updated=self._updated,
            wake=self._woken.append,
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

    def _deliver(self, link: int, index: int) -> None:
        hop, is_gradient = divmod(link, 2)
        stage = self._stages[hop if is_gradient else hop + 1]
        arrived = stage.gradient_arrived if is_gradient else stage.activation_arrived
        stage.code(self._decode_s[link], arrived, index)

    def _batch_over(self, k: int, batch: int) -> None:
        now, ways = self._agenda.now, self._round.coordinator_way_s
        self._over[batch] += 1
        if self._over[batch] == len(self._stages):
            self._batch_ends.append(now)
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

    def _updated(self, update: int) -> None:
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
