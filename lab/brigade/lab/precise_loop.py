"""An event loop whose timers are exact to some ten microseconds, and an agenda of what is due when.

epoll waits whole milliseconds. Its file descriptor can itself be waited for with `select`, which takes microseconds.
"""

import asyncio
import heapq
import select
import selectors
from collections.abc import Callable
from itertools import count
from typing import Any

EARLY_S = 50e-6  # what is due so soon is done now


class _PreciseEpoll(selectors.DefaultSelector):
    """The system's selector, with the time-out of `select` where that is finer."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until something is ready, at most `timeout` seconds."""
        if timeout is not None and 0 < timeout < 1 and hasattr(select, "epoll"):
            select.select([self.fileno()], [], [], timeout)  # type: ignore[attr-defined,unused-ignore]
            timeout = 0
        return super().select(timeout)


def make_precise_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop."""
    return asyncio.SelectorEventLoop(_PreciseEpoll())


class Agenda:
    """Calls actions in the order of their moments, each with the moment that it was due and not with the present."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self.actions = 0
        self.late_total_s = 0.0
        self.late_most_s = 0.0

    def at(self, moment: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have `action(moment, *arguments)` called then; in order of asking where moments are equal."""
        heapq.heappush(self._due, (moment, next(self._numbers), action, arguments))
        if self._timer is None or moment < self._timer.when():
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due[0][0], self._carry_out) if self._due else None

    def _carry_out(self) -> None:
        self._timer = None
        until = self._loop.time() + EARLY_S
        due = self._due
        if due:
            late_s = max(0.0, until - EARLY_S - due[0][0])
            self.actions += 1
            self.late_total_s += late_s
            self.late_most_s = max(self.late_most_s, late_s)
        while due and due[0][0] <= until:
            moment, _, action, arguments = heapq.heappop(due)
            action(moment, *arguments)
        if self._timer is None:
            self._set_timer()
