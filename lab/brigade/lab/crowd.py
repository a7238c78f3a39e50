"""Drives the real core of the coordinator with a simulated crowd, and measures what each decision costs.

No sockets, no processes: virtual time, and the processor time of this thread around every event.
"""

import gc
import tempfile
import time
import tracemalloc
from array import array
from collections import deque
from pathlib import Path

import msgspec
import numpy as np

from brigade.coordinator import run_events as e
from brigade.coordinator.export import CHECKPOINTS_NAME
from brigade.coordinator.planner import Planner
from brigade.coordinator.run_core import RunCore
from brigade.coordinator.run_membership import Door, Membership
from brigade.coordinator.run_state import Beginning
from brigade.lab.crowd_fleet import INPUTS, OWNER_KEY, RUN_ID, SECRET, CrowdFleet
from brigade.lab.crowd_spec import TRAIN_SAMPLES, CrowdSpec
from brigade.wire.admission import Admission

COLLECTION = "collection"  # of garbage: its time is not counted to the decision that it interrupts
PLAN = "plan"  # as a kind of decision: the planner's work, in a thread of its own in a real coordinator


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What decisions after one kind of event cost, in microseconds of processor time."""

    kind: str
    count: int
    mean_us: float
    p50_us: float
    p99_us: float
    longest_us: float


class CrowdResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out; keys as in lab/README.md."""

    nodes: int  # there at the beginning
    nodes_seen: int
    virtual_seconds: float
    lives: int  # of the coordinator: a run ends when a node with a stage goes
    steps: int
    events: int
    core_seconds: float
    events_per_s: float
    longest_ms: float  # of all decisions but plans
    collection_longest_ms: float  # of garbage, mostly that of the simulated nodes
    plans: int
    plan_longest_s: float
    plan_stages: int
    bytes_per_node: float
    decisions: tuple[Decision, ...]


def run_crowd(spec: CrowdSpec) -> CrowdResult:
    """Let a crowd take part in a run, and return what it cost the coordinator."""
    with tempfile.TemporaryDirectory() as directory:
        crowd = Crowd(spec, Path(directory))
        gc.collect()
        gc.freeze()  # as a coordinator does with what it has imported
        gc.callbacks.append(crowd.collecting)
        try:
            crowd.run()
        finally:
            gc.callbacks.remove(crowd.collecting)
            gc.unfreeze()
        return crowd.result(measure_memory(spec, Path(directory)))


def measure_memory(spec: CrowdSpec, directory: Path) -> float:
    """Return the bytes that the core keeps alive for each node that has joined and sent heartbeats."""
    crowd = Crowd(spec, directory)
    gc.collect()
    tracemalloc.start()
    try:
        crowd.run(until_s=15.0)
        members = len(crowd.core.run.membership.members)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        crowd.core = crowd.make_core()  # the old one is let go
        gc.collect()
        return (before - tracemalloc.get_traced_memory()[0]) / max(1, members)
    finally:
        tracemalloc.stop()


