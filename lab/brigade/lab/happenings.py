"""What happens to an experiment from outside, and whoever wants to see how it goes."""

from dataclasses import dataclass
from typing import Any, Protocol

from brigade.lab.fleet import Member


class Watcher(Protocol):
    """Whoever wants to see how it goes."""

    def said(self, at_s: float, text: str) -> None:
        """Something has happened; `at_s` is negative before training."""

    def stepped(self, done: int, max_steps: int, loss: float | None, tokens_per_s: float) -> None:
        """A step is committed."""


@dataclass(frozen=True, slots=True)
class Line:
    """The coordinator has printed a line."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended."""

    member: Member


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody wants the experiment to stop."""


@dataclass(frozen=True, slots=True)
class Settled:
    """All nodes of a run that has failed have ended."""


Happening = Line | Ended | Interrupted | Settled
