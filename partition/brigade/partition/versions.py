"""Which version of the weights a step uses: a function of the step's number, so that a run can be replayed.

Version v is what the weights are after v updates. With `keep` = 1 every step uses the newest weights and a flush
follows; with 2 those of one update earlier (2BW, arXiv 2006.09503), and so on.
"""

from collections.abc import Callable
from dataclasses import dataclass

from brigade.wire.errors import LocalProtocolError


@dataclass(frozen=True, slots=True)
class VersionRule:
    """Step g uses version `max(first, g - keep + 1)`; `first` is the oldest that a stage was given."""

    keep: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.keep < 1 or self.first < 0:
            raise LocalProtocolError(f"there is no sense in {self}")

    def version_of(self, step: int) -> int:
        """Return the version that forwards and backwards of a step use."""
        return max(self.first, step - self.keep + 1)

    def admitted_steps(self, version: int) -> int:
        """Return below which step forwards may start at a stage whose newest weights are this version."""
        return version + self.keep


class Numbering:
    """Numbers microbatches through all steps from `first_step` on; steps may differ in size."""

    def __init__(self, count_of: Callable[[int], int], first_step: int) -> None:
        self._count_of = count_of
        self._starts = {first_step: 0}
        self._newest = first_step

    def start(self, step: int) -> int:
        """Return the number of a step's first microbatch; the step is not forgotten, and not before the first."""
        while self._newest < step:
            self._starts[self._newest + 1] = self._starts[self._newest] + self._count_of(self._newest)
            self._newest += 1
        return self._starts[step]

    def number(self, step: int, index: int) -> int:
        """Return the number of one microbatch."""
        return self.start(step) + index

    def place(self, number: int) -> tuple[int, int]:
        """Return step and index of a number that is not forgotten."""
        step = self._newest
        while number >= self.start(step + 1):
            step += 1
        while number < self._starts[step]:
            step -= 1
        return step, number - self._starts[step]

    def forget_before(self, step: int) -> None:
        """Drop what is known of earlier steps."""
        self.start(step)
        self._starts = {each: start for each, start in self._starts.items() if each >= step}
