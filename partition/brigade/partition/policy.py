"""What a stage runs next when it need not keep a fixed order: alternate around a target in flight.

Late values then cost little: whatever is ready runs, as long as not too much is in flight. Nothing that this policy
holds back is needed by what it waits for, so it cannot deadlock: only forwards are ever held back.
"""

import sys
from collections.abc import Container, Sequence
from typing import Literal

from brigade.partition.schedule import BACKWARD, FORWARD, Action
from brigade.wire.errors import LocalProtocolError


class AlternationPolicy:
    """Hands out the actions of one stage: a forward while at most `warm_up` are in flight, else a backward.

    If the one it prefers is not ready, it takes the other: a forward only while fewer than `warm_up + 1 + slack` are
    in flight. Microbatches go in ascending order in both directions. Forwards of microbatches that are not admitted
    yet (of a step that needs newer weights) wait; backwards wait for nothing else unless `hold_backwards` says so.
    """

    def __init__(self, warm_up: int, slack: int = 0, *, first: bool, last: bool, admitted: int = 0) -> None:
        if warm_up < 0 or slack < 0:
            raise LocalProtocolError(f"a warm-up of {warm_up} with slack {slack} makes no sense")
        self.warm_up = warm_up
        self.slack = slack
        self._first = first
        self._last = last
        self._admitted = admitted
        self._backwards_end = sys.maxsize
        self._forwards = 0
        self._backwards = 0

    @property
    def in_flight(self) -> int:
        """Forwards handed out, less backwards handed out."""
        return self._forwards - self._backwards

    @property
    def cap(self) -> int:
        """The most microbatches ever in flight here."""
        return self.warm_up + 1 + self.slack

    def admit(self, end: int) -> None:
        """Let forwards of microbatches below `end` start; what was admitted once stays so."""
        self._admitted = max(self._admitted, end)

    def hold_backwards(self, end: int) -> None:
        """Let backwards of microbatches from `end` on wait, until it is called again."""
        self._backwards_end = end

    @property
    def upcoming(self) -> Action | None:
        """Return the action that is missed most; None when only admission is."""
        forward = self._forwards < self._admitted and self.in_flight < self.cap
        backward = self._backwards < min(self._forwards, self._backwards_end)
        if forward and (self.in_flight <= self.warm_up or not backward):
            return Action(FORWARD, self._forwards)
        return Action(BACKWARD, self._backwards) if backward else None

    def is_done(self, kind: Literal["F", "B"], number: int) -> bool:
        """Tell whether this action was handed out already."""
        return number < (self._forwards if kind == FORWARD else self._backwards)

    def next(self, activations: Container[int], gradients: Container[int], *, ahead: bool = False) -> Action | None:
        """Hand out the action that should start now, given the microbatches whose input has arrived; None: wait.

        The first stage needs no activation, and the last no gradient. `ahead`: something is still being computed, so
        that what is preferred may yet come; hand out nothing else.
        """
        in_flight = self._forwards - self._backwards
        if in_flight <= self.warm_up:
            return self._forward(activations) or (None if ahead else self._backward(gradients))
        return self._backward(gradients) or (self._forward(activations) if in_flight < self.cap and not ahead else None)

    def _forward(self, activations: Container[int]) -> Action | None:
        index = self._forwards
        if index >= self._admitted or not (self._first or index in activations):
            return None
        self._forwards = index + 1
        return Action(FORWARD, index)

    def _backward(self, gradients: Container[int]) -> Action | None:
        index = self._backwards
        if index >= min(self._forwards, self._backwards_end) or not (self._last or index in gradients):
            return None
        self._backwards = index + 1
        return Action(BACKWARD, index)


def admitted_microbatches(updates: int, per_update: int, versions: int) -> int:
    """Return below which microbatch forwards may start after so many updates at a stage that keeps so many versions.

    Forwards of batch g wait for the update of batch g - versions: with 1 version a flush after every batch, with 2 the
    weights of one update earlier (2BW, arXiv 2006.09503).
    """
    return (updates + versions) * per_update


def alternation(warm_ups: Sequence[int], slack: int = 0, *, admitted: int = 0) -> tuple[AlternationPolicy, ...]:
    """Return a policy for each stage of a line."""
    last = len(warm_ups) - 1
    return tuple(
        AlternationPolicy(warm_up, slack, first=stage == 0, last=stage == last, admitted=admitted)
        for stage, warm_up in enumerate(warm_ups)
    )
