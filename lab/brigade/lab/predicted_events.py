"""What the events of a scenario do to a predicted run: slowdowns and stalls of its lines, and changes of plan.

Events are taken in order of time; when one is due after so many steps, is found by simulating up to there. Nodes that
fail are missed as the coordinator misses them; the run is then taken up again from its newest checkpoint with whoever
is there, as the lab does it. Nodes that come are spares until then.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from brigade.coordinator.run_closing import FAILED, STOPPED
from brigade.lab import events as ev
from brigade.lab.observed import Observed, SeenEvent
from brigade.lab.predicted_plan import PredictedPlan
from brigade.lab.quantities import parse_rate
from brigade.lab.scenario import Scenario
from brigade.lab.scenario_spec import (
    COORDINATOR,
    CoordinatorKill,
    EventSpec,
    Join,
    Kill,
    Leave,
    LinkDown,
    LinkDownOneWay,
    LinkRate,
    LinkUp,
    Resume,
    Slow,
    Suspend,
)
from brigade.partition.line import Server
from brigade.partition.simulation.churn import Change, ChurnReport, Course, Formation, simulate_churn
from brigade.partition.simulation.disturbances import Disturbance, Slowdown, Stall
from brigade.partition.simulation.walks import follow
from brigade.partition.walk import Walk
from brigade.wire.errors import PlanError

RESTART_S = 7.0  # from the end of a run until all stages stand again; measured with churn8 on two busy cores

Rates = dict[str, tuple[str | None, str | None]]  # by host: up, down; None: as in the scenario
MakePlan = Callable[[Sequence[str], int, dict[str, float], Rates], PredictedPlan]


@dataclass(slots=True)
class Segment:
    """A plan at work, from its change on, and what goes wrong meanwhile.

    `slowed` and `rates` are what had become of hosts by the time it was made: its line knows of it.
    """

    formed: PredictedPlan
    slowed: dict[str, float] = field(default_factory=dict)
    rates: Rates = field(default_factory=dict)
    at_s: float = 0.0
    pause_s: float = 0.0
    abrupt: bool = False
    disturbances: list[Disturbance] = field(default_factory=list)

    def formation(self) -> Formation:
        """Return it for the simulator."""
        made = self.formed.plan

        def walks(_: int) -> Sequence[Walk]:
            return follow(made)

        line, update_round = self.formed.line, self.formed.update_round
        return Formation(line, walks, made.microbatches, made.versions, update_round, tuple(self.disturbances))


class EventfulRun:
    """A run on paper through all events of a scenario; `make_plan` plans for nodes as they have become."""

    def __init__(self, scenario: Scenario, make_plan: MakePlan, course: Course) -> None:
        self._spec = scenario.run.spec
        self._resumes = scenario.spec.resume
        self._limit_s, self._limit_reason = Observed(0, began_at=0.0).end_by(scenario.spec)
        self._hosts = {host.name: host for host in scenario.hosts}
        self._make_plan = make_plan
        self._course = course
        self._pending = list(scenario.events)
        self._present = set(scenario.starting())
        self._slowed: dict[str, float] = {}
        self._rates: Rates = {}
        self.seen: list[SeenEvent] = []
        self.reason = ""  # why it ended before its end
        self.exit_code = 0
        self.segments = [Segment(self._plan(0))]
        self.report = self._simulate()

    def carry_out(self) -> ChurnReport:
        """Take all events that come before the end, and return what came of it."""
        while self._pending and not self.reason:
            event = min(self._pending, key=self._moment)
            at_s = self._moment(event)
            if at_s >= min(self.report.wall_s, self._limit_s):
                break
            self._pending.remove(event)
            self._take(event, at_s)
            self.report = self._simulate()
        if self.report.commits_s[-1] > self._limit_s:
            self._stop_at_limit()
            self.report = self._simulate()
        return self.report

    # --- when ---------------------------------------------------------------------------------------------------------

    def _simulate(self) -> ChurnReport:
        first, *later = self.segments
        changes = [Change(each.at_s, each.formation(), each.pause_s, each.abrupt) for each in later]
        return simulate_churn(first.formation(), changes, self._course)

    def _moment(self, event: EventSpec) -> float:
        if event.at_s is not None:
            return event.at_s
        steps = event.at_step or 0
        commits_s = self.report.commits_s
        return (0.0 if steps == 0 else float(commits_s[steps - 1])) if steps <= len(commits_s) else math.inf

    def _ends_by(self, kinds: tuple[type, ...], host: str, at_s: float, limit_s: float) -> EventSpec | None:
        """Return the event that undoes something before anybody gives up; it is taken with what it undoes."""
        undone = [
            event
            for event in self._pending
            if isinstance(event, kinds)
            and getattr(event, "host", "") == host
            and at_s <= self._moment(event) < at_s + limit_s
        ]
        return min(undone, key=self._moment, default=None)

    # --- what ---------------------------------------------------------------------------------------------------------

    def _take(self, event: EventSpec, at_s: float) -> None:
        self._see(event, at_s)
        match event:
            case Join(host=host):
                self._present.add(host)
            case Resume(host=host):
                self._present.add(host)
            case Kill(host=host):
                self._present.discard(host)
                self._lose(host, at_s, self._spec.pipeline.silence_limit_s, abrupt=True)
            case Leave(host=host):
                self._present.discard(host)
                self._lose(host, at_s, 0.0, abrupt=False)
            case Suspend(host=host):
                self._hold(host, at_s)
            case Slow(host=host, factor=factor):
                self._slowed[host] = factor
                times = factor / self._now.slowed.get(host, 1.0)
                self._disturb(host, lambda k: Slowdown(Server("compute", k), at_s, times))
            case LinkDown(host=host, other=other):
                self._cut(host, other, at_s, both=True)
            case LinkDownOneWay(host=host, other=other):
                self._cut(host, other, at_s, both=False)
            case LinkUp():
                pass  # what it heals was not given up, or has been by now
            case LinkRate():
                self._change_rate(event, at_s)
            case CoordinatorKill(back_after_s=back_after_s):
                self._replan(at_s, back_after_s, abrupt=True)

    def _see(self, event: EventSpec, at_s: float) -> None:
        alone = ev.Timeline([event])
        moment = event.at_s or 0.0
        actions = [*alone.handle(ev.TrainingBegan(), 0.0), *alone.handle(ev.StepsCommitted(event.at_step or 0), moment)]
        self.seen += [SeenEvent(round(at_s, 3), ev.describe(action)) for action in actions]

    @property
    def _now(self) -> Segment:
        return self.segments[-1]

    def _stage(self, host: str) -> int | None:
        nodes = self._now.formed.nodes
        return nodes.index(host) if host in nodes else None

    def _disturb(self, host: str, make: Callable[[int], Disturbance]) -> None:
        stage = self._stage(host)
        if stage is not None:
            self._now.disturbances.append(make(stage))

    def _hold(self, host: str, at_s: float) -> None:
        """Let a node stand still until it goes on, or until the coordinator gives it up."""
        limit_s = self._spec.pipeline.silence_limit_s
        ending = self._ends_by((Resume,), host, at_s, limit_s)
        if ending is None:
            self._present.discard(host)
            self._lose(host, at_s, limit_s, abrupt=True)
            return
        end_s = self._moment(ending)
        self._pending.remove(ending)
        self._see(ending, end_s)
        if end_s > at_s:
            self._disturb(host, lambda k: Stall(Server("compute", k), at_s, end_s - at_s))

    def _cut(self, host: str, other: str, at_s: float, *, both: bool) -> None:
        """Let nothing pass from a host, and with `both` to it, until it is whole again or somebody gives up."""
        limit_s = self._spec.pipeline.silence_limit_s
        stage, others = self._stage(host), self._stage(other) if other not in ("", COORDINATOR) else None
        if stage is None or (other not in ("", COORDINATOR) and (others is None or abs(others - stage) != 1)):
            return  # a link that the plan does not use
        ending = self._ends_by((LinkUp,), host, at_s, limit_s)
        if ending is None:
            self._replan(at_s, limit_s, abrupt=True, without=host)
            return
        end_s = self._moment(ending)
        line = self._now.formed.line
        for hop in range(len(line.hops)):
            if hop not in (stage - 1, stage) or (others is not None and hop != min(stage, others)):
                continue
            for gradients in (False, True):
                outgoing = gradients == (hop == stage - 1)
                if (both or outgoing) and other != COORDINATOR and end_s > at_s:
                    server = line.hop_line(hop, gradients=gradients)
                    self._now.disturbances.append(Stall(server, at_s, end_s - at_s))

    def _change_rate(self, event: LinkRate, at_s: float) -> None:
        host, before = self._hosts[event.host], self._rates.get(event.host, (None, None))
        self._rates[event.host] = (event.up or before[0], event.down or before[1])
        planned_up, planned_down = self._now.rates.get(event.host, (None, None))
        kinds = ("pipe", "pipe") if host.pipe == "shared" else ("uplink", "downlink")
        ways = ((kinds[0], event.up, planned_up or host.up), (kinds[1], event.down, planned_down or host.down))
        for kind, new, old in ways:
            was, now = parse_rate(old), parse_rate(new) if new else None
            if was is not None and now is not None:  # an access that nothing limited is not in the line
                self._disturb(event.host, partial(_slower, kind, at_s, was / now))

    # --- another plan -------------------------------------------------------------------------------------------------

    def _lose(self, host: str, at_s: float, noticed_s: float, *, abrupt: bool) -> None:
        if self._stage(host) is not None:
            self._replan(at_s, noticed_s, abrupt=abrupt)

    def _replan(self, at_s: float, noticed_s: float, *, abrupt: bool, without: str = "") -> None:
        """Take the run up again with whoever is there, as soon as enough are."""
        self._present.discard(without)
        pause_s = noticed_s + RESTART_S
        needed = self._spec.pipeline.nodes
        while len(self._present) < needed and (join := self._next_join(at_s)) is not None:
            self._pending.remove(join)
            self._see(join, self._moment(join))
            self._present.add(join.host)
            pause_s = max(pause_s, self._moment(join) - at_s + RESTART_S)
        if not self._resumes or len(self._present) < needed:
            self._end(at_s)
            return
        try:
            formed = self._plan(len(self.segments))
        except PlanError as error:
            self._end(at_s, str(error))
            return
        self.segments.append(Segment(formed, dict(self._slowed), dict(self._rates), at_s, pause_s, abrupt))

    def _next_join(self, at_s: float) -> Join | Resume | None:
        joins = [e for e in self._pending if isinstance(e, Join | Resume) and e.at_s is not None and e.at_s >= at_s]
        return min(joins, key=self._moment, default=None)

    def _end(self, at_s: float, reason: str = "") -> None:
        self.reason = reason or f"only {len(self._present)} of {self._spec.pipeline.nodes} nodes are left"
        self.exit_code = FAILED
        self._course = replace(self._course, updates=max(1, self._done(at_s)))

    def _stop_at_limit(self) -> None:
        """Do the step that is under way, and no more; between two plans there is none."""
        begins_s, segments = self.report.begins_s, self.report.segments
        at_work = any(
            begin <= self._limit_s < begin + each.wall_s for begin, each in zip(begins_s, segments, strict=True)
        )
        self.reason, self.exit_code = self._limit_reason, STOPPED
        self.seen.append(SeenEvent(round(self._limit_s, 3), self.reason))
        self._course = replace(self._course, updates=max(1, self._done(self._limit_s) + at_work))

    def _done(self, at_s: float) -> int:
        return int((self.report.commits_s <= at_s).sum())

    def _plan(self, generation: int) -> PredictedPlan:
        names = [name for name in self._hosts if name in self._present][: self._spec.pipeline.nodes]
        return self._make_plan(names, generation, self._slowed, self._rates)


def _slower(kind: str, at_s: float, times: float, stage: int) -> Slowdown:
    return Slowdown(Server(kind, stage), at_s, times)
