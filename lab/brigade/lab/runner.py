"""Carries out an experiment: links, coordinator and nodes as processes, and what the scenario does to them."""

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, assert_never

from brigade.coordinator.checkpoints import list_sealed
from brigade.coordinator.costs import COSTS_NAME
from brigade.coordinator.export import CHECKPOINTS_NAME
from brigade.lab import events as ev
from brigade.lab.assumed import Assumption
from brigade.lab.fleet import Fleet, Member, OwnMember
from brigade.lab.happenings import Ended, Happening, Interrupted, Line, Settled, Watcher
from brigade.lab.link_choice import open_links
from brigade.lab.links import Links
from brigade.lab.node_command import node_arguments
from brigade.lab.nursery_handle import NurseryHandle, open_nursery
from brigade.lab.observed import Observed, SeenEvent, SeenStep
from brigade.lab.recovery_story import tell_taken_up, without_advice
from brigade.lab.relay_orders import ChangeRate, Cut, Heal
from brigade.lab.scenario import Scenario, speed_of
from brigade.lab.scenario_spec import COORDINATOR, HostSpec, Slow
from brigade.node.emulated_speed import EmulatedSpeed
from brigade.wire.errors import BrigadeError

RUN_DIR = "run"  # below the directory of the experiment: the coordinator's
PROGRAM = "brigade.cli.app"
NODES_DIR = "nodes"  # what nodes keep and say
SETTLE_S = 20.0  # for processes to end by themselves
STOP_LIMIT_S = 30.0  # for a run that was asked to stop
MOST_RECOVERIES = 20
OWN_SPEED = EmulatedSpeed(factor=1.0)


