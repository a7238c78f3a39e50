"""One process's access to the network: the ZeroMQ context, who may shake hands, and closing in good order."""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils import z85

from brigade.wire.errors import LocalProtocolError
from brigade.wire.sockets import LoopSocket, make_socket

Admits = Callable[[str], bool]
NotAdmitted = Callable[[str, str], None]  # host, public key


class Closable(Protocol):
    """A listener or a dialled connection."""

    async def shut(self) -> None:
        """Say goodbye and close; ends within about a second."""


class Network:
    """Owns the context and answers ZeroMQ's questions about keys (RFC 27, ZAP); make it inside the event loop.

    Each listener has a ZAP domain of its own and so its own rule about who is admitted.
    """

    def __init__(self, io_threads: int = 1) -> None:
        self.context = zmq.Context(io_threads=io_threads)
        self._thread = threading.get_ident()
        self._domains: dict[str, tuple[Admits, NotAdmitted]] = {}
        self._open: set[Closable] = set()
        zap = self.context.socket(zmq.ROUTER)
        zap.linger = 0
        zap.bind("inproc://zeromq.zap.01")
        self._zap = LoopSocket(zap, self._on_question)
        self._domain_count = 0
        self.closed = False

    def check_thread(self) -> None:
        """Raise `LocalProtocolError` in any thread but the event loop's (in debug mode)."""
        if __debug__ and threading.get_ident() != self._thread:
            raise LocalProtocolError("the network is used outside the thread of its event loop")

    def socket(self, kind: int) -> "zmq.Socket[bytes]":
        """Return a new socket with this program's options."""
        self.check_thread()
        return make_socket(self.context, kind)

    def add_domain(self, admits: Admits, not_admitted: NotAdmitted) -> str:
        """Return the name of a new ZAP domain."""
        self._domain_count += 1
        domain = f"listener-{self._domain_count}"
        self._domains[domain] = (admits, not_admitted)
        return domain

    def remove_domain(self, domain: str) -> None:
        """Forget a domain: nobody is admitted to it any more."""
        self._domains.pop(domain, None)

    def opened(self, closable: Closable) -> None:
        """Remember what `close` has to close."""
        self._open.add(closable)

    def forget(self, closable: Closable) -> None:
        """It has closed by itself."""
        self._open.discard(closable)

    async def close(self) -> None:
        """Close every listener and connection, each with a goodbye, then the context; takes about a second at most."""
        if self.closed:
            return
        self.closed = True
        await asyncio.gather(*(closable.shut() for closable in tuple(self._open)), return_exceptions=True)
        self._zap.close()
        self.context.destroy(linger=0)

    def _on_question(self, frames: list[zmq.Frame]) -> None:
        # [reply address, empty, version, request id, domain, address, identity, mechanism, credentials...]
        route, empty, version, request, domain, address, _, mechanism, *credentials = [f.bytes for f in frames]
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials) == 1 else ""
        admits, not_admitted = self._domains.get(domain.decode(errors="replace"), (_nobody, _unheard))
        admitted = bool(key) and admits(key)
        if not admitted:
            not_admitted(plain_host(address.decode(errors="replace")), key)
        status, text = (b"200", b"welcome") if admitted else (b"400", b"not admitted")
        self._zap.send([route, empty, version, request, status, text, key.encode(), b""])


def plain_host(address: str) -> str:
    """Return an address without the wrapping that IPv6 sockets give to IPv4 ones."""
    return address.removeprefix("::ffff:")


def _nobody(_key: str) -> bool:
    return False


def _unheard(_host: str, _key: str) -> None:
    return None
