"""What happens in an experiment and when: turns a scenario's events into actions, by time or by steps. A core."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from brigade.lab.scenario_spec import (
    CoordinatorKill,
    EventSpec,
    Join,
    Kill,
    Leave,
    LinkDown,
    LinkDownOneWay,
    LinkRate,
    LinkUp,
    Resume,
    Slow,
    Suspend,
)

# --- what the experiment tells ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingBegan:
    """The first step is being trained: time counts from here. Told again after a resume, it says nothing new."""


@dataclass(frozen=True, slots=True)
class StepsCommitted:
    """So many steps are committed."""

    steps: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline has come."""


Told = TrainingBegan | StepsCommitted | TimePassed

# --- what is done -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartNode:
    """Start the node of a host; nothing if it runs."""

    host: str


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """Ask a node to go."""

    host: str


@dataclass(frozen=True, slots=True)
class KillNode:
    """End a node without a word."""

    host: str


@dataclass(frozen=True, slots=True)
class SuspendNode:
    """Let a node stand still."""

    host: str


@dataclass(frozen=True, slots=True)
class WakeNode:
    """Let a suspended node go on."""

    host: str


@dataclass(frozen=True, slots=True)
class SlowNode:
    """Let a node compute so many times slower than by itself."""

    host: str
    factor: float


@dataclass(frozen=True, slots=True)
class CutLink:
    """Let nothing pass from a host, and with `both` to it; `other` is empty for all others."""

    host: str
    other: str
    both: bool
    reset: bool


@dataclass(frozen=True, slots=True)
class HealLink:
    """Let everything pass again."""

    host: str
    other: str


@dataclass(frozen=True, slots=True)
class SetRates:
    """Give a host other rates; what is None stays."""

    host: str
    up: str | None
    down: str | None


@dataclass(frozen=True, slots=True)
class KillCoordinator:
    """End the coordinator without a word."""


@dataclass(frozen=True, slots=True)
class StartCoordinator:
    """Start the coordinator again where it was."""


Action = (
    StartNode
    | AskToLeave
    | KillNode
    | SuspendNode
    | WakeNode
    | SlowNode
    | CutLink
    | HealLink
    | SetRates
    | KillCoordinator
    | StartCoordinator
)


class Timeline:
    """The events of a scenario that are still to come."""

    def __init__(self, events: Sequence[EventSpec]) -> None:
        # stable: events of one moment happen in the order of the file
        self._by_step = sorted((e for e in events if e.at_step is not None), key=lambda event: event.at_step or 0)
        self._waiting = sorted((e for e in events if e.at_step is None), key=lambda event: event.at_s or 0.0)
        self._began_at: float | None = None
        self._returns: list[float] = []  # when a killed coordinator comes back

    def handle(self, told: Told, now: float) -> list[Action]:
        """Return what is to be done now, in order."""
        steps = 0
        match told:
            case TrainingBegan():
                self._began_at = now if self._began_at is None else self._began_at
            case StepsCommitted(done):
                steps = done
            case TimePassed():
                steps = -1
            case _:
                assert_never(told)
        return [*self._due_by_step(steps, now), *self._due_by_time(now)]

    def next_deadline(self) -> float | None:
        """Return when something is due, on the clock of `now`."""
        moments = list(self._returns)
        if self._began_at is not None and self._waiting:
            moments.append(self._began_at + (self._waiting[0].at_s or 0.0))
        return min(moments, default=None)

    def joins_to_come(self) -> int:
        """Return how many hosts will still be started."""
        return sum(isinstance(event, Join) for event in (*self._by_step, *self._waiting))

    def _due_by_step(self, steps: int, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._by_step and (self._by_step[0].at_step or 0) <= steps:
            actions += self._act(self._by_step.pop(0), now)
        return actions

    def _due_by_time(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._returns and self._returns[0] <= now:
            self._returns.pop(0)
            actions.append(StartCoordinator())
        while self._began_at is not None and self._waiting and self._began_at + (self._waiting[0].at_s or 0.0) <= now:
            actions += self._act(self._waiting.pop(0), now)
        return actions

    def _act(self, event: EventSpec, now: float) -> list[Action]:
        match event:
            case Join(host=host):
                return [StartNode(host)]
            case Leave(host=host):
                return [AskToLeave(host)]
            case Kill(host=host):
                return [KillNode(host)]
            case Suspend(host=host):
                return [SuspendNode(host)]
            case Resume(host=host):
                return [WakeNode(host)]
            case Slow(host=host, factor=factor):
                return [SlowNode(host, factor)]
            case LinkDown(host=host, other=other, reset=reset):
                return [CutLink(host, other, both=True, reset=reset)]
            case LinkDownOneWay(host=host, other=other):
                return [CutLink(host, other, both=False, reset=False)]
            case LinkUp(host=host, other=other):
                return [HealLink(host, other)]
            case LinkRate(host=host, up=up, down=down):
                return [SetRates(host, up, down)]
            case CoordinatorKill(back_after_s=back_after_s):
                self._returns = sorted([*self._returns, now + back_after_s])
                return [KillCoordinator()]
            case _:
                assert_never(event)


def describe(action: Action) -> str:
    """Return an action in words."""
    match action:
        case StartNode(host):
            return f"{host} joins"
        case AskToLeave(host):
            return f"{host} leaves"
        case KillNode(host):
            return f"{host} is killed"
        case SuspendNode(host):
            return f"{host} stands still"
        case WakeNode(host):
            return f"{host} goes on"
        case SlowNode(host, factor):
            return f"{host} computes {factor:g} times slower" if factor > 1 else f"{host} computes at its own speed"
        case CutLink(host, other, both, reset):
            way = f"between {host} and {other or 'all others'}" if both else f"from {host} to {other or 'all others'}"
            return f"the link {way} is {'reset' if reset else 'dead'}"
        case HealLink(host, other):
            return f"the link between {host} and {other or 'all others'} is whole"
        case SetRates(host, up, down):
            rates = [f"{name}link {rate}" for name, rate in (("up", up), ("down", down)) if rate]
            return f"{host} has {' and '.join(rates)}"
        case KillCoordinator():
            return "the coordinator is killed"
        case StartCoordinator():
            return "the coordinator comes back"
        case _:
            assert_never(action)
