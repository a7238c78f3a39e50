"""One direction of one connection through the relay: reads as the uplink admits, delivers when the bytes have come.

The only copies are those of the system calls; everything else is arithmetic on sizes.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from brigade.lab.fabric import Route, Uplink
from brigade.lab.precise_loop import Agenda

MOST_PIECES_AT_ONCE = 16  # of one connection, before others get their turn
Data = bytes | bytearray | memoryview  # nothing: the end of the stream
RESET = bytearray()  # this very object: the source has reset the connection


class Owner(Protocol):
    """The connection that a flow is one half of."""

    def flow_ended(self) -> None:
        """One direction has delivered its end."""

    def sink_lost(self, flow: "Flow") -> None:
        """One direction cannot deliver any more."""

    def abort(self) -> None:
        """Reset both sides."""


class Gate:
    """Lets the connections of a host onto its uplink, in turn, and keeps what waits there short."""

    def __init__(self, uplink: Uplink, agenda: Agenda) -> None:
        self._uplink = uplink
        self._agenda = agenda
        self._waiting: deque[Flow] = deque()
        self._woken = False

    def admits(self, now: float) -> bool:
        """Tell whether there is room on the uplink, and nobody is before us."""
        return not self._waiting and self._has_room(now)

    def queue_up(self, flow: "Flow", now: float) -> None:
        """Call the flow when it is its turn."""
        self._waiting.append(flow)
        self._wake_later(now)

    def _has_room(self, now: float) -> bool:
        return self._uplink.bucket.backlog_s(now) < self._uplink.queue_s

    def _wake_later(self, now: float) -> None:
        if self._waiting and not self._woken:
            self._woken = True
            pause_s = max(0.0, self._uplink.bucket.backlog_s(now) - self._uplink.queue_s / 2)
            self._agenda.at(now + pause_s, self._wake)

    def _wake(self, moment: float) -> None:
        # What waits has been there at `moment` already, however late we are: the line goes on without a gap.
        self._woken = False
        while self._waiting and self._has_room(moment):
            flow = self._waiting.popleft()
            if flow.take_turn(moment):
                self._waiting.append(flow)
        self._wake_later(moment)


class Flow:
    """Bytes from `source` to `sink` over a route."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, agenda: Agenda, gate: Gate, route: Route, random: Random, owner: Owner
    ) -> None:
        self.route = route
        self._loop = loop
        self._agenda = agenda
        self._gate = gate
        self._owner = owner
        self._propagation = route.propagation(random)
        self._source: socket.socket
        self._sink: socket.socket
        self._reading = False  # the loop watches the source
        self._ended = False  # the source says no more
        self._in_flight = 0
        self._last_due = float("-inf")
        self._held: deque[Data] = deque()  # due while the route was cut
        self._releasing = False
        self._pending: deque[Data] = deque()  # due, but the sink does not take it
        self._blocked: Callable[[], None] | None = None  # what to do when there is room again
        self.closed = False

    # --- reading ------------------------------------------------------------------------------------------------

    def start(self, source: socket.socket, sink: socket.socket) -> None:
        """Begin to carry bytes."""
        self._source, self._sink = source, sink
        self._watch()

    def _watch(self) -> None:
        if not self._reading and not self._ended and not self.closed:
            self._reading = True
            self._loop.add_reader(self._source.fileno(), self._readable)

    def _look_away(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._source.fileno())

    def _readable(self) -> None:
        now = self._loop.time()
        for _ in range(MOST_PIECES_AT_ONCE):
            if not self._may_read():
                return
            if not self._gate.admits(now):
                self._look_away()
                self._gate.queue_up(self, now)
                return
            if not self._read(now):
                return

    def take_turn(self, moment: float) -> bool:
        """Read one piece that has been waiting since `moment`; tell whether another may wait behind it."""
        if self._may_read() and self._read(moment):
            return True
        if self._blocked is None:
            self._watch()
        return False

    def _may_read(self) -> bool:
        """Tell whether the way takes more; if not, go on when it does."""
        if self.closed or self._ended:
            return False
        if self.route.cut == "whole" and self._in_flight < self.route.window_bytes:
            return True
        self._look_away()
        self._blocked = self._watch
        return False

    def _read(self, since: float) -> bool:
        """Read a piece that came at `since`; tell whether there is more."""
        limit = self.route.piece_bytes
        try:
            data = self._source.recv(limit)
        except BlockingIOError:
            return False
        except OSError:
            self.reset_behind(since)
            return False
        if not data:
            self._look_away()
            self._ended = True
        elif self.route.corrupt_next:
            self.route.corrupt_next -= 1
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x55]) + data[len(data) // 2 + 1 :]
        self._send_off(data, since, followed=len(data) == limit)
        return len(data) == limit

    def reset_behind(self, now: float) -> None:
        """Reset the sink once what is on its way has been delivered."""
        self._look_away()
        self._ended = True
        if not self.closed:
            self._send_off(RESET, now, followed=False)

    # --- on the way ---------------------------------------------------------------------------------------------

    def _send_off(self, data: Data, since: float, *, followed: bool) -> None:
        size = len(data)
        self.route.accepted_bytes += size
        self._in_flight += size
        first, last = self.route.uplink.bucket.passes(size, since, since)
        first, last = self._propagation.arrives(size, first, last, followed=followed)
        self._agenda.at(first, self._arrive, data, last, 0)

    def _arrive(self, moment: float, data: Data, last: float, line: int) -> None:
        """Bytes have begun to come in at one of the later lines."""
        first, last = self.route.later[line].passes(len(data), moment, last)
        if line + 1 < len(self.route.later):
            self._agenda.at(first, self._arrive, data, last, line + 1)
            return
        self._last_due = max(self._last_due, last)
        self._agenda.at(self._last_due, self._deliver, data)

    def _deliver(self, _moment: float, data: Data) -> None:
        if self.closed:
            return
        if self.route.cut != "whole" or self._held:
            self._held.append(data)
        else:
            self._hand_over(data)

    def heal(self, now: float) -> None:
        """Go on after a cut: what was held comes as fast as the last line lets it."""
        if not self._releasing:
            self._release(now)
        self._go_on()

    def _release(self, moment: float) -> None:
        self._releasing = False
        if self.closed or self.route.cut != "whole" or not self._held:
            return
        self._hand_over(self._held.popleft())
        if self._held:
            self._releasing = True
            _, last = self.route.later[-1].passes(len(self._held[0]), moment, moment)
            self._agenda.at(last, self._release)

    # --- writing ------------------------------------------------------------------------------------------------

    def _hand_over(self, data: Data) -> None:
        if self._pending:
            self._pending.append(data)
        else:
            self._write(data)

    def _write(self, data: Data) -> None:
        if not data:
            self._end(reset=data is RESET)
            return
        try:
            sent = self._sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            self._owner.sink_lost(self)
            return
        self.route.delivered_bytes += sent
        self._in_flight -= sent
        if sent < len(data):
            self._pending.appendleft(memoryview(data)[sent:])
            self._loop.add_writer(self._sink.fileno(), self._writable)
        self._go_on()

    def _writable(self) -> None:
        self._loop.remove_writer(self._sink.fileno())
        while self._pending and not self.closed:
            before = len(self._pending)
            self._write(self._pending.popleft())
            if len(self._pending) >= before:
                return

    def _go_on(self) -> None:
        if self.route.cut == "whole" and self._blocked is not None and self._in_flight <= self.route.window_bytes // 2:
            again, self._blocked = self._blocked, None
            again()

    def _end(self, *, reset: bool) -> None:
        if reset:
            self._owner.abort()
            return
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._owner.abort()
            return
        self._owner.flow_ended()

    def close(self) -> None:
        """Carry nothing more; the sockets are the owner's to close."""
        if self.closed:
            return
        self._look_away()
        self.closed = True
        if self._pending:
            self._loop.remove_writer(self._sink.fileno())
        self._pending.clear()
        self._held.clear()
