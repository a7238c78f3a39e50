"""Lets contenders train the same job by turns, as real processes, and watches their steps and their processor time."""

import asyncio
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil
import tomli_w
import torch
from msgspec import json
from msgspec.structs import replace

from brigade.compression.buffers import dtype_of
from brigade.coordinator.run_file import RunFile
from brigade.coordinator.store import STORE_NAME, Store
from brigade.lab.fleet import Fleet, OwnMember
from brigade.lab.rival_job import Job
from brigade.lab.yardstick import Contender, Turn
from brigade.wire.errors import BrigadeError, ConfigError
from brigade.wire.plan import Plan
from brigade.wire.run_spec import FactoryData, RunSpec

PROGRAM = "brigade.cli.app"
PLAIN, PIPELINING = "brigade.lab.rival_plain", "brigade.lab.rival_pipelining"
TURN_LIMIT_S = 1800.0
END_LIMIT_S = 60.0  # to save, and to say goodbye


class Audience(Protocol):
    """Whoever wants to see how it goes."""

    def said(self, text: str) -> None:
        """Something begins or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How much is measured."""

    run: RunFile
    steps: int  # timed
    warm_up: int
    trusted: tuple[str, ...] = ()
    directory: Path


@dataclass(slots=True)
class Seen:
    """What the processes of one turn have said, and when."""

    at_s: list[float]
    losses: list[float]
    held_out: list[tuple[int, float]]
    cpu_s: list[dict[str, float]]  # at the end of the warm-up, and of the last timed step


