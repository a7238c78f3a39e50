"""A line of a fixed rate that bytes pass one after the other: says when, by arithmetic, without waiting.

Departures are reckoned from departures, never from when somebody looked: lateness of the caller does not add up.
"""


class TokenBucket:
    """A line that everything shares which passes it; `burst_bytes` of it may pass at once after a pause.

    `rate` is bytes a second; None passes everything at once.
    """

    def __init__(self, rate: float | None, burst_bytes: int = 0) -> None:
        self.rate = rate
        self._burst_bytes = burst_bytes
        self._free_at = float("-inf")  # when the last byte that was taken has passed

    def passes(self, size: int, first: float, last: float) -> tuple[float, float]:
        """Take bytes that arrive from `first` to `last`; return when the first begins and the last has passed.

        What was taken before goes before. Bytes go on as they come, so that a line after a line of the same rate
        adds nothing to the time of a message.
        """
        if self.rate is None:
            return first, last
        begins = max(self._free_at, first - self._burst_bytes / self.rate)
        self._free_at = max(begins + size / self.rate, last)
        return max(begins, first), max(self._free_at, first)

    def backlog_s(self, now: float) -> float:
        """Return how long what was taken will still need."""
        return max(0.0, self._free_at - now)

    def change_rate(self, rate: float | None, now: float) -> None:
        """Have another rate from now on, also for what waits."""
        waiting = self.backlog_s(now)
        if waiting and self.rate is not None:
            self._free_at = now if rate is None else now + waiting * self.rate / rate
        self.rate = rate
