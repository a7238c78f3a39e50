"""The one loop that drives a core: feed events, carry out commands, wake at the next deadline.

It knows nothing of any protocol: what to decide is in the core, how to do it in `carry_out`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

E_contra = TypeVar("E_contra", contravariant=True)
E = TypeVar("E")
C = TypeVar("C")


class Core(Protocol[E_contra, C]):
    """A decider without input and output."""

    def handle(self, event: E_contra, now: float) -> list[C]:
        """Take an event at monotonic time `now` and return what to do."""

    def next_deadline(self) -> float | None:
        """Return when the core wants to be woken, None for never."""


class Driver(Generic[E, C]):
    """Drives one core in the running event loop; time is the loop's."""

    def __init__(self, core: Core[E, C], carry_out: Callable[[C], None], wake: Callable[[], None]) -> None:
        """`wake` is called when the core's deadline has come; it feeds the event that says so."""
        self._core = core
        self._carry_out = carry_out
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._events: deque[E] = deque()
        self._commands: deque[C] = deque()
        self._running = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, event: E) -> bool:
        """Give an event to the core and carry out what it asks for; tell whether it asked for anything.

        Called from within `carry_out` it only queues the event: commands are carried out in the order they were given.
        """
        if self._stopped:
            return False
        self._events.append(event)
        return False if self._running else self._run()

    def stop(self) -> None:
        """Feed no more events and set no more timers."""
        self._stopped = True
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> bool:
        self._running = True
        acted = False
        try:
            while not self._stopped and (self._commands or self._events):
                if not self._commands:
                    self._commands.extend(self._core.handle(self._events.popleft(), self._loop.time()))
                while self._commands:
                    acted = True
                    self._carry_out(self._commands.popleft())
        finally:
            self._running = False
            # An error of one command goes to the caller; those behind it are still carried out.
            if self._commands or self._events:
                self._loop.call_soon(self._wake)
            self._set_timer()
        return acted

    def _set_timer(self) -> None:
        deadline = None if self._stopped else self._core.next_deadline()
        if deadline is None:
            return
        if self._timer is not None:
            # A timer that rings too early is harmless and cheaper than a new one for every event.
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None and deadline <= self._loop.time():
            self._wake()
        self._set_timer()
