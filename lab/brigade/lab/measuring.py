"""Measures with the yardstick: rounds in which every contender has a turn, then how fast each one learns."""

import asyncio
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from msgspec.structs import replace

from brigade.coordinator.run_file import RunFile
from brigade.lab.assumed import Assumption
from brigade.lab.contest import Contest, Entry, Length
from brigade.lab.contest_jobs import at_own_speed, check, even_scenario
from brigade.lab.fleet import Fleet
from brigade.lab.link_choice import open_links
from brigade.lab.links import Links
from brigade.lab.scenario import Scenario
from brigade.lab.yardstick import (
    RESULT_VERSION,
    Contender,
    Turn,
    Yardstick,
    contender,
    most_difference,
    rows_of,
    steps_to_target,
)
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Plan

POINTS = 12  # of a curve
TARGET_SHARE = 0.75  # of the learning steps: where the plain loop is then, the others shall get
SPARE_STEPS = 4  # of each round: until a contender stands still
BREATH_STEPS = 30  # in all: while it shows that it lives
END_GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured; with a scenario on the hosts and links of its namespaces, else on loopback."""

    run: RunFile
    scenario: Scenario | None
    stages: tuple[int, ...]
    contenders: tuple[str, ...]
    rounds: int
    steps: int  # timed in each turn
    warm_up: int
    learning_steps: int = 0
    trusted: tuple[str, ...] = ()

    @property
    def turn_steps(self) -> int:
        """Return the most steps that a contender trains in all its turns."""
        return self.warm_up + self.rounds * (self.steps + 1 + SPARE_STEPS) + BREATH_STEPS


def measure(wanted: Wanted, directory: Path, say: Callable[[str], None]) -> Yardstick:
    """Carry it all out; raises ConfigError for a job that cannot be compared, BrigadeError when a turn fails."""
    check(wanted.run, wanted.stages, max(wanted.turn_steps, wanted.learning_steps))
    if wanted.scenario is not None and len(wanted.scenario.hosts) < max(wanted.stages):
        raise ConfigError(f"{wanted.scenario.path}: {len(wanted.scenario.hosts)} hosts for {max(wanted.stages)} stages")
    return asyncio.run(Measuring(wanted, directory.absolute(), say).carry_out())


class Measuring:
    """One call of the yardstick."""

    def __init__(self, wanted: Wanted, directory: Path, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._directory = directory
        self._say = say
        self._contenders = [each for name in wanted.contenders if (each := contender(name)) is not None]
        self._costs: dict[int, Path] = {}
        self._hosts: list[str] = []

    async def carry_out(self) -> Yardstick:
        """Measure everything."""
        wanted = self._wanted
        self._reckon()
        turns: list[Turn] = []
        sent: dict[tuple[int, str], tuple[float, float]] = {}
        differences: dict[str, float] = {}
        for stages in wanted.stages:
            entries, contest = await self._rounds(stages, turns)
            sent |= {(each.stages, each.contender.name): contest.sent_per_token(each) for each in entries}
            if (difference := _loss_difference(entries)) is not None:
                differences[str(stages)] = difference
        target, reached = await self._learn()
        return Yardstick(
            version=RESULT_VERSION,
            run=wanted.run.spec.name,
            links="loopback" if wanted.scenario is None else f"links of {wanted.scenario.spec.name}",
            machine=machine(),
            rounds=wanted.rounds,
            steps=wanted.steps,
            warm_up=wanted.warm_up,
            target_loss=target,
            most_loss_difference=differences,
            rows=rows_of(turns, sent, reached),
            turns=tuple(turns),
        )

    def _reckon(self) -> None:
        """Write down what everything costs on paper, so that equal runs get equal plans."""
        given = self._wanted.scenario
        for stages in self._wanted.stages:
            scenario = even_scenario(self._wanted.run, stages) if given is None else at_own_speed(given)
            path = self._directory / f"costs-{stages}.json"
            path.write_bytes(Assumption(scenario).costs().to_json())
            self._costs[stages] = path
            self._hosts = [host.name for host in scenario.hosts]

    async def _rounds(self, stages: int, turns: list[Turn]) -> tuple[list[Entry], Contest]:
        """Let everybody begin, then give turns."""
        wanted = self._wanted
        async with Fleet() as fleet:
            contest = self._contest(fleet, stages, await self._open_links(fleet, stages))
            entries = await self._begin(contest, stages, skip_plain=any(turn.stages == 1 for turn in turns))
            for number in range(wanted.rounds):
                # to and fro, so that none always comes after the same other
                order = entries if number % 2 == 0 else list(reversed(entries))
                done = {id(entry): await contest.turn(entry, wanted.steps) for entry in order}
                turns += [done[id(entry)] for entry in entries]
                self._say(
                    f"{stages} stages, round {number + 1} of {wanted.rounds}: "
                    + ", ".join(f"{t.contender} {1e3 * t.step_s:,.0f} ms" for t in turns[-len(entries) :])
                )
            contest.close()
            await fleet.end(END_GRACE_S)
            return entries, contest

    async def _begin(self, contest: Contest, stages: int, *, skip_plain: bool) -> list[Entry]:
        entries: list[Entry] = []
        plans: dict[str, Plan] = {}
        # ours first: torch is cut as our plan for the same schedule says
        for each in sorted(self._contenders, key=lambda c: c.side != "brigade"):
            if each.side == "plain" and skip_plain:
                continue
            plan = plans.get(each.schedule) or next(iter(plans.values()), None)
            entry = await contest.enter(each, stages, plan, Length(max_steps=self._wanted.turn_steps))
            await contest.warm_up(entry, self._wanted.warm_up)
            if entry.plan is not None:
                plans.setdefault(entry.plan.schedule, entry.plan)
            entries.append(entry)
            self._say(f"{each.name} trains; its stages begin at blocks {', '.join(map(str, entry.first_blocks))}")
        return entries

    async def _learn(self) -> tuple[float | None, dict[str, int | None]]:
        """Return a held-out loss, and after how many steps each contender gets there."""
        steps = self._wanted.learning_steps
        plain = contender("plain")
        if steps == 0 or plain is None:
            return None, {}
        exact = await self._curve(plain)
        target = next((loss for step, loss in exact if step >= TARGET_SHARE * steps), None)
        if target is None:
            return None, {}
        reached: dict[str, int | None] = {}
        for each in self._contenders:
            # whoever is exact learns as the plain loop does
            own = await self._curve(each) if each.side == "brigade" and each.codecs is None else exact
            reached[each.name] = steps_to_target(own, target)
        return target, reached

    async def _curve(self, each: Contender) -> list[tuple[int, float]]:
        """Return the held-out losses of one contender, by the number of steps trained."""
        steps, stages = self._wanted.learning_steps, self._wanted.stages[0]
        self._say(f"{each.name} learns {steps} steps")
        async with Fleet() as fleet:
            contest = self._contest(fleet, stages, None)
            entry = await contest.enter(each, stages, None, Length(steps, max(1, steps // POINTS)))
            await contest.finish(entry)
            contest.close()
            return entry.held_out

    def _contest(self, fleet: Fleet, stages: int, links: Links | None) -> Contest:
        return Contest(
            fleet,
            self._wanted.run,
            self._directory,
            costs=self._costs,
            hosts=self._hosts if self._wanted.scenario is not None else [f"node-{n + 1}" for n in range(stages)],
            links=links,
            trusted=self._wanted.trusted,
        )

    async def _open_links(self, fleet: Fleet, stages: int) -> Links | None:
        given = self._wanted.scenario
        if given is None:
            return None
        scenario = Scenario(
            path=given.path,
            spec=replace(given.spec, links="namespaces"),
            hosts=given.hosts,
            events=(),
            run=given.run,
        )
        place = self._directory / f"links-{stages}"
        place.mkdir(exist_ok=True)
        return await open_links(fleet, scenario, given.spec.seed, place)


def machine() -> str:
    """Say in a line what this was measured on."""
    cores = psutil.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"


def _loss_difference(entries: list[Entry]) -> float | None:
    """Return how far the losses of an exact run are from those of torch with the same schedule, relative."""
    by_name = {entry.contender.name: entry for entry in entries}
    found = [
        most_difference(entry.losses, by_name[entry.contender.rival].losses)
        for entry in entries
        if entry.contender.side == "brigade" and entry.contender.codecs is not None and entry.contender.rival in by_name
    ]
    return max(found, default=None)
