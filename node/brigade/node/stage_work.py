"""Where a stage's work is done, one thread for the device and a few for encoding, and how long it took.

Sums go into the statistics of each step; with a timeline every single action is noted as well.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from brigade.node.parcels import Outgoing
from brigade.node.stage_compute import StageSeconds
from brigade.node.timeline import Label
from brigade.node.timeline_file import Recorder
from brigade.wire.encoding import Buffer
from brigade.wire.message_parts import StageStatistics

P = ParamSpec("P")
T = TypeVar("T")

STEP_END_KINDS = frozenset({"sum", "optimizer"})


@dataclass(slots=True)
class Tally:
    """What was counted in one step beside the computing."""

    began: float
    gated_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    forward_bytes: int = 0
    forward_raw_bytes: int = 0
    backward_bytes: int = 0
    backward_raw_bytes: int = 0


class StageWork:
    """The threads of one stage and the clock beside them."""

    def __init__(self, compute_pool: ThreadPoolExecutor, codec_pool: ThreadPoolExecutor, timeline: Recorder) -> None:
        self._compute_pool = compute_pool
        self._codec_pool = codec_pool
        self._timeline = timeline
        self._tally = Tally(time.monotonic())
        self._computed_until = self._tally.began

    async def compute(self, what: Label, job: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a job in the compute thread."""
        result, began, ended = await self._timed(what, self._compute_pool, partial(job, *arguments, **options))
        if what.kind in STEP_END_KINDS:
            self._tally.gated_s += max(0.0, began - self._computed_until)
        self._computed_until = ended
        return result

    async def encode(self, what: Label, job: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a job beside the compute thread; its time counts as encoding."""
        result, began, ended = await self._timed(what, self._codec_pool, partial(job, *arguments, **options))
        self._tally.encode_s += ended - began
        return result

    async def decode(self, what: Label, job: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a job beside the compute thread; its time counts as decoding."""
        result, began, ended = await self._timed(what, self._codec_pool, partial(job, *arguments, **options))
        self._tally.decode_s += ended - began
        return result

    def sent(self, what: Label, outgoing: Outgoing) -> None:
        """Note that a message is handed over to a link."""
        if what.kind == "sent_activation" and not what.evaluation:
            self._tally.forward_bytes += outgoing.payload_bytes
            self._tally.forward_raw_bytes += outgoing.raw_bytes
        elif what.kind == "sent_gradient":
            self._tally.backward_bytes += outgoing.payload_bytes
            self._tally.backward_raw_bytes += outgoing.raw_bytes
        self.passed(what, outgoing.frames)

    def passed(self, what: Label, frames: Sequence[Buffer]) -> None:
        """Note the moment at which a message left or came whole."""
        if self._timeline.on:
            now = time.monotonic()
            self._timeline.add(what, now, now, sum(memoryview(frame).nbytes for frame in frames))

    def step_over(self, spent: StageSeconds, tokens: int) -> StageStatistics:
        """Return what the step has cost, and begin the tally of the next."""
        now, tally = time.monotonic(), self._tally
        self._tally = Tally(now)
        self._timeline.flush()
        wall_s = now - tally.began
        return StageStatistics(
            forward_s=spent.forward_s,
            backward_s=spent.backward_s,
            optimizer_s=spent.optimizer_s,
            encode_s=tally.encode_s,
            decode_s=tally.decode_s,
            wait_s=max(0.0, wall_s - spent.forward_s - spent.backward_s - spent.optimizer_s),
            gated_s=tally.gated_s,
            wall_s=wall_s,
            forward_bytes=tally.forward_bytes,
            forward_raw_bytes=tally.forward_raw_bytes,
            backward_bytes=tally.backward_bytes,
            backward_raw_bytes=tally.backward_raw_bytes,
            tokens=tokens,
        )

    async def _timed(self, what: Label, pool: ThreadPoolExecutor, work: Callable[[], T]) -> tuple[T, float, float]:
        result, began, ended = await asyncio.get_running_loop().run_in_executor(pool, _timed, work)
        self._timeline.add(what, began, ended)
        return result, began, ended


def _timed(work: Callable[[], T]) -> tuple[T, float, float]:
    began = time.monotonic()
    result = work()
    return result, began, time.monotonic()
