"""The walk of one stage through its order: which action may start now."""

from collections.abc import Container
from typing import Literal

from brigade.partition.schedule import FORWARD, Action, Order


class Sequencer:
    """Hands out the actions of one stage for one step, strictly in the order of the schedule.

    Strict order makes a run repeatable: gradients are always summed in the same sequence.
    """

    def __init__(self, order: Order, *, first: bool, last: bool) -> None:
        self._order = order
        self._first = first
        self._last = last
        self._position = 0
        self._handed_out: set[Action] = set()

    @property
    def upcoming(self) -> Action | None:
        """The next action, whether it may start or not; None at the end."""
        return self._order[self._position] if self._position < len(self._order) else None

    @property
    def in_flight(self) -> int:
        """Forwards handed out, less backwards handed out."""
        forwards = sum(action.kind == FORWARD for action in self._handed_out)
        return 2 * forwards - len(self._handed_out)

    def next(self, activations: Container[int], gradients: Container[int]) -> Action | None:
        """Hand out the next action if its input is among the microbatches that have arrived, else None.

        The first stage needs no activation, and the last no gradient.
        """
        action = self.upcoming
        if action is None:
            return None
        if action.kind == FORWARD:
            ready = self._first or action.index in activations
        else:
            ready = self._last or action.index in gradients
        if not ready:
            return None
        self._position += 1
        self._handed_out.add(action)
        return action

    def is_done(self, kind: Literal["F", "B"], index: int) -> bool:
        """Tell whether this action was handed out already."""
        return Action(kind, index) in self._handed_out
