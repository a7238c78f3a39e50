"""A network of namespaces, and plain sockets of this process that live in them."""

import asyncio
import os
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from brigade.lab.fleet import Fleet
from brigade.lab.namespace_entry import enter_namespace, set_namespace
from brigade.lab.namespace_links import missing_support, open_namespaces
from brigade.lab.scenario_spec import LinkSpec

DEADLINE_S = 20.0


def unsupported():
    """Return why there can be no namespaces here; tried without the code under test."""
    if missing := missing_support():
        return f"needs {missing}"
    name = f"labtry{os.getpid()}"
    try:
        for command in (
            f"ip netns add {name}",
            f"ip netns exec {name} true",
            f"ip -n {name} link add dev try0 type veth peer name try1",
            f"ip -n {name} link add dev try2 type ifb",
            f"ip -n {name} tuntap add dev try3 mode tap vnet_hdr",
            f"tc -n {name} qdisc add dev try0 root tbf rate 1mbit burst 10kb limit 10kb",
            f"tc -n {name} qdisc add dev try1 clsact",
            f"tc -n {name} filter add dev try1 ingress protocol ip pref 1 u32 match u32 0 0 action mirred egress redirect dev try2",
        ):
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{command}: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


class NamespaceLab:
    """Namespaces for some hosts; `with` takes them down and ends every socket."""

    def __init__(self, *hosts, pairs=(), coordinator=None):
        self.hosts = hosts
        self.pairs = pairs
        self.coordinator = coordinator or LinkSpec()
        self.stack = ExitStack()
        self.listeners = {}

    def __enter__(self):
        runner = self.stack.enter_context(asyncio.Runner())
        self.run = runner.run
        fleet = Fleet()
        self.stack.callback(lambda: self.run(fleet.end()))
        try:
            opening = open_namespaces(fleet, self.hosts, self.coordinator, self.pairs, 1, Path(os.devnull))
            self.links = self.run(opening)
        except BaseException:
            self.stack.close()
            raise
        self.places = self.links.places
        return self

    def __exit__(self, *reason):
        self.stack.close()

    def order(self, order):
        self.run(self.links.order(order))

    def counts(self):
        """Return bytes accepted and delivered by (source, target)."""
        counted = self.run(self.links.count())
        return {(route.source, route.target): (route.accepted, route.delivered) for route in counted.routes}

    def wire_bytes(self, host, device):
        """Return what has left a device of a host, as the kernel's shaper counts it."""
        command = ["tc", "-n", self.links.namespace_of(host), "-s", "qdisc", "show", "dev", device, "root"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(shown.partition("Sent ")[2].split()[0])

    # --- sockets ----------------------------------------------------------------------------------------------------

    @contextmanager
    def on(self, host):
        """Let this thread live on a host: sockets that it makes stay there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter_namespace(self.links.namespace_of(host))
            yield
        finally:
            set_namespace(home)
            os.close(home)

    def listen(self, host):
        """Return a listening socket of a host; one a host."""
        if host not in self.listeners:
            place = self.places[host]
            with self.on(host):
                listener = self.stack.enter_context(socket.create_server((place.inner_host, place.ports[0])))
            listener.settimeout(DEADLINE_S)
            self.listeners[host] = listener
        return self.listeners[host]

    def dial(self, source, target, timeout_s=DEADLINE_S):
        """Return a connection from one host to another."""
        place = self.places[target]
        with self.on(source):
            here = (self.places[source].inner_host, 0)
            dialled = socket.create_connection((place.outer_host, place.ports[0]), timeout_s, here)
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


def namespaces():
    """Return the names of all network namespaces of this machine."""
    with suppress(FileNotFoundError):
        return {path.name for path in Path("/run/netns").iterdir()}
    return set()
