"""Lets contenders train the same job by turns, as real processes, and watches their steps and their processor time.

All are alive at the same time, and all but one stand still (SIGSTOP): turns are short, so that whatever else the
machine does falls on everybody alike.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from msgspec import json

from brigade.coordinator.run_file import RunFile
from brigade.coordinator.store import STORE_NAME, Store
from brigade.lab.contest_jobs import boundary_bytes, variant, write_run_file
from brigade.lab.fleet import Fleet, OwnMember
from brigade.lab.links import Links
from brigade.lab.namespace_network import UP
from brigade.lab.rival_job import Job
from brigade.lab.scenario_spec import COORDINATOR
from brigade.lab.yardstick import Contender, Turn
from brigade.wire.errors import BrigadeError
from brigade.wire.plan import Plan

PROGRAM = "brigade.cli.app"
PLAIN, PIPELINING = "brigade.lab.rival_plain", "brigade.lab.rival_pipelining"
LOOPBACK = "127.0.0.1:0"
STEP_LIMIT_S = 600.0  # for a step, or for all to begin
TURN_S = 4.0  # a turn ends a step after this: sessions take who is still for half a minute for dead
LEAST_STEPS = 2
LONGEST_STILL_S = 20.0  # then whoever stands still shows for a moment that it lives, mostly while others begin
BREATH_S = 1.0


@dataclass(frozen=True, slots=True)
class Length:
    """How long contenders train."""

    max_steps: int
    eval_every: int = 0


@dataclass(slots=True)
class Entry:
    """A contender that is alive."""

    contender: Contender
    stages: int
    place: Path
    first_blocks: tuple[int, ...] = (0,)
    members: list[OwnMember] = field(default_factory=list)
    ends: "asyncio.Queue[float | None]" = field(default_factory=asyncio.Queue)  # of steps; None: there are no more
    losses: list[float] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    plan: Plan | None = None


class Contest:
    """Starts contenders, one after the other, and gives them turns."""

    def __init__(
        self,
        fleet: Fleet,
        run: RunFile,
        directory: Path,
        *,
        costs: Mapping[int, Path],
        hosts: Sequence[str],
        links: Links | None = None,
        trusted: Sequence[str] = (),
    ) -> None:
        """`costs` by the number of stages; `hosts` name the nodes; without `links` all are on loopback."""
        self._fleet = fleet
        self._run = run
        self._directory = directory
        self._costs = costs
        self._hosts = hosts
        self._links = links
        self._trusted = trusted
        self._tasks: set[asyncio.Task[None]] = set()
        self._still: dict[Path, tuple[Entry, float]] = {}  # who stands still, since when
        self._spawn(self._let_breathe())

    async def enter(self, contender: Contender, stages: int, plan: Plan | None, length: Length) -> Entry:
        """Start a contender; torch's is cut as `plan` says, and its stages are where the plan has them."""
        alone = contender.side == "plain"
        entry = Entry(contender, 1 if alone else stages, self._new_place(f"{contender.name}-{stages}"))
        spec = variant(self._run, contender, stages, steps=length.max_steps, eval_every=length.eval_every)
        write_run_file(entry.place / "run.toml", spec)
        if contender.side == "brigade":
            await self._lead(entry)
        elif alone:
            await self._start_rivals(entry, PLAIN, [""])
        elif plan is not None:
            entry.plan, entry.first_blocks = plan, tuple(stage.first_block for stage in plan.stages)
            await self._start_rivals(entry, PIPELINING, [stage.contact.name for stage in plan.stages])
        else:
            raise BrigadeError("nobody has made a plan: let one of ours take part")
        return entry

    async def warm_up(self, entry: Entry, steps: int) -> None:
        """Let a contender train its first steps, and stop it."""
        for _ in range(steps):
            await self._next_end(entry)
        self._suspend(entry)
        if entry.contender.side == "brigade":
            with Store(entry.place / "run" / STORE_NAME, readonly=True) as store:
                entry.plan = store.latest_plan()
            if entry.plan is not None:
                entry.first_blocks = tuple(stage.first_block for stage in entry.plan.stages)

    async def turn(self, entry: Entry, steps: int) -> Turn:
        """Let a contender train so many steps, or fewer when its time is over, and stop it again.

        The step that is under way when its turn begins is not counted.
        """
        self._wake(entry)
        while not entry.ends.empty():
            entry.ends.get_nowait()
        ends = [await self._next_end(entry)]
        before = cpu_seconds(entry.members)
        while len(ends) <= LEAST_STEPS or (len(ends) <= steps and ends[-1] < ends[0] + TURN_S):
            ends.append(await self._next_end(entry))
        after = cpu_seconds(entry.members)
        self._suspend(entry)
        timed = len(ends) - 1
        return Turn(
            contender=entry.contender.name,
            stages=entry.stages,
            first_blocks=entry.first_blocks,
            steps=timed,
            step_s=(ends[-1] - ends[0]) / timed,
            cpu_s={name: (after[name] - before[name]) / timed for name in after},
        )

    async def finish(self, entry: Entry) -> None:
        """Wait until a contender has trained all its steps; raises BrigadeError when it has failed."""
        async with asyncio.timeout(STEP_LIMIT_S):
            while await entry.ends.get() is not None:
                pass
            codes = [await member.ended() for member in entry.members]
        if any(codes):
            raise BrigadeError(
                f"{entry.contender.name} failed after {len(entry.losses)} steps; what it said lies in {entry.place}"
            )

    def sent_per_token(self, entry: Entry) -> tuple[float, float]:
        """Return the payload bytes a token that a contender sends forwards and backwards, over all its links."""
        if entry.contender.side == "plain" or entry.plan is None:
            return 0.0, 0.0
        if entry.contender.side == "torch":
            training = self._run.spec.training
            samples = training.batch_size // training.microbatches
            return boundary_bytes(entry.plan, samples * getattr(self._run.spec.data, "sequence_length", 1), samples)
        with Store(entry.place / "run" / STORE_NAME, readonly=True) as store:
            commits = list(store.commits())
        tokens = max(1, sum(commit.tokens for commit in commits))
        forward, backward = (
            sum(getattr(each, f"{way}_bytes") for commit in commits for each in commit.statistics) / tokens
            for way in ("forward", "backward")
        )
        return forward, backward

    # --- standing still ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Watch nobody any more."""
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _suspend(self, entry: Entry) -> None:
        for member in entry.members:
            member.suspend()
        self._still[entry.place] = (entry, time.monotonic())

    def _wake(self, entry: Entry) -> None:
        self._still.pop(entry.place, None)
        for member in entry.members:
            member.wake()

    async def _let_breathe(self) -> None:
        while True:
            await asyncio.sleep(BREATH_S)
            now = time.monotonic()
            for entry, since in list(self._still.values()):
                if now - since > LONGEST_STILL_S and entry.contender.side == "brigade":
                    self._wake(entry)
                    self._still[entry.place] = (entry, now)
                    await asyncio.sleep(BREATH_S)
                    if self._still.get(entry.place) == (entry, now):  # it has not been given a turn meanwhile
                        self._suspend(entry)

    # --- processes ------------------------------------------------------------------------------------------------

    def _new_place(self, name: str) -> Path:
        place = self._directory / name
        number = 1
        while place.exists():
            number += 1
            place = self._directory / f"{name}-{number}"
        place.mkdir(parents=True)
        return place

    async def _start(
        self, entry: Entry, name: str, host: str, *arguments: str | Path, speaks: bool = False
    ) -> OwnMember:
        said = entry.place / f"{name}.txt"
        behind = self._links.command(host, []) if self._links is not None and host else []
        member = await self._fleet.start(
            name, *arguments, output=None if speaks else said, errors=said if speaks else None, behind=behind
        )
        entry.members.append(member)
        if speaks:
            self._spawn(self._read(entry, member))
        return member

    async def _lead(self, entry: Entry) -> None:
        costs = self._costs.get(entry.stages)
        await self._start(
            entry,
            "coordinator",
            COORDINATOR,
            *(PROGRAM, "up", entry.place / "run.toml", "--json", "--end-with-stdin"),
            *("--listen", self._listen(COORDINATOR), "--output-dir", entry.place / "run"),
            *(("--costs", costs) if costs is not None else ()),
            speaks=True,
        )

    async def _join(self, entry: Entry) -> None:
        trusted = [word for package in self._trusted for word in ("--trust", package)]
        for name in self._hosts[: entry.stages]:
            await self._start(
                entry,
                name,
                name,
                *(PROGRAM, "join", entry.place / "run" / "invite.txt", "--end-with-stdin"),
                *("--name", name, "--state", entry.place / name, "--listen", self._listen(name)),
                *("--device", "cpu", "--threads", "1", *trusted),
            )

    def _listen(self, host: str) -> str:
        return LOOPBACK if self._links is None else self._links.places[host].inner_host + ":0"

    async def _start_rivals(self, entry: Entry, program: str, hosts: Sequence[str]) -> None:
        for stage, host in enumerate(hosts):
            job = Job(
                run_file=str((entry.place / "run.toml").absolute()),
                first_blocks=entry.first_blocks,
                stage=stage,
                schedule="gpipe" if entry.contender.schedule == "gpipe" else "1f1b",
                rendezvous=str((entry.place / "rendezvous").absolute()),
                interface="lo" if self._links is None else UP,
            )
            path = entry.place / f"stage-{stage}.json"
            path.write_bytes(json.encode(job))
            await self._start(entry, f"stage-{stage}", host, program, path, speaks=stage == len(hosts) - 1)

    # --- what they say --------------------------------------------------------------------------------------------

    async def _read(self, entry: Entry, teller: OwnMember) -> None:
        stdout = teller.process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            if not line.startswith(b"{"):
                continue
            facts = json.decode(line)
            match facts["event"]:
                case "listening":
                    await self._join(entry)
                case "step":
                    entry.ends.put_nowait(time.monotonic())
                    entry.losses.append(facts["loss"])
                case "evaluation":
                    entry.held_out.append((facts["step"], facts["loss"]))
                case _:
                    pass
        entry.ends.put_nowait(None)

    async def _next_end(self, entry: Entry) -> float:
        end = None
        with suppress(TimeoutError):
            async with asyncio.timeout(STEP_LIMIT_S):
                end = await entry.ends.get()
        if end is None:
            raise BrigadeError(
                f"{entry.contender.name} stopped after {len(entry.losses)} steps; what it said lies in {entry.place}"
            )
        return end


def cpu_seconds(members: Sequence[OwnMember]) -> dict[str, float]:
    """Return the processor seconds, user and system, that each process has used."""
    used = {}
    for member in members:
        times = psutil.Process(member.process.pid).cpu_times()
        used[member.name] = times.user + times.system
    return used
