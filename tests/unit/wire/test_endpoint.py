"""Addresses: what people write, what is refused in one line, and what is told to others."""

import pytest

from brigade.wire.endpoint import Endpoint, Interface, advertise_host, advertise_hosts, parse_endpoint, source_for
from brigade.wire.errors import ConfigError
from brigade.wire.network_interfaces import network_interfaces


@pytest.mark.parametrize(
    ("text", "host", "port", "address"),
    [
        ("localhost:7700", "localhost", 7700, "tcp://localhost:7700"),
        ("127.0.0.1:0", "127.0.0.1", 0, "tcp://127.0.0.1:0"),
        ("0.0.0.0:65535", "0.0.0.0", 65535, "tcp://0.0.0.0:65535"),
        ("[::1]:7700", "::1", 7700, "tcp://[::1]:7700"),
        ("[::]:0", "::", 0, "tcp://[::]:0"),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80, "tcp://[fe80::1%eth0]:80"),
        (" tcp://gpu-box.example.org:7700/ ", "gpu-box.example.org", 7700, "tcp://gpu-box.example.org:7700"),
        ("TCP://my_host:1", "my_host", 1, "tcp://my_host:1"),
        ("tcp://[2001:db8::5]:7700/", "2001:db8::5", 7700, "tcp://[2001:db8::5]:7700"),
    ],
)
def test_accepted(text, host, port, address):
    assert parse_endpoint(text) == Endpoint(host, port)
    assert parse_endpoint(text).address == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu-box", "port is missing"),
        ("gpu-box:", "port is missing"),
        ("[::1]", "port is missing"),
        ("gpu-box:70000", "'70000', expected a number from 0 to 65535"),
        ("gpu-box:-1", "expected a number"),
        ("gpu-box:http", "expected a number"),
        ("gpu-box:٣", "expected a number"),
        ("http://gpu-box:7700", "only tcp://"),
        ("ipc:///run/brigade.sock", "only tcp://"),
        ("tcp://gpu-box:7700/path", "nothing else"),
        ("ada@gpu-box:7700", "nothing else"),
        ("::1:7700", "in brackets"),
        ("[gpu-box]:7700", "IPv6"),
        ("[::1:7700", "IPv6"),
        ("[::zz]:7700", "not an IPv6 address"),
        ("[::1]7700", "IPv6"),
        ("1.2.3.400:7700", "not an IPv4 address"),
        ("10.0.1:7700", "not an IPv4 address"),
        (":7700", "host is missing"),
        ("", "host is missing"),
        ("-a:7700", "not a host name"),
        ("*:7700", "not a host name"),
        ("a..b:7700", "not a host name"),
        ("x" * 64 + ":7700", "not a host name"),
    ],
)
def test_refused_in_one_line_that_names_the_text(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_endpoint(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_be_listened_on_only_is_not_dialled():
    for text in ("0.0.0.0:7700", "[::]:7700", "127.0.0.1:0"):
        with pytest.raises(ConfigError, match="not dialled"):
            parse_endpoint(text, to_dial=True)
    assert parse_endpoint("127.0.0.1:7700", to_dial=True).port == 7700


@pytest.mark.parametrize(
    ("text", "wildcard", "loopback"),
    [
        ("0.0.0.0:1", True, False),
        ("[::]:1", True, False),
        ("127.0.0.1:1", False, True),
        ("127.8.0.1:1", False, True),
        ("[::1]:1", False, True),
        ("LocalHost:1", False, True),
        ("10.0.0.1:1", False, False),
        ("example.org:1", False, False),
    ],
)
def test_kinds_of_endpoints(text, wildcard, loopback):
    endpoint = parse_endpoint(text)
    assert (endpoint.is_wildcard, endpoint.is_loopback) == (wildcard, loopback)


LO = Interface("lo", "127.0.0.1")
LO6 = Interface("lo", "::1")
DOCKER = Interface("docker0", "172.17.0.1")
VPN = Interface("tun0", "10.8.0.6")
ETHERNET = Interface("eth0", "192.168.1.20")
ETHERNET6 = Interface("eth0", "2001:db8::20")
LOCAL6 = Interface("eth0", "fe80::20%eth0")
UNPLUGGED = Interface("eth1", "192.168.7.7", is_up=False)
SELF_ASSIGNED = Interface("eth2", "169.254.3.4")
EVERYTHING = (LO, LO6, DOCKER, VPN, UNPLUGGED, SELF_ASSIGNED, LOCAL6, ETHERNET6, ETHERNET)


def test_a_listener_on_every_address_is_told_by_real_ones_likeliest_first():
    assert advertise_hosts(parse_endpoint("0.0.0.0:1"), EVERYTHING) == ("192.168.1.20", "10.8.0.6", "172.17.0.1")


def test_a_listener_on_both_families_is_told_by_both():
    assert advertise_hosts(parse_endpoint("[::]:1"), EVERYTHING) == (
        "192.168.1.20",
        "2001:db8::20",
        "10.8.0.6",
        "172.17.0.1",
    )


def test_a_bridge_is_better_than_loopback_and_loopback_better_than_a_wildcard():
    assert advertise_host(parse_endpoint("0.0.0.0:1"), (LO, LO6, DOCKER)) == "172.17.0.1"
    assert advertise_host(parse_endpoint("0.0.0.0:1"), (LO, LO6, UNPLUGGED, SELF_ASSIGNED)) == "127.0.0.1"
    assert advertise_host(parse_endpoint("[::]:1"), ()) == "127.0.0.1"


def test_a_listener_on_one_address_has_that_one():
    for host in ("127.0.0.1", "10.0.0.1", "gpu-box", "2001:db8::1"):
        assert advertise_hosts(Endpoint(host, 1), EVERYTHING) == (host,)


def test_an_address_is_told_once():
    assert advertise_hosts(parse_endpoint("0.0.0.0:1"), (ETHERNET, ETHERNET)) == ("192.168.1.20",)


def test_the_interfaces_of_this_machine_are_ip_addresses():
    found = network_interfaces()
    assert found
    for interface in found:
        assert parse_endpoint(str(Endpoint(interface.host, 1))).host == interface.host


@pytest.mark.parametrize(
    ("host", "target", "source"),
    [
        ("192.168.1.5", "10.0.0.1", "192.168.1.5"),
        ("127.0.0.2", "127.0.0.1", "127.0.0.2"),
        ("192.168.1.5", "127.0.0.1", "192.168.1.5"),
        ("::1", "::1", "::1"),
        ("0.0.0.0", "10.0.0.1", ""),
        ("::", "::1", ""),
        ("", "10.0.0.1", ""),
        ("gpu-box", "10.0.0.1", ""),
        ("127.0.0.1", "10.0.0.1", ""),  # it listens behind something that forwards
        ("192.168.1.5", "2001:db8::5", ""),
    ],
)
def test_where_we_listen_is_where_we_dial_from_if_that_reaches_the_other_side(host, target, source):
    assert source_for(host, Endpoint(target, 7700)) == source
