"""What is measured side by side, and what came out: ratios of contenders that took turns, with least, median, most.

Times of one turn mean little on a machine that others use too. Contenders therefore take turns, and a ratio is formed
within one round of turns before the median over all rounds is taken.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct, json

RESULT_VERSION = 1

Side = Literal["plain", "torch", "brigade"]


class Contender(Struct, frozen=True, kw_only=True):
    """One way to do the job."""

    name: str
    side: Side
    schedule: str = ""
    codecs: tuple[str, str] | None = None  # forward and backward; those of the run file when None
    rival: str = ""  # the contender that it is compared with


CONTENDERS = (
    Contender(name="plain", side="plain", rival="torch-1f1b"),
    Contender(name="torch-1f1b", side="torch", schedule="1f1b"),
    Contender(name="torch-gpipe", side="torch", schedule="gpipe", rival="torch-1f1b"),
    Contender(name="brigade-1f1b", side="brigade", schedule="1f1b", codecs=("raw", "raw"), rival="torch-1f1b"),
    Contender(name="brigade-gpipe", side="brigade", schedule="gpipe", codecs=("raw", "raw"), rival="torch-gpipe"),
    Contender(name="configured", side="brigade", rival="torch-1f1b"),
)
STANDARD = ("plain", "torch-1f1b", "torch-gpipe", "brigade-1f1b", "configured")


class Turn(Struct, frozen=True, kw_only=True):
    """What one contender did in one round."""

    contender: str
    stages: int
    first_blocks: tuple[int, ...]  # of each stage
    steps: int  # timed
    step_s: float  # from one step's end to the next, the mean
    cpu_s: Mapping[str, float]  # processor seconds a step, by process

    @property
    def cpu_step_s(self) -> float:
        """Return the processor seconds of a step, of all processes together."""
        return sum(self.cpu_s.values())


class Spread(Struct, frozen=True, kw_only=True):
    """Of several rounds."""

    least: float
    median: float
    most: float


class Row(Struct, frozen=True, kw_only=True):
    """One contender over all rounds; `ratio` and `cpu_ratio` are ours or its by that of `rival`, round by round."""

    contender: str
    stages: int
    step_s: Spread
    cpu_s: Spread  # a step, all processes
    forward_bytes_per_token: float
    backward_bytes_per_token: float
    rival: str
    ratio: Spread | None
    cpu_ratio: Spread | None
    steps_to_target: int | None = None
    seconds_to_target: float | None = None


class Yardstick(Struct, frozen=True, kw_only=True):
    """What one call has measured."""

    version: int
    run: str
    links: str
    machine: str
    rounds: int
    steps: int  # timed in each turn, or fewer where its time was over
    warm_up: int
    target_loss: float | None
    most_loss_difference: Mapping[str, float]  # by number of stages: brigade-1f1b against torch-1f1b, relative
    rows: tuple[Row, ...]
    turns: tuple[Turn, ...]

    def to_json(self) -> bytes:
        """Return the JSON object, indented."""
        return json.format(json.encode(self)) + b"\n"


def contender(name: str) -> Contender | None:
    """Return the contender of this name."""
    return next((each for each in CONTENDERS if each.name == name), None)


def spread(values: Sequence[float]) -> Spread:
    """Return least, median and most of at least one value."""
    return Spread(least=min(values), median=median(values), most=max(values))


def rows_of(
    turns: Sequence[Turn],
    sent: Mapping[tuple[int, str], tuple[float, float]],
    target_steps: Mapping[str, int | None],
) -> tuple[Row, ...]:
    """Return a row for each number of stages and contender, in the order in which they first appear.

    `sent` holds the bytes a token, forwards and backwards, by stages and contender; `target_steps` by contender after
    how many steps the target loss was reached.
    """
    groups: dict[tuple[int, str], list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.stages, turn.contender), []).append(turn)
    rows = []
    for (stages, name), own in groups.items():
        known = contender(name)
        rival = known.rival if known is not None else ""
        # a single process has no stages and stands beside every number of them
        others = groups.get((stages, rival)) or next((g for (_, n), g in groups.items() if n == rival), [])
        pairs = list(zip(own, others, strict=False))
        steps, step_s = target_steps.get(name), spread([turn.step_s for turn in own])
        forward, backward = sent.get((stages, name), (0.0, 0.0))
        rows.append(
            Row(
                contender=name,
                stages=stages,
                step_s=step_s,
                cpu_s=spread([turn.cpu_step_s for turn in own]),
                forward_bytes_per_token=forward,
                backward_bytes_per_token=backward,
                rival=rival if pairs else "",
                ratio=spread([a.step_s / b.step_s for a, b in pairs]) if pairs else None,
                cpu_ratio=spread([a.cpu_step_s / b.cpu_step_s for a, b in pairs]) if pairs else None,
                steps_to_target=steps,
                seconds_to_target=None if steps is None else steps * step_s.median,
            )
        )
    return tuple(rows)


def most_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest relative difference between two courses of the loss, over the steps that both have."""
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one, other, strict=False)), default=0.0)


def steps_to_target(held_out: Sequence[tuple[int, float]], target: float) -> int | None:
    """Return after how many steps the held-out loss is first at or below `target`, drawn straight between points."""
    before: tuple[int, float] | None = None
    for step, loss in held_out:
        if loss <= target:
            if before is None or before[1] <= loss:
                return step
            share = (before[1] - target) / (before[1] - loss)
            return round(before[0] + share * (step - before[0]))
        before = (step, loss)
    return None
