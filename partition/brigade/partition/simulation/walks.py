"""How a simulated stage chooses what to run: the cores that nodes run, behind one protocol."""

from collections.abc import Container, Sequence
from typing import Protocol

from brigade.partition.schedule import FORWARD, Action, Order, Schedule, alternating_order
from brigade.partition.sequencer import Sequencer


class Walk(Protocol):
    """What a stage asks when it is free; microbatches are numbered through all steps."""

    def admit(self, end: int) -> None:
        """Let forwards of microbatches below `end` start."""

    def next(self, activations: Container[int], gradients: Container[int]) -> Action | None:
        """Return the action to start now, given what has arrived; None: wait."""


class SequencedWalk:
    """Strictly in the order of a schedule, once for each `size` microbatches."""

    def __init__(self, order: Order, *, first: bool, last: bool) -> None:
        self._order = order
        self._size = len(order) // 2
        self._ends = {"first": first, "last": last}
        self._sequencer = Sequencer(order, **self._ends)
        self._offset = 0
        self._admitted = 0

    def admit(self, end: int) -> None:
        """Let forwards of microbatches below `end` start."""
        self._admitted = max(self._admitted, end)

    def next(self, activations: Container[int], gradients: Container[int]) -> Action | None:
        """Return the next action of the order if its input has arrived, and if it is admitted."""
        action = self._sequencer.upcoming
        if action is None:
            self._sequencer = Sequencer(self._order, **self._ends)
            self._offset += self._size
            action = self._order[0]
        offset = self._offset
        if action.kind == FORWARD and action.index + offset >= self._admitted:
            return None
        if not offset:
            return self._sequencer.next(activations, gradients)
        if self._sequencer.next(_Shifted(activations, offset), _Shifted(gradients, offset)) is None:
            return None
        return Action(action.kind, action.index + offset)


class _Shifted:
    """Microbatches of all steps, seen from within one step."""

    __slots__ = ("_numbers", "_offset")

    def __init__(self, numbers: Container[int], offset: int) -> None:
        self._numbers = numbers
        self._offset = offset

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index + self._offset in self._numbers


def in_order(schedule: Schedule) -> tuple[SequencedWalk, ...]:
    """Return walks through a schedule, again and again: a step each time."""
    last = len(schedule) - 1
    return tuple(SequencedWalk(order, first=k == 0, last=k == last) for k, order in enumerate(schedule))


def strict_alternation(warm_ups: Sequence[int], microbatches: int) -> tuple[SequencedWalk, ...]:
    """Return walks that alternate strictly after their warm-ups, through all microbatches without a break."""
    return in_order(tuple(alternating_order(warm_up, microbatches) for warm_up in warm_ups))