def check(run: RunFile, stages: Sequence[int], steps: int) -> None:
    """Raise ConfigError for a job that the contenders cannot all do, or not alike."""
    spec, training = run.spec, run.spec.training
    if training.batch_size % training.microbatches:
        raise ConfigError(
            f"{run.path}: training.microbatches: a batch of {training.batch_size} in {training.microbatches} parts; "
            "the yardstick needs equal ones"
        )
    if training.microbatches < max(stages):
        raise ConfigError(f"{run.path}: training.microbatches: {max(stages)} stages need at least as many for 1F1B")
    if training.bf16:
        raise ConfigError(f"{run.path}: training.bf16: the yardstick compares fp32 only")
    if run.data is not None and steps > (whole := run.data.train_count // training.batch_size):
        raise ConfigError(f"{run.path}: the data has {whole} whole batches, but {steps} steps are to be measured")
    if getattr(spec.model, "tie_word_embeddings", False):
        raise ConfigError(f"{run.path}: model.tie_word_embeddings: torch.distributed.pipelining ties no parameters")


def variant(run: RunFile, contender: Contender, stages: int, *, steps: int, eval_every: int = 0) -> RunSpec:
    """Return the run of one contender: nothing but the schedule, the codecs and the length differ from the file."""
    spec = run.spec
    training = replace(spec.training, max_steps=steps, eval_steps=eval_every, save_steps=0)
    if not eval_every:
        training = replace(training, eval_batches=1)
    pipeline = replace(spec.pipeline, nodes=stages, stages=stages)
    if contender.schedule:
        pipeline = replace(pipeline, schedule=contender.schedule)
    compression = spec.compression
    if contender.codecs is not None:
        compression = replace(compression, forward=contender.codecs[0], backward=contender.codecs[1])
    data = spec.data
    if not isinstance(data, FactoryData) and run.data_path is not None:
        data = replace(data, path=str(run.data_path.absolute()))
    return replace(spec, training=training, pipeline=pipeline, compression=compression, data=data, output_dir=None)


def write_run_file(path: Path, spec: RunSpec) -> None:
    """Write a run file; what has no value is left out."""
    path.write_bytes(tomli_w.dumps(_without_none(msgspec.to_builtins(spec))).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


def boundary_bytes(plan: Plan, tokens: int, samples: int) -> tuple[float, float]:
    """Return the bytes a token, forwards and backwards, that cross all boundaries of a plan as they are.

    `tokens` are those of a microbatch with `samples` samples.
    """
    forward = backward = 0
    for boundary in plan.boundaries:
        for leaf in boundary.leaves:
            dtype = dtype_of(leaf.dtype)
            size = dtype.itemsize * math.prod(leaf.shape(samples))
            forward += size
            backward += size if dtype.is_floating_point else 0
    return forward / tokens, backward / tokens


class Ring:
    """Where the turns take place: one directory, one after the other."""

    def __init__(self, contest: Contest, audience: Audience) -> None:
        self._contest = contest
        self._audience = audience
        self._turns = 0

    async def brigade(
        self, contender: Contender, stages: int, *, steps: int, warm_up: int, eval_every: int = 0
    ) -> tuple[Turn, Seen, Plan]:
        """Train with a coordinator and nodes; return what happened and the plan."""
        place = self._place(contender)
        spec = variant(self._contest.run, contender, stages, steps=steps, eval_every=eval_every)
        write_run_file(place / "run.toml", spec)
        async with Fleet() as fleet:
            coordinator = await fleet.start(
                "coordinator",
                *(PROGRAM, "up", place / "run.toml", "--json", "--end-with-stdin"),
                *("--listen", "127.0.0.1:0", "--output-dir", place / "run"),
                output=None,
                errors=place / "coordinator.txt",
            )
            seen = await self._watch(fleet, coordinator, warm_up, steps, lambda: self._join(fleet, place, stages))
            for member in tuple(fleet.members):
                await member.wait(END_LIMIT_S)
        with Store(place / "run" / STORE_NAME, readonly=True) as store:
            plan, commits = store.latest_plan(), list(store.commits())
        if plan is None:
            raise BrigadeError(f"{contender.name} made no plan; what it said lies in {place}")
        tokens = sum(commit.tokens for commit in commits)
        sent = [
            sum(getattr(each, f"{way}_bytes") for commit in commits for each in commit.statistics) / max(1, tokens)
            for way in ("forward", "backward")
        ]
        first_blocks = tuple(stage.first_block for stage in plan.stages)
        return self._turn(contender, stages, first_blocks, seen, warm_up, (sent[0], sent[1])), seen, plan

    async def rival(
        self,
        contender: Contender,
        stages: int,
        plan: Plan | None,
        *,
        steps: int,
        warm_up: int,
        eval_every: int = 0,
    ) -> tuple[Turn, Seen]:
        """Train with a plain loop or torch's pipelining, cut as `plan` says."""
        place = self._place(contender)
        spec = variant(self._contest.run, contender, stages, steps=steps, eval_every=eval_every)
        write_run_file(place / "run.toml", spec)
        alone = contender.side == "plain"
        first_blocks = (0,) if plan is None or alone else tuple(stage.first_block for stage in plan.stages)
        async with Fleet() as fleet:
            for stage in range(len(first_blocks)):
                job = Job(
                    run_file=str((place / "run.toml").absolute()),
                    first_blocks=first_blocks,
                    stage=stage,
                    schedule="gpipe" if contender.schedule == "gpipe" else "1f1b",
                    rendezvous=str((place / "rendezvous").absolute()),
                    interface="" if alone else "lo",
                )
                (place / f"job-{stage}.json").write_bytes(json.encode(job))
                last = stage == len(first_blocks) - 1
                said = place / f"stage-{stage}.txt"
                program = PLAIN if alone else PIPELINING
                await fleet.start(
                    f"stage-{stage}", program, place / f"job-{stage}.json",
                    output=None if last else said, errors=said if last else None,
                )  # fmt: skip
            seen = await self._watch(fleet, fleet.members[-1], warm_up, steps, None)
            for member in tuple(fleet.members):
                await member.wait(END_LIMIT_S)
        samples = spec.training.batch_size // spec.training.microbatches
        tokens = samples * getattr(spec.data, "sequence_length", 1)
        sent = (0.0, 0.0) if plan is None or alone else boundary_bytes(plan, tokens, samples)
        return self._turn(contender, stages if not alone else 1, first_blocks, seen, warm_up, sent), seen

    # --- inside ---------------------------------------------------------------------------------------------------

    def _place(self, contender: Contender) -> Path:
        self._turns += 1
        place = self._contest.directory / f"{self._turns:03d}-{contender.name}"
        place.mkdir(parents=True)
        return place

    async def _join(self, fleet: Fleet, place: Path, stages: int) -> None:
        trusted = [word for package in self._contest.trusted for word in ("--trust", package)]
        for number in range(stages):
            name = f"node-{number}"
            await fleet.start(
                name,
                *(PROGRAM, "join", place / "run" / "invite.txt", "--end-with-stdin"),
                *("--name", name, "--state", place / name, "--listen", "127.0.0.1:0"),
                *("--device", "cpu", "--threads", "1", *trusted),
                output=place / f"{name}.txt",
            )

    async def _watch(self, fleet: Fleet, teller: OwnMember, warm_up: int, steps: int, listening: Any) -> Seen:
        """Follow what `teller` says until its last step is done; both ends of what is timed are steps' ends."""
        seen = Seen([], [], [], [])
        stdout = teller.process.stdout
        assert stdout is not None
        async with asyncio.timeout(TURN_LIMIT_S):
            while line := await stdout.readline():
                if not line.startswith(b"{"):
                    continue
                facts = json.decode(line)
                match facts["event"]:
                    case "listening":
                        await listening()
                    case "step":
                        seen.at_s.append(time.monotonic())
                        seen.losses.append(facts["loss"])
                        if len(seen.at_s) in (warm_up, steps - 1):
                            seen.cpu_s.append(cpu_seconds(fleet.members))
                    case "evaluation":
                        seen.held_out.append((facts["step"], facts["loss"]))
        if len(seen.at_s) < steps:
            raise BrigadeError(
                f"{teller.name} ended after {len(seen.at_s)} of {steps} steps; see {self._contest.directory}"
            )
        return seen

    def _turn(
        self,
        contender: Contender,
        stages: int,
        first_blocks: tuple[int, ...],
        seen: Seen,
        warm_up: int,
        sent: tuple[float, float],
    ) -> Turn:
        ends = seen.at_s[warm_up - 1 : -1]  # after the last step a run evaluates and saves, and a loop does not
        before, after = seen.cpu_s
        timed = len(ends) - 1
        turn = Turn(
            contender=contender.name,
            stages=stages,
            first_blocks=first_blocks,
            step_s=tuple(b - a for a, b in pairwise(ends)),
            cpu_s={name: (seconds - before.get(name, 0.0)) / timed for name, seconds in after.items()},
            losses=tuple(seen.losses),
            forward_bytes_per_token=sent[0],
            backward_bytes_per_token=sent[1],
        )
        self._audience.said(
            f"{contender.name}, {stages} stage{'s' if stages != 1 else ''}: "
            f"{1e3 * turn.mean_step_s:,.0f} ms a step, {1e3 * turn.cpu_step_s:,.0f} ms of processor time"
        )
        return turn


def cpu_seconds(members: Sequence[OwnMember]) -> dict[str, float]:
    """Return the processor seconds, user and system, that each process has used."""
    used = {}
    for member in members:
        times = psutil.Process(member.process.pid).cpu_times()
        used[member.name] = times.user + times.system
    return used


def machine() -> str:
    """Say in a line what this was measured on."""
    cores = psutil.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
