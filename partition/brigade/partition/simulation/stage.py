"""One simulated stage: computes what its core says, holds what arrived, and knows why it waits."""

from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from brigade.partition.line import StageTime
from brigade.partition.policy import admitted_microbatches
from brigade.partition.simulation.agenda import Agenda
from brigade.partition.simulation.disturbances import Calendar
from brigade.partition.simulation.report import STATES, StageReport
from brigade.partition.walk import Walk

FORWARD, BACKWARD, OPTIMIZER, STALLED, STARVED, BLOCKED, GATED, FINISHED, EVALUATION = range(len(STATES))
Watch = Callable[[str, int, int, float, float], None]  # kind, stage, microbatch, begin, end


@dataclass(frozen=True, slots=True)
class HeldOut:
    """After some updates (the first is 0) all stages run forwards of so many held-out microbatches, and then go on."""

    microbatches: int
    after: Container[int]

    def numbers(self, update: int) -> range:
        """Return what the microbatches after an update are called: below 0, to differ from those that are trained."""
        first = -1 - update * self.microbatches
        return range(first, first - self.microbatches, -1)


@dataclass(frozen=True, slots=True)
class Work:
    """What all stages have to do: so many microbatches, an update after every `per_update` of them.

    `versions` is the number of weight versions a stage keeps: forwards of batch g wait for the update of batch
    g - versions, 1 being a flush after each batch; None: they never wait.
    """

    microbatches: int
    per_update: int
    versions: int | None = 1
    held_out: HeldOut | None = None

    @property
    def updates(self) -> int:
        """How many updates there are; the last may be of fewer microbatches."""
        return -(-self.microbatches // self.per_update)


@dataclass(frozen=True, slots=True)
class Reactions:
    """What a stage sets off elsewhere, each with its number or a microbatch."""

    send_activation: Callable[[int], None] | None  # None at the last stage
    send_gradient: Callable[[int], None] | None  # None at the first
    batch_over: Callable[[int], None]  # all backwards of a batch are done here
    applied: Callable[[int], None]  # the optimizer is through with an update; `take_update` goes on
    wake: Callable[["SimulatedStage"], None]
    watch: Callable[[str, int, float, float], None] | None = None  # kind, microbatch, begin, end


class SimulatedStage:
    """A computing server with its queues. `start` is to be called after each instant in which it was woken."""

    def __init__(
        self,
        agenda: Agenda,
        time: StageTime,
        walk: Walk,
        work: Work,
        react: Reactions,
        calendar: Calendar | None = None,
        forward_factors: Sequence[float] | None = None,
        backward_factors: Sequence[float] | None = None,
    ) -> None:
        self._agenda = agenda
        self._time = time
        self._walk = walk
        self._work = work
        self._react = react
        self._calendar = calendar
        self._forward_factors = forward_factors
        self._backward_factors = backward_factors
        self.activations: set[int] = set()
        self.gradients: set[int] = set()
        self.first_start: float | None = None
        self.backward_ends_s: list[float] = []  # at the first stage only: there a microbatch leaves the line
        self.codec_s = 0.0
        self._codec_free = 0.0
        self._running = False
        self._running_index = 0
        self._woken = False
        self._evaluating: deque[int] = deque()  # held-out microbatches whose forward is to come
        self.forwards = 0  # started
        self._backwards = self._version = self._due = 0
        self._state = STARVED
        self._since = 0.0
        self._spent = [0.0] * len(STATES)
        self._version_at_forward: dict[int, int] = {}
        self._delays: Counter[int] = Counter()
        self._peaks = [0, 0, 0]  # in flight, activations, gradients
        self._admitted = 0
        self._admit()

    @property
    def finished(self) -> bool:
        """Whether all is computed and applied."""
        return self._version == self._work.updates

    @property
    def waits(self) -> str:
        """Say what the stage waits for."""
        return f"{STATES[self._state]} after {self.forwards} forwards and {self._backwards} backwards"

    # --- what happens -------------------------------------------------------------------------------------------------

    def activation_arrived(self, index: int, _: None = None) -> None:
        """Queue an activation."""
        arrived = self.activations
        arrived.add(index)
        self._peaks[1] = max(self._peaks[1], len(arrived))
        self._wake()

    def gradient_arrived(self, index: int, _: None = None) -> None:
        """Queue a gradient."""
        arrived = self.gradients
        arrived.add(index)
        self._peaks[2] = max(self._peaks[2], len(arrived))
        self._wake()

    def update_due(self, _: None = None, __: None = None) -> None:
        """Run the optimizer as soon as the device is free."""
        if self._time.optimizer_s:
            self._due += 1
            self._wake()
        else:
            self._react.applied(self._version)

    def take_update(self) -> None:
        """Go on with the new weights, by way of what is held out if it is time for that."""
        update = self._version
        self._version += 1
        held_out = self._work.held_out
        if held_out is not None and update in held_out.after:
            self._evaluating.extend(held_out.numbers(update))
        self._admit()
        self._wake()

    def code(self, kind: str, seconds: float, then: Callable[[int, None], None], index: int) -> None:
        """Encode or decode a value for so many seconds on the codec thread, then hand it on."""
        if not seconds:
            then(index, None)
            return
        start = max(self._agenda.now, self._codec_free)
        self._codec_free = start + seconds
        self.codec_s += seconds
        if self._react.watch is not None:
            self._react.watch(kind, index, start, self._codec_free)
        self._agenda.at(self._codec_free, then, index)

    def _wake(self) -> None:
        if not self._woken and not self._running:
            self._woken = True
            self._react.wake(self)

    # --- computing ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start what the core says, or wait, and know why."""
        self._woken = False
        if self._running:
            return
        now = self._agenda.now
        calendar = self._calendar
        if calendar is not None and (resumes := calendar.finish(now, 0.0)) > now:
            self._turn(STALLED)
            self._agenda.at(resumes, self._resume)
            return
        if self._due:
            self._due -= 1
            self._run(OPTIMIZER, self._time.optimizer_s, self._optimizer_done, 0)
            return
        if self._evaluating:
            self._start_evaluation()
            return
        action = self._walk.next(self.activations, self.gradients)
        if action is None:
            self._turn(self._why_waiting())
        elif action.kind == "F":
            self._start_forward(action.index)
        else:
            self._start_backward(action.index)

    def _resume(self, _: None, __: None) -> None:
        self._wake()

    def _start_forward(self, index: int) -> None:
        self.activations.discard(index)
        self.forwards += 1
        in_flight = self.forwards - self._backwards
        self._peaks[0] = max(self._peaks[0], in_flight)
        if self.first_start is None:
            self.first_start = self._agenda.now
        self._version_at_forward[index] = self._version
        factors = self._forward_factors
        seconds = self._time.forward_s if factors is None else self._time.forward_s * factors[index]
        self._run(FORWARD, seconds, self._forward_done, index)

    def _start_backward(self, index: int) -> None:
        self.gradients.discard(index)
        self._delays[self._version - self._version_at_forward.pop(index)] += 1
        factors = self._backward_factors
        factor = 1.0 if factors is None else factors[index]
        if self._time.weights_s and self._react.send_gradient is not None:
            self._at(
                self._agenda.now, (self._time.backward_s - self._time.weights_s) * factor, self._reply_leaves, index
            )
        self._run(BACKWARD, self._time.backward_s * factor, self._backward_done, index)

    def _start_evaluation(self) -> None:
        index = self._evaluating[0]
        if self._react.send_gradient is not None and index not in self.activations:
            self._turn(STARVED)
            return
        self._evaluating.popleft()
        self.activations.discard(index)
        self._run(EVALUATION, self._time.forward_s, self._forward_done, index)

    def _run(self, state: int, seconds: float, done: Callable[[int, None], None], index: int) -> None:
        self._running = True
        self._running_index = index
        self._turn(state)
        self._at(self._agenda.now, seconds, done, index)

    def _at(self, start: float, seconds: float, then: Callable[[int, None], None], index: int) -> None:
        calendar = self._calendar
        self._agenda.at(start + seconds if calendar is None else calendar.finish(start, seconds), then, index)

    def _forward_done(self, index: int, _: None) -> None:
        self._stop()
        send = self._react.send_activation
        if send is not None:
            self.code("encode_activation", self._time.encode_s, self._send_activation, index)

    def _backward_done(self, index: int, _: None) -> None:
        self._stop()
        self._backwards += 1
        if self._react.send_gradient is None:
            self.backward_ends_s.append(self._agenda.now)
        elif not self._time.weights_s:
            self.code("encode_gradient", self._time.encode_s, self._send_gradient, index)
        work = self._work
        if self._backwards % work.per_update == 0 or self._backwards == work.microbatches:
            self._react.batch_over(-(-self._backwards // work.per_update) - 1)

    def _reply_leaves(self, index: int, _: None) -> None:
        self.code("encode_gradient", self._time.encode_s, self._send_gradient, index)

    def _send_activation(self, index: int, _: None) -> None:
        assert self._react.send_activation is not None
        self._react.send_activation(index)

    def _send_gradient(self, index: int, _: None) -> None:
        assert self._react.send_gradient is not None
        self._react.send_gradient(index)

    def _optimizer_done(self, _: int, __: None) -> None:
        self._stop()
        self._react.applied(self._version)

    def _stop(self) -> None:
        if self._react.watch is not None:
            self._react.watch(STATES[self._state], self._running_index, self._since, self._agenda.now)
        if self._calendar is not None:
            stalled_s = self._calendar.stalled_between(self._since, self._agenda.now)
            self._spent[self._state] -= stalled_s
            self._spent[STALLED] += stalled_s
        self._running = False
        self._wake()

    def _admit(self) -> None:
        work = self._work
        if work.versions is None:
            self._admitted = work.microbatches
        else:
            admitted = admitted_microbatches(self._version, work.per_update, work.versions)
            self._admitted = min(work.microbatches, admitted)
        self._walk.admit(self._admitted)

    # --- accounts -----------------------------------------------------------------------------------------------------

    def _why_waiting(self) -> int:
        if self.finished:
            return FINISHED
        upcoming = self.forwards
        if upcoming < self._work.microbatches and (self._react.send_gradient is None or upcoming in self.activations):
            return GATED if upcoming >= self._admitted else BLOCKED
        # nothing in flight and nothing that may start: what is missing is an update, not an input
        return GATED if upcoming == self._backwards and upcoming >= self._admitted else STARVED

    def _turn(self, state: int) -> None:
        now = self._agenda.now
        self._spent[self._state] += now - self._since
        self._since = now
        self._state = state

    def report(self) -> StageReport:
        """Return how the time until now was spent."""
        self._turn(self._state)
        forward_s, backward_s, optimizer_s, stalled_s, starved_s, blocked_s, gated_s, finished_s, held_s = self._spent
        return StageReport(
            forward_s=forward_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            stalled_s=stalled_s,
            starved_s=starved_s,
            blocked_s=blocked_s,
            gated_s=gated_s,
            finished_s=finished_s,
            peak_in_flight=self._peaks[0],
            peak_activations=self._peaks[1],
            peak_gradients=self._peaks[2],
            delays=dict(sorted(self._delays.items())),
            evaluation_s=held_s,
        )
