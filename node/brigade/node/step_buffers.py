"""Buffers of a stage's blocks from step to step, where forwards of the next step may run before a step is decided.

They run through all forwards in order. What a skipped step did to them is undone at a step that starts after the
decision in every order of events, so that nothing depends on how fast the decision came.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from brigade.node.buffers import BlockBuffers, Values

AllValues = dict[int, Values]  # by block


class StepBuffers:
    """The buffers of all blocks; forwards of step g + `keep` start after the decision about step g."""

    def __init__(self, blocks: Mapping[int, nn.Module], keep: int) -> None:
        self.of = {index: BlockBuffers(block) for index, block in blocks.items()}
        self._keep = keep
        self._before: dict[int, AllValues] = {}  # as they were when a step began
        self._corrected: dict[int, AllValues] = {}  # as they should have been: without a step that was skipped
        self._resume_with: dict[int, AllValues] = {}  # what a step has to begin with

    def begin(self, step: int) -> None:
        """Take note of a step's first forward, which is about to run; later ones change nothing."""
        if step in self._before:
            return
        clean = self._resume_with.pop(step, None)
        if clean is not None:
            self._install(clean)
        self._before[step] = self._values()

    @contextmanager
    def as_after(self, step: int) -> Iterator[None]:
        """Let blocks have, for as long as it lasts, what the forwards up to this step left."""
        current = self._values()
        self._install(self._start_of(step + 1))
        try:
            yield
        finally:
            self._install(current)

    def end(self, step: int, *, skipped: bool) -> None:
        """Let what a step did to buffers stand, or leave it out."""
        if skipped:
            clean = self._start_of(step)
            for later in range(step + 1, step + self._keep):
                self._corrected[later] = clean
            if self._keep == 1:
                self._install(clean)  # no later forward has run
            else:
                self._resume_with[step + self._keep] = clean
        for table in (self._before, self._corrected):
            for old in [each for each in table if each <= step - self._keep + 1]:
                del table[old]

    def drop_all(self) -> None:
        """Undo every step that has not ended."""
        if self._before:
            self._install(self._before[min(self._before)])
        self._before.clear()

    def _start_of(self, step: int) -> AllValues:
        for table in (self._corrected, self._before, self._resume_with):
            if step in table:
                return table[step]
        return self._values()

    def _values(self) -> AllValues:
        return {index: buffers.values() for index, buffers in self.of.items()}

    def _install(self, values: AllValues) -> None:
        for index, buffers in self.of.items():
            buffers.install(values[index])
