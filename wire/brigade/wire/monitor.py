"""What ZeroMQ notices about connections: accepted, connected, handshake failed, broken."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import zmq
from zmq.utils.monitor import parse_monitor_message

from brigade.wire.sockets import LoopSocket

# libzmq, zmq.h: ZMQ_PROTOCOL_ERROR_*
_MECHANISM_MISMATCH = 0x11000002

Kind = Literal["accepted", "connected", "secured", "connect_failed", "handshake_failed", "disconnected"]
Failure = Literal["not_admitted", "plaintext", "timeout", "broken", "cryptographic"]

_KINDS: dict[int, Kind] = {
    zmq.EVENT_ACCEPTED: "accepted",
    zmq.EVENT_CONNECTED: "connected",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "secured",
    zmq.EVENT_CLOSED: "connect_failed",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake_failed",
    zmq.EVENT_DISCONNECTED: "disconnected",
}


@dataclass(frozen=True, slots=True)
class Noticed:
    """One event; `fd` is the TCP socket's where there is one, -1 otherwise."""

    kind: Kind
    fd: int = -1
    failure: Failure | None = None


class Monitor:
    """Reports the events of one ZeroMQ socket."""

    def __init__(self, socket: "zmq.Socket[bytes]", noticed: Callable[[Noticed], None]) -> None:
        self._watched = socket
        self._noticed = noticed
        mask = 0
        for event in _KINDS:
            mask |= event
        pair = socket.get_monitor_socket(mask)
        pair.linger = 0
        self._socket = LoopSocket(pair, self._on_frames)

    def close(self) -> None:
        """Stop; the watched socket must still be open."""
        if not self._socket.closed:
            self._watched.disable_monitor()
            self._socket.close()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        message = parse_monitor_message([frame.bytes for frame in frames])
        kind = _KINDS.get(message["event"])
        if kind is None:
            return
        value = int(message["value"])
        if kind == "handshake_failed":
            self._noticed(Noticed(kind, failure=_failure(int(message["event"]), value)))
        else:
            self._noticed(Noticed(kind, fd=value if kind != "secured" else -1))


def _failure(event: int, value: int) -> Failure:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "not_admitted"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return "plaintext" if value == _MECHANISM_MISMATCH else "cryptographic"
    return "timeout" if value == errno.EAGAIN else "broken"
