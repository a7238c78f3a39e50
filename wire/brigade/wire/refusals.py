"""Refused strangers, reported once for each address and kind in a while."""

import math

UNKNOWN_HOST = "an unknown address"  # of a connection that was closed before its address was read


class RefusalFilter:
    """Says whether a refusal is news; remembers a bounded number of addresses.

    From an unknown address only a kind that nobody was reported for is: most often it is somebody who tries again.
    """

    def __init__(self, interval_s: float = 60.0, most: int = 1024) -> None:
        self._interval_s = interval_s
        self._most = most
        self._reported: dict[tuple[str, str], float] = {}
        self.suppressed = 0

    def is_news(self, host: str, code: str, now: float) -> bool:
        """Tell whether to report this one, and remember it."""
        key = (host, code)
        alike = [at for (_, c), at in self._reported.items() if c == code] if host == UNKNOWN_HOST else []
        last = max([*alike, self._reported.get(key, -math.inf)])
        if now - last < self._interval_s:
            self.suppressed += 1
            return False
        self._reported.pop(key, None)
        while len(self._reported) >= self._most:
            del self._reported[next(iter(self._reported))]
        self._reported[key] = now
        return True

    def heard_lately(self, host: str | None, now: float) -> bool:
        """Tell whether anything was reported about this address (None: about any) within the interval."""
        return any(host in (h, None) and now - at < self._interval_s for (h, _), at in self._reported.items())
