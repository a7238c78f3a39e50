"""How long bytes are on their way: a fixed delay, jitter that keeps the order, and stalls where packets are lost.

A lost packet is repeated by TCP, and what came after it waits at the other end: the stream stands still for a round
trip (fast retransmit, RFC 5681 section 3.2), or for 200 ms and a round trip when nothing follows that would tell the
sender (Linux's least retransmission timeout; RFC 6298). How congestion control slows down after a loss is left out.
"""

from random import Random

PACKET_BYTES = 1448  # payload of a full Ethernet frame with time stamps
LEAST_TIMEOUT_S = 0.2


class Propagation:
    """The way of one connection in one direction."""

    def __init__(self, delay_s: float, jitter_s: float, loss: float, random: Random) -> None:
        self.delay_s = delay_s
        self._jitter_s = min(jitter_s, delay_s)
        self._loss = loss
        self._random = random
        self._last_arrival = float("-inf")
        self.stalls = 0

    def arrives(self, size: int, first: float, last: float, *, followed: bool) -> tuple[float, float]:
        """Return when bytes that leave from `first` to `last` arrive; `followed`: more comes right behind them."""
        delay = self.delay_s
        if self._jitter_s:
            delay += self._random.uniform(-self._jitter_s, self._jitter_s)
        if self._loss and self._random.random() < 1.0 - (1.0 - self._loss) ** -(-size // PACKET_BYTES):
            self.stalls += 1
            delay += 2 * self.delay_s + (0.0 if followed else LEAST_TIMEOUT_S)
        first, last = max(first + delay, self._last_arrival), max(last + delay, self._last_arrival)
        self._last_arrival = last
        return first, last
