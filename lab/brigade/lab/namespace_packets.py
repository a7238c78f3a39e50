"""The delay line of a lab's namespaces: packets that are on their way, when they arrive, and which are lost. No I/O."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

from msgspec import Struct

VIRTIO_HEADER = 10  # bytes that Linux puts before a frame: its checksum and how it is to be cut into packets
_SOURCE = VIRTIO_HEADER + 14 + 12  # of an IPv4 packet in an Ethernet frame; the target follows
_END = _SOURCE + 8


class Way(Struct, frozen=True):
    """What lies between two hosts: their addresses, seconds one way, and the share of packets that get lost."""

    source: str
    target: str
    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0


class LineState:
    """One way and its last packet: packets never overtake each other."""

    __slots__ = ("delay_s", "jitter_s", "last_due", "loss", "lost_bytes")

    def __init__(self, way: Way) -> None:
        self.delay_s = way.delay_s
        self.jitter_s = min(way.jitter_s, way.delay_s)
        self.loss = way.loss
        self.last_due = float("-inf")
        self.lost_bytes = 0


class DelayLine:
    """All packets that are on their way."""

    def __init__(self, ways: Sequence[Way], seed: int) -> None:
        self._ways = ways
        self._states = {address_bytes(way.source) + address_bytes(way.target): LineState(way) for way in ways}
        self._due: list[tuple[float, int, bytes]] = []
        self._numbers = count()
        self._random = Random(seed)  # noqa: S311 - jitter is no secret
        self.packets = 0
        self.late_total_s = 0.0
        self.late_most_s = 0.0

    def admit(self, frame: bytes, now: float) -> None:
        """Take a frame that sets out now; one that is lost, or that belongs to no way, is forgotten."""
        state = self._states.get(frame[_SOURCE:_END])
        if state is None:
            return
        if state.loss and self._random.random() < state.loss:
            state.lost_bytes += len(frame) - VIRTIO_HEADER
            return
        due = now + state.delay_s
        if state.jitter_s:
            due = max(state.last_due, due + self._random.uniform(-state.jitter_s, state.jitter_s))
        state.last_due = due
        heapq.heappush(self._due, (due, next(self._numbers), frame))

    def next_deadline(self) -> float | None:
        """Return when the next packet arrives; None when none is on its way."""
        return self._due[0][0] if self._due else None

    def arrived(self, now: float) -> Iterator[bytes]:
        """Yield the frames that have arrived by now, in order."""
        due = self._due
        while due and due[0][0] <= now:
            moment, _, frame = heapq.heappop(due)
            late_s = now - moment
            self.packets += 1
            self.late_total_s += late_s
            self.late_most_s = max(self.late_most_s, late_s)
            yield frame

    def lost(self) -> Iterator[tuple[str, str, int]]:
        """Yield source, target and bytes of what was lost on each way."""
        for way, state in zip(self._ways, self._states.values(), strict=True):
            yield way.source, way.target, state.lost_bytes


def address_bytes(address: str) -> bytes:
    """Return an IPv4 address as packets have it."""
    return bytes(map(int, address.split(".")))