class Experiment:
    """One run of a scenario in a directory of its own."""

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        watcher: Watcher,
        seed: int | None = None,
        assumption: Assumption | None = None,
    ) -> None:
        self._scenario = scenario
        self._directory = directory
        self._watcher = watcher
        self._timeline = ev.Timeline(scenario.events)
        self._hosts = {host.name: host for host in scenario.hosts}
        self._assumption = assumption  # None: nodes measure
        self._slowed: dict[str, float] = {}  # what has become of hosts
        self._rates: dict[str, tuple[str | None, str | None]] = {}
        self._present = set(scenario.starting())  # who should be running
        self._nodes: dict[str, Member] = {}
        self._meant_to_end: set[Member] = set()  # by the scenario, or because their run has ended
        self._coordinator: OwnMember | None = None
        self._listening = False
        self._gathered = False  # enough nodes have joined: whoever comes now is a spare
        self._returning = False  # the coordinator was killed and will come back
        self._stopping_since: float | None = None
        self._failed_before: tuple[str, int] | None = None
        self._finished = False
        self._at_once = False  # whatever still runs is ended, not awaited
        self._tasks: set[asyncio.Task[None]] = set()
        self._happenings: asyncio.Queue[Happening] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop
        self._fleet: Fleet
        self._links: Links
        self._nursery: NurseryHandle
        self.observed = Observed(scenario.spec.seed if seed is None else seed)

    @property
    def run_dir(self) -> Path:
        """Where the coordinator keeps the run."""
        return self._directory / RUN_DIR

    async def carry_out(self) -> Observed:
        """Run from the first process to the last; every process has ended when this returns or raises."""
        self._loop = asyncio.get_running_loop()
        self.observed.started_at = self._loop.time()
        (self._directory / NODES_DIR).mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._happenings.put_nowait, Interrupted())
        try:
            async with Fleet() as self._fleet:
                self._links = await open_links(self._fleet, self._scenario, self.observed.seed, self._directory)
                self._nursery = await open_nursery(self._fleet, self._directory / "nursery.txt")
                await self._lead(resume=False)
                await self._follow()
                if not self._at_once:
                    await self._settle()
                self.observed.traffic = await self._links.count()
        finally:
            for task in self._tasks:
                task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.remove_signal_handler(number)
        return self.observed

    # --- processes ------------------------------------------------------------------------------------------------

    async def _lead(self, *, resume: bool) -> None:
        """Start the coordinator."""
        place = self._links.places[COORDINATOR]
        self._listening = self._gathered = self._returning = False
        self._coordinator = await self._fleet.start(
            "the coordinator",
            *(PROGRAM, "up", self._scenario.run.path, "--json", "--end-with-stdin"),
            *("--listen", place.listen, "--advertise", place.outer_host, "--output-dir", self.run_dir),
            *(["--resume"] if resume else []),
            *self._costs(),
            output=None,
            errors=self._directory / "coordinator.txt",
            behind=self._links.command(COORDINATOR, []),
        )
        self._spawn(self._read(self._coordinator))

    def _costs(self) -> list[str | Path]:
        """Return the option that tells the coordinator what hosts and links cost as they are now."""
        if self._assumption is None:
            return []
        path = (self._directory / COSTS_NAME).absolute()
        path.write_bytes(self._assumption.costs(self._slowed, self._rates).to_json())
        return ["--costs", path]

    async def _start_node(self, host: HostSpec) -> None:
        """Start the node of a host once its last life has ended."""
        before = self._nodes.get(host.name)
        if before is not None and await before.wait(SETTLE_S) is None:
            return
        place, nodes_dir = self._links.places[host.name], self._directory / NODES_DIR
        arguments = [*node_arguments(host, place, self.run_dir, nodes_dir), *self._emulation(host)]
        namespace = self._links.namespace_of(host.name)
        node = self._nursery.bear(host.name, PROGRAM, arguments, nodes_dir / f"{host.name}.txt", namespace)
        self._nodes[host.name] = node
        self._spawn(self._watch(node))

    def _emulation(self, host: HostSpec) -> list[str]:
        """Return the options of a node that pretends; its speed stands in a file, so that it can change."""
        slows = any(isinstance(event, Slow) and event.host == host.name for event in self._scenario.events)
        speed = speed_of(host) or (OWN_SPEED if slows else None)
        if speed is None:
            return []
        path = self._speed_path(host.name)
        if not path.exists():
            path.write_text(speed.text(), encoding="utf-8")
        return ["--emulate", f"@{path}"]

    def _speed_path(self, host: str) -> Path:
        return (self._directory / NODES_DIR / f"{host}.speed").absolute()

    async def _start_missing(self) -> None:
        """Start who should run, at first only as many as the run waits for: who takes part must not be a race."""
        for name, host in self._hosts.items():
            node = self._nodes.get(name)
            if self._listening and name in self._present and (node is None or not node.runs):
                running = sum(each.runs and not each.suspended for each in self._nodes.values())
                if self._gathered or running < self._scenario.run.spec.pipeline.nodes:
                    await self._start_node(host)

    async def _read(self, coordinator: OwnMember) -> None:
        stdout = coordinator.process.stdout
        assert stdout is not None
        with (self._directory / "coordinator.jsonl").open("ab") as log:
            while line := await stdout.readline():
                log.write(line)
                if line.startswith(b"{"):
                    self._happenings.put_nowait(Line(json.loads(line)))
        await self._watch(coordinator)

    async def _watch(self, member: Member) -> None:
        await member.ended()
        self._happenings.put_nowait(Ended(member))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- following --------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while not self._finished:
            try:
                async with asyncio.timeout_at(self._next_deadline()):
                    happening: Happening | None = await self._happenings.get()
            except TimeoutError:
                happening = None
            match happening:
                case Line(facts):
                    await self._heard(facts)
                case Ended(member):
                    await self._ended(member)
                case Settled():
                    await self._lead(resume=True)
                case Interrupted():
                    self._stop("interrupted")
                case None:
                    await self._time_passed()
                case _:
                    assert_never(happening)

    def _next_deadline(self) -> float:
        limits = [self.observed.end_by(self._scenario.spec)[0]]
        if self._stopping_since is not None:
            limits = [self._stopping_since + STOP_LIMIT_S]
        elif (due := self._timeline.next_deadline()) is not None:
            limits.append(due)
        return min(limits)

    async def _time_passed(self) -> None:
        now = self._loop.time()
        limit, reason = self.observed.end_by(self._scenario.spec)
        if self._stopping_since is not None:
            self._finished = now >= self._stopping_since + STOP_LIMIT_S
        elif now >= limit:
            self._stop(reason)
        else:
            await self._tell_timeline(ev.TimePassed())

    async def _heard(self, facts: dict[str, Any]) -> None:
        match facts["event"]:
            case "listening":
                self._listening = True
                await self._start_missing()
            case "step":
                self._stepped(facts)
                await self._tell_timeline(ev.StepsCommitted(facts["step"]))
            case "note" if facts["kind"] == "profiling":
                self._gathered = True
                await self._start_missing()
            case "note" if facts["kind"] == "training":
                if self.observed.began_at is None:
                    self.observed.began_at = self._loop.time()
                self._note(facts["text"])
                await self._tell_timeline(ev.TrainingBegan())
            case "note" if facts["kind"] in ("finished", "stopped"):
                self._meant_to_end.update(self._nodes.values())
            case "note" if facts["kind"] == "planned" or facts["level"] != "info":
                text = without_advice(facts["text"])
                self._note(text)
                if facts["kind"] == "failed":
                    self.observed.reason = text
                    if not facts["node"]:  # that is the run, not a node of it
                        self._meant_to_end.update(self._nodes.values())
            case _:
                pass

    def _stepped(self, facts: dict[str, Any]) -> None:
        at_s = self.observed.since_began(self._loop.time())
        self.observed.steps.append(SeenStep(facts["step"], at_s, facts["loss"], facts["tokens"]))
        self._watcher.stepped(facts["step"], facts["max_steps"], facts["loss"], facts["tokens_per_s"])

    async def _ended(self, member: Member) -> None:
        code = member.exit_code
        if member is not self._coordinator:
            known = member.name in self._present and member is self._nodes.get(member.name)
            if known and member not in self._meant_to_end and not self._finished:
                self._note(f"the node of {member.name} has ended with exit code {code}")
            return
        self.observed.exit_code = code
        self._meant_to_end.update(self._nodes.values())
        if self._returning:
            return
        if code == 1 and self._may_resume():
            self._take_note_of_recovery()
            self._failed_before = self._failure
            self._spawn(self._settle_and_tell())
            return
        if code == 0:
            self.observed.reason = ""  # it was taken up again, and went on to its end
        self._finished = True

    def _take_note_of_recovery(self) -> None:
        self.observed.recoveries += 1
        still = {name for name, node in self._nodes.items() if node.runs and node.suspended}
        names = [name for name in self._hosts if name in self._present - still]
        step = max(list_sealed(self.run_dir / CHECKPOINTS_NAME), default=0)
        self._note(tell_taken_up(step, names, self._scenario.run.spec.pipeline.nodes))

    @property
    def _failure(self) -> tuple[str, int]:
        """Why the run has failed, and after how many steps that were seen."""
        return self.observed.reason, len(self.observed.steps)

    def _may_resume(self) -> bool:
        if self._failure == self._failed_before:
            return False  # it would only fail again
        enough = len(self._present) + self._timeline.joins_to_come() >= self._scenario.run.spec.pipeline.nodes
        may = self._scenario.spec.resume and self._stopping_since is None
        return may and enough and self._listening and self.observed.recoveries < MOST_RECOVERIES

    async def _settle_and_tell(self) -> None:
        """Settle beside everything else: signals, the limit and the scenario are heard meanwhile."""
        await self._settle()
        self._happenings.put_nowait(Settled())

    async def _settle(self) -> None:
        """Wait until all nodes that do not stand still have ended by themselves; end those that do not."""
        await asyncio.gather(*(self._settle_node(node) for node in self._nodes.values() if not node.suspended))

    async def _settle_node(self, node: Member) -> None:
        if await node.wait(SETTLE_S) is None:
            self._note(f"the node of {node.name} does not end by itself")
            node.send(signal.SIGKILL)
            await node.wait(SETTLE_S)

    def _stop(self, reason: str) -> None:
        """Ask the run to stop; the second time at once."""
        self.observed.reason = reason
        self._note(reason)
        if self._stopping_since is not None or self._coordinator is None or not self._coordinator.runs:
            self._finished = self._at_once = True
            return
        self._stopping_since = self._loop.time()
        self._coordinator.send(signal.SIGTERM)

    def _note(self, text: str) -> None:
        at_s = self.observed.since_began(self._loop.time())
        self.observed.events.append(SeenEvent(round(at_s, 3), text))
        self._watcher.said(at_s, text)

    # --- what the scenario does -------------------------------------------------------------------------------------

    async def _tell_timeline(self, told: ev.Told) -> None:
        for action in self._timeline.handle(told, self._loop.time()):
            self._note(ev.describe(action))
            await self._act(action)

    async def _act(self, action: ev.Action) -> None:
        match action:
            case ev.StartNode(host):
                self._present.add(host)
                await self._start_missing()
            case ev.AskToLeave(host):
                self._with_node(host, lambda node: node.send(signal.SIGTERM), stays=False)
            case ev.KillNode(host):
                self._with_node(host, lambda node: node.send(signal.SIGKILL), stays=False)
            case ev.SuspendNode(host):
                self._with_node(host, Member.suspend)
            case ev.WakeNode(host):
                self._with_node(host, Member.wake)
            case ev.SlowNode(host, factor):
                self._slowed[host] = factor
                self._speed_path(host).write_text(self._speed(host).slowed(factor).text(), encoding="utf-8")
            case ev.CutLink(host, other, both, reset):
                await self._links.order(Cut(host, other, both=both, state="reset" if reset else "silent"))
            case ev.HealLink(host, other):
                await self._links.order(Heal(host, other))
            case ev.SetRates(host, up, down):
                before = self._rates.get(host, (None, None))
                self._rates[host] = (up or before[0], down or before[1])
                await self._links.order(ChangeRate(host, up, down))
            case ev.KillCoordinator():
                if self._coordinator is not None and self._coordinator.runs:
                    self._returning = True
                    self._coordinator.send(signal.SIGKILL)
            case ev.StartCoordinator():
                if self._returning and self._coordinator is not None:
                    await self._coordinator.ended()
                    self._take_note_of_recovery()
                    await self._lead(resume=True)
            case _:
                assert_never(action)

    def _speed(self, host: str) -> EmulatedSpeed:
        return speed_of(self._hosts[host]) or OWN_SPEED

    def _with_node(self, host: str, do: Callable[[Member], None], *, stays: bool = True) -> None:
        if not stays:
            self._present.discard(host)
            self._meant_to_end.update(node for name, node in self._nodes.items() if name == host)
        if host in self._nodes:
            do(self._nodes[host])


def run_experiment(scenario: Scenario, directory: Path, watcher: Watcher, seed: int | None = None) -> Observed:
    """Carry out a scenario and return what was seen.

    Raises BrigadeError when it could not begin.
    """
    assumption = Assumption(scenario) if scenario.spec.costs == "assumed" else None
    experiment = Experiment(scenario, directory, watcher, seed, assumption)
    observed = asyncio.run(experiment.carry_out())
    if observed.exit_code == 2:
        said = (directory / "coordinator.txt").read_text(encoding="utf-8", errors="replace").strip()
        raise BrigadeError(said.rpartition("\n")[2] or "the coordinator could not start")
    return observed
