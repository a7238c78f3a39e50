"""A relay process, and plain sockets that send and receive through it."""

import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

from brigade.lab.hosts import place_hosts
from brigade.lab.relay_orders import Count, Counted, Failed, Open, Opened, read_answer, write_line
from brigade.lab.scenario_spec import HostSpec, LinkSpec

DEADLINE_S = 20.0
FIRST_PORTS = range(21000, 24000, 10)


class RelayLab:
    """A relay between some hosts; `with` ends it and every socket."""

    def __init__(self, *hosts, pairs=(), coordinator=None):
        self.hosts = hosts
        self.pairs = pairs
        self.coordinator = coordinator or LinkSpec()
        self.stack = ExitStack()
        self.listeners = {}

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brigade.lab.relay_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.stack.callback(self._end)
        for port in FIRST_PORTS:
            self.order(Open(tuple(self.hosts), self.coordinator, tuple(self.pairs), port, seed=1))
            answer = self.answer()
            if answer == Opened():
                self.places = place_hosts([host.name for host in self.hosts], port)
                return self
            assert isinstance(answer, Failed)
            assert "in use" in answer.reason
        raise AssertionError("no free port")

    def __exit__(self, *reason):
        self.stack.close()

    def _end(self):
        self.process.stdin.close()
        try:
            assert self.process.wait(DEADLINE_S) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def order(self, order):
        self.process.stdin.write(write_line(order))
        self.process.stdin.flush()

    def answer(self):
        return read_answer(self.process.stdout.readline())

    def counts(self):
        """Return bytes accepted and delivered by (source, target)."""
        self.order(Count())
        answer = self.answer()
        assert isinstance(answer, Counted)
        return {(route.source, route.target): (route.accepted, route.delivered) for route in answer.routes}

    # --- sockets ----------------------------------------------------------------------------------------------------

    def listen(self, host):
        """Return a listening socket of a host; one a host."""
        if host not in self.listeners:
            place = self.places[host]
            listener = self.stack.enter_context(socket.create_server((place.inner_host, place.ports[0])))
            listener.settimeout(DEADLINE_S)
            self.listeners[host] = listener
        return self.listeners[host]

    def dial(self, source, target):
        """Return a connection from one host towards another; nobody need have accepted it."""
        place = self.places[target]
        here = (self.places[source].inner_host, 0)
        dialled = socket.create_connection((place.outer_host, place.ports[0]), DEADLINE_S, here)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.stack.enter_context(dialled)

    def connect(self, source, target):
        """Return both ends of a connection from one host to another."""
        listener = self.listen(target)
        dialled = self.dial(source, target)
        accepted, _ = listener.accept()
        accepted.settimeout(DEADLINE_S)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return dialled, self.stack.enter_context(accepted)


def host(name, **link):
    return HostSpec(name=name, **link)


def receive(connection, size):
    """Return so many bytes."""
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        more = connection.recv_into(view[got:])
        assert more, f"the stream ended after {got} of {size} bytes"
        got += more
    return data


def transfer_s(pairs, size):
    """Send `size` bytes over each pair of (sender, receiver) at once; return the seconds until each has them."""
    piece, took = bytes(1 << 18), [0.0] * len(pairs)

    def take(index, receiver):
        buffer, left = bytearray(1 << 20), size
        while left:
            got = receiver.recv_into(buffer)
            assert got
            left -= got
        took[index] = time.monotonic() - began

    def send(sender):
        for _ in range(size // len(piece)):
            sender.sendall(piece)
        sender.sendall(piece[: size % len(piece)])

    threads = [threading.Thread(target=take, args=(i, receiver)) for i, (_, receiver) in enumerate(pairs)]
    threads += [threading.Thread(target=send, args=(sender,)) for sender, _ in pairs]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def round_trip_s(near, far):
    """Return the seconds of a byte there and another back."""
    began = time.monotonic()
    near.sendall(b"?")
    assert far.recv(1) == b"?"
    far.sendall(b"!")
    assert near.recv(1) == b"!"
    return time.monotonic() - began
