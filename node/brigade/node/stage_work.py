"""Where a stage's work is done, one thread for the device and a few for encoding, and how long it took.

Sums go into the statistics of each step; with a timeline every single action is noted as well.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from brigade.node.parcels import Outgoing
from brigade.node.stage_compute import StageSeconds
from brigade.node.timeline import Label
from brigade.node.timeline_file import Recorder
from brigade.wire.encoding import Buffer
from brigade.wire.message_parts import StageStatistics

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
    """The threads of one stage and the clock beside them; results come back in the event loop's thread.

    Callbacks and not coroutines: for each microbatch a task, a future of the pool and one of the loop would cost as
    much as all the rest of the way. `failed` is told of every error of a job, and of what its result leads to.
    """

    def __init__(
        self,
        compute_pool: ThreadPoolExecutor,
        codec_pool: ThreadPoolExecutor,
        timeline: Recorder,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._compute_pool = compute_pool
        self._codec_pool = codec_pool
        self._timeline = timeline
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._tally = Tally(time.monotonic())
        self._computed_until = self._tally.began

    def close(self) -> None:
        """Let nothing that is under way lead to anything any more."""
        self._closed = True

    def compute(self, what: Label, job: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run a job in the compute thread, after those that were given before it."""

        def over(result: T, began: float, ended: float) -> None:
            if what.kind in STEP_END_KINDS:
                self._tally.gated_s += max(0.0, began - self._computed_until)
            self._computed_until = ended
            then(result)

        self._submit(self._compute_pool, what, job, over)

    def encode(self, what: Label, job: Callable[[], T], then: Callable[[T], None], *, here: bool = False) -> None:
        """Run a job beside the compute thread, or at once (`here`) when another thread costs more than the job."""

        def over(result: T, began: float, ended: float) -> None:
            self._tally.encode_s += ended - began
            then(result)

        self._run(what, job, over, here)

    def decode(self, what: Label, job: Callable[[], T], then: Callable[[T], None], *, here: bool = False) -> None:
        """Run a job as `encode` does; its time counts as decoding."""

        def over(result: T, began: float, ended: float) -> None:
            self._tally.decode_s += ended - began
            then(result)

        self._run(what, job, over, here)

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

    def _run(self, what: Label, job: Callable[[], T], over: Callable[[T, float, float], None], here: bool) -> None:
        if not here:
            self._submit(self._codec_pool, what, job, over)
            return
        done: Future[tuple[T, float, float]] = Future()
        try:
            done.set_result(_timed(job))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's error and told as such
            done.set_exception(error)
        self._take(what, over, done)

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        what: Label,
        job: Callable[[], T],
        over: Callable[[T, float, float], None],
    ) -> None:
        def told(done: "Future[tuple[T, float, float]]") -> None:
            if not (done.cancelled() or self._loop.is_closed()):
                self._loop.call_soon_threadsafe(self._take, what, over, done)

        pool.submit(_timed, job).add_done_callback(told)

    def _take(
        self, what: Label, over: Callable[[T, float, float], None], done: "Future[tuple[T, float, float]]"
    ) -> None:
        if self._closed:
            return
        try:
            result, began, ended = done.result()
            self._timeline.add(what, began, ended)
            over(result, began, ended)
        except Exception as error:  # noqa: BLE001 - whatever it is, the stage cannot go on
            self._failed(error)


def _timed(work: Callable[[], T]) -> tuple[T, float, float]:
    began = time.monotonic()
    result = work()
    return result, began, time.monotonic()
