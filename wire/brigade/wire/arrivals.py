"""Who knocked at a listener and never became a session: pairs what ZeroMQ notices with addresses."""

import os
import socket
from collections.abc import Callable

from brigade.wire.endpoint import Endpoint
from brigade.wire.monitor import Noticed
from brigade.wire.network import plain_host
from brigade.wire.refusals import UNKNOWN_HOST
from brigade.wire.verdict import Verdict


class Arrivals:
    """Follows TCP connections by file descriptor from `accepted` to `disconnected`."""

    def __init__(self, refused: Callable[[str, Verdict], None], hung_up: Callable[[str, Verdict], None]) -> None:
        self._refused = refused
        self._hung_up = hung_up
        self._hosts: dict[int, str] = {}
        self._greeted: set[int] = set()
        self._failure: str | None = None  # of the connection that will be reported as broken next

    def greeted(self, fd: int) -> None:
        """Note that a packet came in over this TCP connection: it is no stranger."""
        self._greeted.add(fd)

    def noticed(self, event: Noticed, endpoint: Endpoint) -> None:
        """Take one event of the listening socket's monitor."""
        match event.kind:
            case "accepted":
                self._hosts[event.fd] = _host_of(event.fd)
            case "handshake_failed":
                self._failure = event.failure
            case "disconnected":
                self._on_disconnected(event.fd, endpoint)
            case _:
                pass

    def _on_disconnected(self, fd: int, endpoint: Endpoint) -> None:
        host = self._hosts.pop(fd, UNKNOWN_HOST)
        failure, self._failure = self._failure, None
        if fd in self._greeted:
            self._greeted.discard(fd)
            return
        match failure:
            case "not_admitted":
                return  # told with the key, when it was refused
            case "plaintext":
                verdict = Verdict("plaintext", f"{host} came to {endpoint} without encryption")
            case "cryptographic":
                reason = f"{host} came to {endpoint} for another key than ours: it has a wrong or an old invite"
                verdict = Verdict("wrong_key", reason)
            case "timeout":
                verdict = Verdict("silent", f"{host} connected to {endpoint} and did not complete the handshake")
            case "broken":
                self._hung_up(host, Verdict("stranger", f"{host} connected to {endpoint} and hung up"))
                return
            case _:
                verdict = Verdict("stranger", f"{host} connected to {endpoint} and did not speak our protocol")
        self._refused(host, verdict)


def _host_of(fd: int) -> str:
    """Return the address at the other end; the connection may be gone already."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            return plain_host(str(connection.getpeername()[0]))
    except (OSError, IndexError):
        return UNKNOWN_HOST
