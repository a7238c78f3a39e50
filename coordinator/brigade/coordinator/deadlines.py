"""Which of many deadlines comes first, when most of them move on before they come.

A heap with one valid entry for each key. When a deadline moves to later its entry stays where it is and is put right
once it comes up: a heartbeat, which moves one, costs nothing here.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=int | str)


class Deadlines(Generic[Key]):
    """Deadlines by key; `due(key)` tells when a key is due at the moment, None when it is not awaited any more."""

    def __init__(self, due: Callable[[Key], float | None]) -> None:
        self._due = due
        self._heap: list[tuple[float, Key]] = []
        self._entered: dict[Key, float] = {}  # the moment of the valid entry

    def set(self, key: Key) -> None:
        """Take note of a key that is new, or due earlier than before; later than before needs no word."""
        at = self._due(key)
        if at is not None and at < self._entered.get(key, math.inf):
            self._entered[key] = at
            heapq.heappush(self._heap, (at, key))

    def next(self) -> float | None:
        """Return when the first key is due."""
        while self._heap:
            at, key = self._heap[0]
            if self._entered.get(key) != at:  # an earlier entry has taken its place
                heapq.heappop(self._heap)
                continue
            due = self._due(key)
            if due is None:
                heapq.heappop(self._heap)
                del self._entered[key]
            elif due > at:
                heapq.heapreplace(self._heap, (due, key))
                self._entered[key] = due
            else:
                return at
        return None

    def passed(self, now: float) -> Iterator[Key]:
        """Yield and forget the keys that are due by now, the longest due first."""
        while (at := self.next()) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            del self._entered[key]
            yield key
