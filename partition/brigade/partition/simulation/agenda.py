"""What happens next in virtual time: a heap of events, in order of time, then of entry."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

Handler = Callable[[Any, Any], None]


class Agenda:
    """Calls handlers at their time. An event is a tuple, not an object: there are millions of them."""

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._count = count()
        self._heap: list[tuple[float, int, Handler, Any, Any]] = []

    def at(self, time: float, handler: Handler, first: Any = None, second: Any = None) -> None:
        """Call `handler(first, second)` at `time`."""
        heappush(self._heap, (time, next(self._count), handler, first, second))

    def run(self, settle: Callable[[], bool], until_s: float = math.inf) -> None:
        """Run until `settle` tells that all is done, no event is left, or `until_s` is reached.

        `settle` is called once after all events of one instant, so that what comes at the same time is seen together.
        """
        heap = self._heap
        while heap:
            time = heap[0][0]
            if time > until_s:
                self.now = until_s
                return
            self.now = time
            while heap and heap[0][0] == time:
                _, _, handler, first, second = heappop(heap)
                handler(first, second)
            if settle():
                return
