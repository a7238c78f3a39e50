"""What one side of a session has received: order, duplicates, gaps, messages in assembly, and credit to grant."""

from collections.abc import Sequence
from dataclasses import dataclass

from brigade.wire.errors import RemoteProtocolError
from brigade.wire.fragments import Assembly
from brigade.wire.session_packets import PRIORITIES, Data, data_cost


@dataclass(frozen=True, slots=True)
class Arrived:
    """A whole message."""

    priority: int
    pieces: Sequence[memoryview]


class Inbox:
    """Packets and messages of one direction of a session, at its receiver."""

    def __init__(self, window_bytes: int, max_message_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._max_message_bytes = max_message_bytes
        self._assemblies: list[Assembly | None] = [None] * PRIORITIES
        self._held: list[Arrived] = []
        self._paused = False
        self._received_cost = 0
        self._consumed_cost = 0
        self._told_received = 0
        self._told_credit = window_bytes
        self._gap_open = False
        self._reported_gap_at = -1
        self.gap_due = False  # the sender shall be told to send again
        self.received = 0  # number of the last packet up to which nothing is missing
        self.received_bytes = 0  # payload, each byte once
        self.duplicate_packets = 0
        self.gaps = 0

    @property
    def credit(self) -> int:
        """Bytes that the sender may have sent since the session's start."""
        return self._consumed_cost + self._window_bytes

    @property
    def unconsumed_bytes(self) -> int:
        """Bytes received while delivery is paused, in units of credit; above the window by less than one packet."""
        return self._received_cost - self._consumed_cost

    @property
    def owes_ack(self) -> bool:
        """Something has arrived or been consumed that the sender has not been told."""
        return self.received > self._told_received or self.credit > self._told_credit

    @property
    def owes_ack_now(self) -> bool:
        """The sender may soon wait for an acknowledgement."""
        return self.credit - self._told_credit >= self._window_bytes // 8

    def told(self) -> None:
        """Note that `received` and `credit` are on their way to the sender."""
        self._told_received = self.received
        self._told_credit = self.credit
        self.gap_due = False

    def accept(self, data: Data) -> list[Arrived]:
        """Take a packet and return the messages to deliver; duplicates and packets behind a gap are dropped."""
        if data.number <= self.received:
            self.duplicate_packets += 1
            # Tell again: the sender may not know.
            self._told_received = -1
            return []
        if data.number > self.received + 1:
            self.gaps += 1
            self._gap_open = True
            # Once for each gap: everything in flight behind it arrives as well, and each report costs a resend.
            if self._reported_gap_at != self.received:
                self._reported_gap_at, self.gap_due = self.received, True
            return []
        self._gap_open = self.gap_due = False
        cost = data_cost(data.parts, data.sizes)
        # The last packet may overshoot: a sender needs any credit at all, not the whole cost of its next fragment.
        if self._received_cost >= self.credit:
            raise RemoteProtocolError(f"sent {self._received_cost - self.credit + cost} bytes beyond its credit")
        self._received_cost += cost
        self.received = data.number
        self.received_bytes += sum(len(part) for part in data.parts)
        if not self._paused:
            self._consumed_cost = self._received_cost
        return self._assemble(data)

    def _assemble(self, data: Data) -> list[Arrived]:
        assembly = self._assemblies[data.priority]
        if data.sizes is not None:
            if assembly is not None:
                raise RemoteProtocolError("a message begins before the one before it ended")
            assembly = Assembly(data.sizes, self._max_message_bytes)
        elif assembly is None:
            raise RemoteProtocolError("a fragment without a beginning")
        pieces = assembly.add(data)
        self._assemblies[data.priority] = assembly if pieces is None else None
        if pieces is None:
            return []
        arrived = Arrived(data.priority, pieces)
        if self._paused:
            self._held.append(arrived)
            return []
        return [arrived]

    def report_open_gap(self) -> None:
        """Report a gap that is still open once more."""
        self.gap_due = self._gap_open

    def route_changed(self) -> None:
        """Forget the gap: the greeting on the new route says where to go on."""
        self._gap_open = self.gap_due = False
        self._reported_gap_at = -1

    def pause(self) -> None:
        """Hold messages back and grant no more credit."""
        self._paused = True

    def resume(self) -> list[Arrived]:
        """Return the messages held back, and grant credit again."""
        self._paused = False
        self._consumed_cost = self._received_cost
        held, self._held = self._held, []
        return held

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._assemblies = [None] * PRIORITIES
