"""Measures with the yardstick: rounds in which every contender has a turn, then how fast each one learns."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brigade.coordinator.run_file import RunFile
from brigade.lab.contest import Contest, Ring, check, machine
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
from brigade.wire.errors import BrigadeError
from brigade.wire.plan import Plan

POINTS = 12  # of a curve
TARGET_SHARE = 0.75  # of the learning steps: where the plain loop is then, the others shall get


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured."""

    run: RunFile
    stages: tuple[int, ...]
    contenders: tuple[str, ...]
    rounds: int
    steps: int  # timed in each turn
    warm_up: int
    learning_steps: int = 0
    trusted: tuple[str, ...] = ()


def measure(wanted: Wanted, directory: Path, say: Callable[[str], None]) -> Yardstick:
    """Carry it all out; raises ConfigError for a job that cannot be compared, BrigadeError when a turn fails."""
    check(wanted.run, wanted.stages, max(_turn_steps(wanted), wanted.learning_steps))
    return asyncio.run(_Measuring(wanted, directory, say).carry_out())


def _turn_steps(wanted: Wanted) -> int:
    """Return the steps of a turn: the last one is not timed, since a run saves with it."""
    return wanted.warm_up + wanted.steps + 1


class _Measuring:
    def __init__(self, wanted: Wanted, directory: Path, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._say = say
        self._ring = Ring(
            Contest(
                run=wanted.run,
                steps=wanted.steps,
                warm_up=wanted.warm_up,
                trusted=wanted.trusted,
                directory=directory,
            ),
            self,
        )
        self._contenders = [each for name in wanted.contenders if (each := contender(name)) is not None]

    def said(self, text: str) -> None:
        """See `Audience`."""
        self._say(text)

    async def carry_out(self) -> Yardstick:
        turns = [turn for number in range(self._wanted.rounds) for turn in await self._round(number)]
        target, reached = await self._learn()
        wanted = self._wanted
        return Yardstick(
            version=RESULT_VERSION,
            run=wanted.run.spec.name,
            links="loopback",
            machine=machine(),
            rounds=wanted.rounds,
            steps=wanted.steps,
            warm_up=wanted.warm_up,
            target_loss=target,
            most_loss_difference=_differences(turns),
            rows=rows_of(turns, reached),
            turns=tuple(turns),
        )

    async def _round(self, number: int) -> list[Turn]:
        self._say(f"round {number + 1} of {self._wanted.rounds}")
        turns: list[Turn] = []
        for stages in self._wanted.stages:
            plan: Plan | None = None
            # ours first: everybody is cut as our plan says
            for each in sorted(self._contenders, key=lambda c: c.side != "brigade"):
                if each.side == "plain" and any(turn.contender == each.name for turn in turns):
                    continue  # has no stages: once a round
                turn, plan = await self._turn(each, stages, plan)
                turns.append(turn)
        return turns

    async def _turn(self, each: Contender, stages: int, plan: Plan | None) -> tuple[Turn, Plan | None]:
        steps, warm_up = _turn_steps(self._wanted), self._wanted.warm_up
        if each.side == "brigade":
            turn, _, own_plan = await self._ring.brigade(each, stages, steps=steps, warm_up=warm_up)
            return turn, plan or own_plan
        if plan is None and each.side == "torch":
            raise BrigadeError("nobody has made a plan: let one of ours take part")
        turn, _ = await self._ring.rival(each, stages, plan, steps=steps, warm_up=warm_up)
        return turn, plan

    async def _learn(self) -> tuple[float | None, dict[str, int | None]]:
        """Return a held-out loss, and after how many steps each contender gets there."""
        steps = self._wanted.learning_steps
        plain = contender("plain")
        if steps == 0 or plain is None:
            return None, {}
        every = max(1, steps // POINTS)
        self._say(f"learning: {steps} steps, a held-out loss every {every}")
        _, seen = await self._ring.rival(plain, 1, None, steps=steps, warm_up=1, eval_every=every)
        target = next((loss for step, loss in seen.held_out if step >= TARGET_SHARE * steps), None)
        if target is None:
            return None, {}
        reached: dict[str, int | None] = {}
        for each in self._contenders:
            held_out = seen.held_out  # whoever is exact learns as the plain loop does
            if each.side == "brigade" and each.codecs is None:
                stages = self._wanted.stages[0]
                _, own, _ = await self._ring.brigade(each, stages, steps=steps, warm_up=1, eval_every=every)
                held_out = own.held_out
            reached[each.name] = steps_to_target(held_out, target)
        return target, reached


def _differences(turns: list[Turn]) -> dict[str, float]:
    found: dict[str, float] = {}
    for ours in turns:
        rival = contender(ours.contender)
        if rival is None or rival.side != "brigade" or rival.codecs != ("raw", "raw"):
            continue
        for theirs in turns:
            if theirs.contender == rival.rival and theirs.stages == ours.stages:
                found[str(ours.stages)] = most_difference(ours.losses, theirs.losses)
    return found
