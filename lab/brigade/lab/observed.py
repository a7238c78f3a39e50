"""What the lab itself sees of an experiment: when steps were committed, what was done to the fleet, how it ended."""

from dataclasses import dataclass, field

from brigade.lab.relay_orders import Counted
from brigade.lab.scenario_spec import ScenarioSpec


@dataclass(frozen=True, slots=True)
class SeenStep:
    """One committed step, seconds after training began; a step that is replayed is seen again."""

    step: int  # counts from 1
    at_s: float
    loss: float | None
    tokens: int  # trained so far


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """Something that the scenario did or that a process did, seconds after training began (negative: before)."""

    at_s: float
    text: str


@dataclass(slots=True)
class Observed:
    """An experiment, seen from outside."""

    seed: int
    steps: list[SeenStep] = field(default_factory=list)
    events: list[SeenEvent] = field(default_factory=list)
    recoveries: int = 0  # times that the run was taken up again
    exit_code: int | None = None  # of the last coordinator
    reason: str = ""  # why the run ended before its end
    traffic: Counted | None = None
    began_at: float | None = None  # on the clock of the lab
    started_at: float = 0.0

    def end_by(self, spec: ScenarioSpec) -> tuple[float, str]:
        """Return when the experiment has to end, on the clock of the lab, and why."""
        if self.began_at is None:
            return self.started_at + spec.start_limit_s, f"training has not begun within {spec.start_limit_s:g} s"
        return self.began_at + spec.limit_s, f"the limit of {spec.limit_s:g} s is reached"

    def since_began(self, now: float) -> float:
        """Return seconds after training began, or since the start, negative, before."""
        return now - self.began_at if self.began_at is not None else self.started_at - now
