"""ZeroMQ sockets in an asyncio loop: options, reading in batches, sending without waiting.

`zmq.asyncio` makes a future for every message; here the loop watches the socket's file descriptor and calls back.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import zmq

from brigade.wire.errors import LocalProtocolError
from brigade.wire.session_packets import FRAGMENT_BYTES, MAX_PIECES, Buffer

BATCH = 32  # messages read before the loop gets its turn
ROOM_CHECK_S = 0.002  # the system's own buffers hold more than a line carries in that time
QUEUED_PACKETS = 8  # handed to ZeroMQ at a time, so that control overtakes bulk
MAX_FRAME_BYTES = max(FRAGMENT_BYTES, 8 * MAX_PIECES) + 1024  # payload or table of sizes, and what CURVE adds

# ZeroMQ's constants are flags of Python's enum, whose arithmetic costs more than the calls that they are given to.
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_AT_ONCE, _AT_ONCE_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)

SendResult = Literal["sent", "full", "unreachable"]


def make_socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    """Return a socket that never keeps a closing process waiting, with bounded queues and frames."""
    socket = context.socket(kind)
    socket.linger = 0
    socket.ipv6 = True
    socket.sndhwm = QUEUED_PACKETS
    socket.rcvhwm = 2 * QUEUED_PACKETS
    socket.maxmsgsize = MAX_FRAME_BYTES
    # The session's pings find dead links sooner; this ends the sockets of those who are gone for good.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 60)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 20)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    return socket


class LoopSocket:
    """A ZeroMQ socket read by the running event loop; used in its thread only."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        received: Callable[[list[zmq.Frame]], None],
        writable: Callable[[], None] | None = None,
    ) -> None:
        self._socket = socket
        self._received = received
        self._writable = writable
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._check_scheduled = False
        self._was_full = False  # somebody waits for room
        self._room_check: asyncio.TimerHandle | None = None
        self.closed = False
        self._loop.add_reader(self._fd, self._on_ready)
        # Whatever came before the loop watched has already used up its signal.
        self._check_soon()

    def send(self, frames: Sequence[Buffer]) -> SendResult:
        """Send a multipart message if the socket takes it now."""
        self.check_thread()
        try:
            send, last = self._socket.send, len(frames) - 1
            for index, frame in enumerate(frames):  # after the first one ZeroMQ takes the others too
                send(frame, _AT_ONCE if index == last else _AT_ONCE_AND_MORE)
        except zmq.Again:
            self._was_full = True
            self._check_for_room()
            return "full"
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return "unreachable"
            raise
        finally:
            # Sending takes note of arrivals, whose signal is then used up.
            if int(self._socket.getsockopt(_EVENTS)) & _POLLIN:
                self._check_soon()
        return "sent"

    def drain(self) -> None:
        """Read everything that has arrived."""
        while not self.closed and self._read():
            pass

    def close(self) -> None:
        """Close the socket at once; messages not on their way are dropped."""
        self.check_thread()
        if not self.closed:
            self.closed = True
            if self._room_check is not None:
                self._room_check.cancel()
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=0)

    def check_thread(self) -> None:
        """Raise `LocalProtocolError` in any thread but the owner's (in debug mode)."""
        if __debug__ and threading.get_ident() != self._thread:
            raise LocalProtocolError("a socket is used outside the thread that owns it")

    def _check_soon(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def _check_for_room(self) -> None:
        """Look again before long: whatever asks the socket anything may use up the signal that there is room."""
        if self._room_check is None:
            self._room_check = self._loop.call_later(ROOM_CHECK_S, self._check_room)

    def _check_room(self) -> None:
        self._room_check = None
        self._check()

    def _check(self) -> None:
        self._check_scheduled = False
        if not self.closed:
            self._on_ready()

    def _on_ready(self) -> None:
        # An error of a callback goes to the loop; what is left is read in the next turn, for its signal is used up.
        more = True
        try:
            for _ in range(BATCH):
                if self.closed:
                    return
                more = self._read()
                if not more:
                    break
        finally:
            if more:
                self._check_soon()
        if self._was_full and self._writable is not None and not self.closed:
            self._was_full = False
            self._writable()

    def _read(self) -> bool:
        # Asking for the events also handles what is due inside ZeroMQ, such as room in a queue.
        if not int(self._socket.getsockopt(_EVENTS)) & _POLLIN:
            return False
        receive = self._socket.recv
        try:
            frames = [receive(_AT_ONCE, copy=False)]
            while frames[-1].more:
                frames.append(receive(_AT_ONCE, copy=False))
        except zmq.Again:
            return False
        self._received(frames)
        return True
