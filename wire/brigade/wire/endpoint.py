"""Addresses as people write them, and which address to tell others. Pure text: resolves no name, opens no socket."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from brigade.wire.errors import ConfigError

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOOKS_LIKE_IPV4 = re.compile(r"[0-9.]+")
_MOST_HOST_CHARACTERS = 253

# Names of interfaces that other machines seldom reach: container and virtual-machine bridges, then tunnels.
_BRIDGES = ("docker", "br-", "veth", "virbr", "lxc", "lxd", "cni", "flannel", "cali", "podman", "vmnet", "vboxnet")
_TUNNELS = ("tun", "tap", "wg", "utun", "tailscale", "zt", "ppp", "ipsec")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Host (a name or an IP literal without brackets) and TCP port; port 0 is an automatic port of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The text that ZeroMQ takes: `tcp://host:port`, with brackets around an IPv6 literal."""
        return f"tcp://{self}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of the machine."""
        return _is(self.host, "is_unspecified")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host.lower() == "localhost" or _is(self.host, "is_loopback")


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one network interface of this machine."""

    name: str
    host: str  # an IP literal
    is_up: bool = True


def parse_endpoint(text: str, *, to_dial: bool = False) -> Endpoint:
    """Return the endpoint that a person wrote as `host:port`, `tcp://host:port/` or `[ipv6]:port`.

    `to_dial`: refuse what can only be listened on, port 0 and `0.0.0.0`.
    Raises ConfigError, one line that names the text and what is wrong with it.
    """
    rest = text.strip()
    scheme = _SCHEME.match(rest)
    if scheme is not None:
        if scheme[1].lower() != "tcp":
            raise _wrong(text, f"only tcp:// is supported, not {scheme[1]}://")
        rest = rest[scheme.end() :].removesuffix("/")
    host, port = _split(text, rest)
    endpoint = Endpoint(check_host(host, text), _parse_port(text, port))
    if to_dial and endpoint.port == 0:
        raise _wrong(text, "port 0 (automatic) can be listened on, not dialled")
    if to_dial and endpoint.is_wildcard:
        raise _wrong(text, f"{endpoint.host} means every address of a machine: it can be listened on, not dialled")
    return endpoint


def check_host(host: str, text: str | None = None) -> str:
    """Return `host`, a name or an IP literal without brackets; ConfigError naming `text` (or it) otherwise."""
    shown = host if text is None else text
    if ":" in host:
        bare, _, scope = host.partition("%")
        if _ip(bare) is None or ("%" in host and _LABEL.fullmatch(scope) is None):
            raise _wrong(shown, f"{host!r} is not an IPv6 address")
        return host
    if _LOOKS_LIKE_IPV4.fullmatch(host):
        if _ip(host) is None:
            raise _wrong(shown, f"{host!r} is not an IPv4 address")
        return host
    labels = host.removesuffix(".").split(".")
    if not host or len(host) > _MOST_HOST_CHARACTERS or not all(map(_LABEL.fullmatch, labels)):
        raise _wrong(shown, f"{host!r} is not a host name" if host else "the host is missing")
    return host


def advertise_hosts(listen: Endpoint, interfaces: Sequence[Interface]) -> tuple[str, ...]:
    """Return the hosts under which others may reach a listener, the likeliest first; never a wildcard.

    A listener on one address has just that. For one on every address these are the addresses of the interfaces that
    are up: ordinary ones first, then tunnels, then container bridges; IPv4 before IPv6. Loopback stands only where
    there is nothing else. A guess: nobody has tried whether they can be reached.
    """
    if not listen.is_wildcard:
        return (listen.host,)
    both_families = ":" in listen.host
    usable = [
        interface
        for interface in interfaces
        if interface.is_up and (both_families or ":" not in interface.host) and _is_global_scope(interface.host)
    ]
    usable.sort(key=_unlikelihood)  # stable: the order of the system otherwise
    return tuple(dict.fromkeys(interface.host for interface in usable)) or ("127.0.0.1",)


def advertise_host(listen: Endpoint, interfaces: Sequence[Interface]) -> str:
    """Return the likeliest of `advertise_hosts`."""
    return advertise_hosts(listen, interfaces)[0]


def source_for(host: str, target: Endpoint) -> str:
    """Return the address of ours to connect to `target` from: `host`, or nothing where it cannot reach it.

    A name, a wildcard and another family say nothing; a loopback address reaches loopback addresses only.
    """
    source, there = _ip(host), _ip(target.host)
    if source is None or there is None or source.version != there.version or source.is_unspecified:
        return ""
    return "" if source.is_loopback and not there.is_loopback else host


def _is_global_scope(host: str) -> bool:
    """Whether another machine could mean the same by this address."""
    return not any(
        _is(host, kind) for kind in ("is_unspecified", "is_loopback", "is_link_local", "is_multicast", "is_reserved")
    )


def _unlikelihood(interface: Interface) -> tuple[int, bool]:
    name = interface.name.lower()
    rank = 2 if name.startswith(_BRIDGES) else int(name.startswith(_TUNNELS))
    return rank, ":" in interface.host


def _split(text: str, rest: str) -> tuple[str, str]:
    """Return host and port as text; the port is empty where it is missing."""
    if any(character in rest for character in "/@?# \t"):
        raise _wrong(text, "expected host:port and nothing else")
    if rest.startswith("["):
        host, closed, tail = rest[1:].partition("]")
        if not closed or ":" not in host or (tail and not tail.startswith(":")):
            raise _wrong(text, "expected [IPv6 address]:port")
        return host, tail[1:]
    if rest.count(":") > 1:
        raise _wrong(text, "write an IPv6 address in brackets, as in [::1]:7700")
    host, _, port = rest.partition(":")
    return host, port


def _parse_port(text: str, port: str) -> int:
    if not port:
        raise _wrong(text, "the port is missing, as in host:7700")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise _wrong(text, f"the port is {port[:20]!r}, expected a number from 0 to 65535")
    return int(port)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is(host: str, kind: str) -> bool:
    address = _ip(host)
    return address is not None and bool(getattr(address, kind))


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"address {text[:100]!r}: {why}")
