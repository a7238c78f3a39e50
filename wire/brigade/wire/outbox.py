"""What one side of a session still has to send: priorities, numbers, credit, and copies to send again.

A message of higher priority overtakes between two fragments. Sent fragments are kept until they are acknowledged; they
refer to the caller's buffers, so keeping them costs no copy.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from brigade.wire.errors import LocalProtocolError, RemoteProtocolError
from brigade.wire.fragments import Cutter, Fragment
from brigade.wire.session_packets import FRAGMENT_BYTES, PRIORITIES, Buffer


@dataclass(frozen=True, slots=True)
class Numbered:
    """A fragment with its place in the session."""

    number: int
    fragment: Fragment
    cost: int


class Outbox:
    """Messages and fragments of one direction of a session, at its sender."""

    def __init__(self, window_bytes: int, max_message_bytes: int, max_pieces: int) -> None:
        self._window_bytes = window_bytes
        self._max_message_bytes = max_message_bytes
        self._max_pieces = max_pieces
        self._waiting: tuple[deque[Cutter], ...] = tuple(deque() for _ in range(PRIORITIES))
        self._unacknowledged: deque[Numbered] = deque()
        self._again: deque[Numbered] = deque()
        self._last_number = 0
        self._sent_cost = 0
        self._acknowledged_cost = 0
        self._credit = 0
        self.acknowledged = 0  # number of the last packet that the other side has
        self.queued_bytes = 0  # payload accepted and not yet acknowledged
        self.sent_bytes = 0  # payload, each byte once
        self.resent_packets = 0

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not acknowledged, in units of credit; above the window by less than one fragment."""
        return self._sent_cost - self._acknowledged_cost

    @property
    def idle(self) -> bool:
        """Everything has been sent and acknowledged."""
        return not self._unacknowledged and not self._again and not any(self._waiting)

    def check(self, pieces: Sequence[Buffer], priority: int) -> None:
        """Raise `LocalProtocolError` if this is no message that the other side could take."""
        if not 0 <= priority < PRIORITIES:
            raise LocalProtocolError(f"priority {priority}, expected 0 to {PRIORITIES - 1}")
        views = [memoryview(piece) for piece in pieces]
        total_bytes = sum(view.nbytes for view in views)
        if total_bytes > self._max_message_bytes:
            raise LocalProtocolError(f"message of {total_bytes} bytes, at most {self._max_message_bytes}")
        if len(views) > self._max_pieces:
            raise LocalProtocolError(f"message of {len(views)} pieces, at most {self._max_pieces}")
        if not all(view.c_contiguous for view in views):
            raise LocalProtocolError("a frame must be contiguous memory")

    def submit(self, pieces: Sequence[Buffer], priority: int) -> None:
        """Queue a message that passes `check`."""
        self.check(pieces, priority)
        # Fragments stay small beside the window, or a small window could not hold one.
        cutter = Cutter(pieces, priority, min(FRAGMENT_BYTES, max(1, self._window_bytes // 8)))
        self.queued_bytes += cutter.total_bytes
        self._waiting[priority].append(cutter)

    def next_packet(self) -> Numbered | None:
        """Return the next packet to send: one to send again, or the next fragment that credit and window allow."""
        if self._again:
            numbered = self._again.popleft()
            self.resent_packets += 1
        else:
            taken = self._next_fragment()
            if taken is None:
                return None
            numbered = taken
        self._unacknowledged.append(numbered)
        return numbered

    def _next_fragment(self) -> Numbered | None:
        room = min(self._credit - self._sent_cost, self._window_bytes - self.in_flight_bytes)
        for priority, queue in enumerate(self._waiting):
            if not queue:
                continue
            # An eighth of the window is kept for control, so that it passes where bulk has used up its credit.
            if room <= (self._window_bytes // 8 if priority else 0):
                return None
            cutter = queue[0]
            fragment = cutter.next_fragment()
            if cutter.done:
                queue.popleft()
            cost = fragment.cost
            self._last_number += 1
            self._sent_cost += cost
            self.sent_bytes += sum(len(part) for part in fragment.parts)
            return Numbered(self._last_number, fragment, cost)
        return None

    def acknowledge(self, received: int) -> None:
        """Forget what the other side has; raise `RemoteProtocolError` if it claims what was never sent."""
        if received > self._last_number:
            raise RemoteProtocolError(f"acknowledged packet {received}, but only {self._last_number} were sent")
        for queue in (self._unacknowledged, self._again):
            while queue and queue[0].number <= received:
                numbered = queue.popleft()
                self._acknowledged_cost += numbered.cost
                self.queued_bytes -= sum(len(part) for part in numbered.fragment.parts)
        self.acknowledged = max(self.acknowledged, received)

    def grant(self, credit: int) -> None:
        """Raise the number of bytes that may be sent since the session's start."""
        self._credit = max(self._credit, credit)

    def rewind(self) -> None:
        """Send again, from the first packet that is not acknowledged."""
        self._again.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()

    def clear(self) -> None:
        """Drop everything."""
        for queue in self._waiting:
            queue.clear()
        self._unacknowledged.clear()
        self._again.clear()
        self.queued_bytes = 0
