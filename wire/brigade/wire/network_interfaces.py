"""The addresses of this machine, as the system tells them."""

import socket

import psutil

from brigade.wire.endpoint import Interface


def network_interfaces() -> tuple[Interface, ...]:
    """Return every IPv4 and IPv6 address of every interface of this machine, in the system's order."""
    states = psutil.net_if_stats()
    return tuple(
        Interface(name=name, host=address.address, is_up=name not in states or states[name].isup)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    )