class Crowd:
    """One crowd with the coordinator's core; `run` lets virtual time pass."""

    def __init__(self, spec: CrowdSpec, directory: Path) -> None:
        self._spec = spec
        self._fleet = CrowdFleet(spec, spec.draw())
        self._costs: dict[str, array[float]] = {}
        (directory / CHECKPOINTS_NAME).mkdir(exist_ok=True)  # the planner looks whether there is room
        self._planner = Planner(RUN_ID, spec.run, directory, self._answered, lambda _: None)
        self._queue: deque[e.RunEvent] = deque()
        self._ended = False
        self._steps = 0
        self._stages = 0
        self._collecting_since = self._collected_s = 0.0
        self.lives = 0
        self.core = self.make_core()

    def make_core(self) -> RunCore:
        """Return the core of a coordinator that has just been started."""
        self.lives += 1
        beginning = Beginning(
            run_id=RUN_ID,
            spec=self._spec.run,
            identity="crowd",
            attempt=self.lives,
            generation=self.lives * 1000,
            checkpoint=None,
            data=None,
            inputs=INPUTS,
            train_samples=TRAIN_SAMPLES,
            validation_samples=0,
        )
        door = Door(run_id=RUN_ID, coordinator_key=OWNER_KEY, pulse_port=7701, bulk_port=7702)
        return RunCore(beginning, Membership(door, Admission(SECRET, OWNER_KEY), self._spec.run))

    def run(self, until_s: float | None = None) -> None:
        """Let things happen until this moment of virtual time."""
        until_s = self._spec.seconds if until_s is None else until_s
        self._feed(e.RunBegun())
        while True:
            deadline = self.core.next_deadline()
            at = self._fleet.next_at()
            if min(at, at if deadline is None else deadline) > until_s:
                return
            if deadline is not None and deadline <= at:
                self._fleet.now = max(self._fleet.now, deadline)
                self._feed(e.TimePassed())
            else:
                for event in self._fleet.step():
                    self._feed(event)
            if self._ended:
                self._ended = False
                self._fleet.restart()
                self.core = self.make_core()
                self._feed(e.RunBegun())

    def _feed(self, event: e.RunEvent) -> None:
        self._queue.append(event)
        while self._queue:
            event, now = self._queue.popleft(), self._fleet.now
            self._collected_s, began = 0.0, time.thread_time()
            commands = self.core.handle(event, now)
            self.core.next_deadline()  # as the loop that drives a core asks after every event
            self._note(_kind(event), time.thread_time() - began - self._collected_s)
            for command in commands:
                self._carry_out(command)

    def collecting(self, phase: str, _: dict[str, int]) -> None:
        """Take note of how long the interpreter collects garbage; see `gc.callbacks`."""
        if phase == "start":
            self._collecting_since = time.thread_time()
            return
        seconds = time.thread_time() - self._collecting_since
        self._collected_s += seconds
        self._note(COLLECTION, seconds)

    def _carry_out(self, command: e.RunCommand) -> None:
        match command:
            case e.Tell(connection=connection, message=message):
                self._queue.extend(self._fleet.told(connection, message))
            case e.HangUp(connection=connection):
                self._fleet.hung_up(connection)
            case e.StoreCommit(commit=commit):
                self._steps += 1
                self._queue.append(e.CommitStored(step=commit.step))
            case e.MakePlan():
                began = time.thread_time()
                self._planner.make(command)
                self._note(PLAN, time.thread_time() - began)
            case e.EndRun():
                self._ended = True
            case _:
                pass  # what the disk and the screen would do

    def _answered(self, event: e.RunEvent) -> None:
        if isinstance(event, e.PlanMade):
            self._stages = len(event.plan.stages)
        self._queue.append(event)

    def _note(self, kind: str, seconds: float) -> None:
        if (costs := self._costs.get(kind)) is None:
            costs = self._costs[kind] = array("d")
        costs.append(seconds)

    def result(self, bytes_per_node: float) -> CrowdResult:
        """Return what it cost so far."""
        plans = self._costs.get(PLAN, array("d"))
        costs_of = {kind: costs for kind, costs in self._costs.items() if kind not in (PLAN, COLLECTION)}
        decisions = [_describe(kind, costs) for kind, costs in costs_of.items()]
        events = sum(decision.count for decision in decisions)
        seconds = sum(sum(costs) for costs in costs_of.values())
        return CrowdResult(
            nodes=self._spec.nodes,
            nodes_seen=len(self._fleet.nodes),
            virtual_seconds=self._spec.seconds,
            lives=self.lives,
            steps=self._steps,
            events=events,
            core_seconds=seconds,
            events_per_s=events / seconds if seconds > 0 else 0.0,
            longest_ms=max((decision.longest_us for decision in decisions), default=0.0) / 1000,
            collection_longest_ms=max(self._costs.get(COLLECTION, array("d")), default=0.0) * 1000,
            plans=len(plans),
            plan_longest_s=max(plans, default=0.0),
            plan_stages=self._stages,
            bytes_per_node=bytes_per_node,
            decisions=tuple(sorted(decisions, key=lambda decision: -decision.count)),
        )


def _kind(event: e.RunEvent) -> str:
    return type(event.message).__name__ if isinstance(event, e.MessageArrived) else type(event).__name__


def _describe(kind: str, costs: "array[float]") -> Decision:
    micros = np.array(costs) * 1e6
    half, most = np.percentile(micros, (50, 99))
    return Decision(
        kind=kind,
        count=len(micros),
        mean_us=float(micros.mean()),
        p50_us=float(half),
        p99_us=float(most),
        longest_us=float(micros.max()),
    )
