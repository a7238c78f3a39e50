"""How a stage chooses what to run: one question, asked by nodes and by the simulator alike.

Microbatches are numbered through all steps, in the order in which every stage runs their forwards.
"""

from collections.abc import Callable, Container
from typing import Literal, Protocol

from brigade.partition.schedule import FORWARD, Action, Order
from brigade.partition.sequencer import Sequencer


class Walk(Protocol):
    """What a stage asks when it is free."""

    @property
    def upcoming(self) -> Action | None:
        """Return the action that the stage waits for; None when it waits for admission."""

    def admit(self, end: int) -> None:
        """Let forwards of microbatches below `end` start; what was admitted once stays so."""

    def next(self, activations: Container[int], gradients: Container[int], *, ahead: bool = False) -> Action | None:
        """Return the action to start now, given what has arrived; None: wait.

        `ahead`: to start behind one that is being computed; nothing but the best choice will do yet.
        """

    def is_done(self, kind: Literal["F", "B"], number: int) -> bool:
        """Tell whether this action was handed out already."""


class OrderedWalk:
    """Strictly in the order of a schedule, step after step; `order_of(step)` counts steps from 0."""

    def __init__(self, order_of: Callable[[int], Order], *, first: bool, last: bool) -> None:
        self._order_of = order_of
        self._ends = {"first": first, "last": last}
        self._step = self._offset = self._admitted = 0
        self._order = order_of(0)
        self._sequencer = Sequencer(self._order, **self._ends)

    @property
    def upcoming(self) -> Action | None:
        """Return the next action if it is admitted."""
        action, offset = self._sequencer.upcoming, self._offset
        if action is None:  # the step is over
            action, offset = self._order_of(self._step + 1)[0], offset + len(self._order) // 2
        number = action.index + offset
        return None if action.kind == FORWARD and number >= self._admitted else Action(action.kind, number)

    def admit(self, end: int) -> None:
        """Let forwards of microbatches below `end` start."""
        self._admitted = max(self._admitted, end)

    def next(
        self,
        activations: Container[int],
        gradients: Container[int],
        *,
        ahead: bool = False,  # noqa: ARG002 - there is no choice
    ) -> Action | None:
        """Return the next action of the order if its input has arrived, and if it is admitted."""
        action = self._sequencer.upcoming
        if action is None:
            if self._offset + len(self._order) // 2 >= self._admitted:
                return None  # nothing is known of the next step before it is admitted
            self._enter_next_step()
            action = self._order[0]
        offset = self._offset
        if action.kind == FORWARD and action.index + offset >= self._admitted:
            return None
        if not offset:
            return self._sequencer.next(activations, gradients)
        if self._sequencer.next(_Shifted(activations, offset), _Shifted(gradients, offset)) is None:
            return None
        return Action(action.kind, action.index + offset)

    def is_done(self, kind: Literal["F", "B"], number: int) -> bool:
        """Tell whether this action was handed out already."""
        return number < self._offset or self._sequencer.is_done(kind, number - self._offset)

    def _enter_next_step(self) -> None:
        self._offset += len(self._order) // 2
        self._step += 1
        self._order = self._order_of(self._step)
        self._sequencer = Sequencer(self._order, **self._ends)


class _Shifted:
    """Microbatches of all steps, seen from within one step."""

    __slots__ = ("_numbers", "_offset")

    def __init__(self, numbers: Container[int], offset: int) -> None:
        self._numbers = numbers
        self._offset = offset

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index + self._offset in self._numbers
