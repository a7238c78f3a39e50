"""Which devices a network of namespaces has, and where packets go in it: followed hop by hop through the lines."""

import re

import pytest

from brigade.lab.fabric import make_fabric
from brigade.lab.hosts import NAMESPACE_NETWORK, place_hosts
from brigade.lab.namespace_network import FAR, Batch, NamespaceNetwork, shaping, wire_rate
from brigade.lab.relay_orders import ChangeRate, Cut, Heal
from brigade.lab.scenario_spec import COORDINATOR, HostSpec, LinkSpec, PairSpec

ADA = HostSpec(name="ada", site="bonn", up="8 Mbit/s", down="80 Mbit/s")
BEN = HostSpec(name="ben", site="bonn")
CARL = HostSpec(name="carl", site="rome", up="40 Mbit/s", pipe="shared", loss=0.5)
DORA = HostSpec(name="dora", site="oslo", latency_ms=7, jitter_ms=1)
PAIRS = (
    PairSpec(between=("bonn", "rome"), rate="200 Mbit/s", latency_ms=50),
    PairSpec(between=("ada", "carl"), rate="10 Mbit/s"),
    PairSpec(between=("ada", "ben"), rate="100 Mbit/s"),
    PairSpec(between=("bonn", "oslo"), latency_ms=0),
)


@pytest.fixture
def network():
    hosts = (ADA, BEN, CARL, DORA)
    places = place_hosts([host.name for host in hosts], 20000, NAMESPACE_NETWORK, NAMESPACE_NETWORK)
    return NamespaceNetwork(make_fabric(hosts, LinkSpec(), PAIRS), places, "lab1")


def lines(batches, tool=None, namespace=None):
    return [
        line
        for batch in batches
        if tool in (None, batch.tool) and namespace in (None, batch.namespace)
        for line in batch.lines
    ]


def follow(network, source, target):
    """Return the devices by which a packet leaves, as the filters of the hub say."""
    numbers = {"ada": 1, "ben": 2, "carl": 3, "dora": 4, COORDINATOR: 254}
    addresses = [f"10.77.0.{numbers[name]}" for name in (source, target)]
    filters = [
        re.fullmatch(r"filter add dev (\w+) ingress protocol ip pref (\d+) u32 (.*) action mirred.* dev (\w+)", line)
        for line in lines(network.build(), "tc", network.hub)
    ]
    device, way = f"p{numbers[source]}", []
    while True:
        fitting = [
            (int(found[2]), found[4])
            for found in filters
            if found
            and found[1] == device
            and all(
                {"src": addresses[0], "dst": addresses[1]}[side] == address
                for side, address in re.findall(r"match ip (\w+) (\S+)", found[3])
            )
        ]
        onward = min(fitting)[1]
        way.append(onward)
        if onward.startswith("p"):
            return way
        device = onward.replace("t", "x")  # out at the other end of a trunk; the delay line has one end


def test_packets_pass_what_lies_between_two_hosts_and_nothing_else(network):
    ways = {pair: follow(network, *pair) for pair in (("ada", "carl"), ("ben", "carl"), ("ada", "ben"))}
    assert ways["ben", "carl"][0] == FAR
    assert len(ways["ada", "carl"]) == 4, "the delay line, both trunks, and the port"
    assert ways["ada", "carl"][1] == ways["ben", "carl"][1], "one trunk for both"
    assert len(ways["ada", "ben"]) == 2
    assert ways["ada", "ben"][-1] == "p2"
    back = follow(network, "carl", "ben")
    assert back[0] == FAR
    assert back[1] not in ways["ben", "carl"], "each way has a trunk of its own"
    assert follow(network, "dora", "ada") == ["p1"], "no delay, no delay line"
    assert follow(network, "dora", "carl") == [FAR, "p3"]
    assert follow(network, COORDINATOR, "ada") == ["p1"]


def test_the_delay_line_knows_the_ways_that_are_long_or_lossy(network):
    ways = {(way.source.split(".")[3], way.target.split(".")[3]): way for way in network.ways()}
    assert ways["1", "3"].delay_s == pytest.approx(0.05)
    assert ways["1", "3"].loss == pytest.approx(0.5)
    assert ways["4", "3"].delay_s == pytest.approx(0.007)
    assert ways["4", "3"].jitter_s == pytest.approx(0.001)
    assert ("1", "2") not in ways


def test_every_limited_line_is_shaped_where_its_packets_wait(network):
    built = list(network.build())
    ada, hub, carl = (lines(built, "tc", name) for name in ("lab1-ada", "lab1", "lab1-carl"))
    assert ada == [f"qdisc replace dev eth0 root {shaping(1e6, 0.02)}"]
    assert f"qdisc replace dev p1 root {shaping(1e7, 0.02)}" in hub
    assert f"qdisc replace dev pipe root {shaping(5e6, 0.02)}" in carl
    assert sum("redirect dev pipe" in line for line in carl) == 2
    assert not [line for line in hub if "qdisc replace dev p3" in line]
    assert not lines(built, "tc", "lab1-ben")
    assert sum(line.startswith("qdisc replace dev t") for line in hub) == 6


def test_a_rate_is_payload_and_a_burst_is_short():
    assert wire_rate(1448.0) == 1514.0
    words = shaping(1e7, 0.02).split()
    assert words[:3] == ["tbf", "rate", f"{round(8e7 * 1514 / 1448)}bit"]
    assert int(words[4].removesuffix("b")) == pytest.approx(1e7 * 0.001, rel=0.05)
    assert int(words[6].removesuffix("b")) == pytest.approx(1e7 * 0.02, rel=0.05)
    slow = shaping(1000.0, 0.02).split()
    assert int(slow[4].removesuffix("b")) >= 1514, "a whole packet passes at any rate"


def test_where_packets_get_lost_tcp_hands_over_single_ones(network):
    built = list(network.build())
    assert "link set eth0 gso_max_segs 1" in lines(built, "ip", "lab1-ben"), "on its way to carl"
    assert "link set eth0 gso_max_segs 1" in lines(built, "ip", "lab1-carl")


def test_a_cut_bars_and_heals_what_it_names_and_twice_does_nothing(network):
    list(network.build())
    one_way = network.cut(Cut("ada", "ben", both=False))
    assert lines(one_way) == [
        "filter add dev p1 ingress protocol ip pref 2 u32 match ip dst 10.77.0.2/32 flowid :1",
    ]
    assert network.cut(Cut("ada", "ben", both=False)) == []
    assert len(network.cut(Cut("ada"))) == 7, "to and from four others, one of which is barred already"
    healed = network.heal(Heal("ada", "ben"))
    assert sorted(lines(healed)) == [f"filter del dev p{a} ingress protocol ip pref {b}" for a, b in ((1, 2), (2, 1))]
    assert len(network.heal(Heal("ada"))) == 6


def test_a_reset_refuses_at_both_hosts_and_turns_into_silence_when_cut_again(network):
    assert network.cut(Cut("ada", "ben", state="reset")) == [
        Batch("ip", "lab1-ada", ("route add unreachable 10.77.0.2/32",)),
        Batch("ip", "lab1-ben", ("route add unreachable 10.77.0.1/32",)),
    ]
    assert network.refused() == {("ada", "ben"), ("ben", "ada")}
    kinds = [line.split()[:2] for line in lines(network.cut(Cut("ada", "ben")))]
    assert sorted(kinds) == [["filter", "add"]] * 2 + [["route", "del"]] * 2
    assert not network.refused()


def test_another_rate_shapes_what_has_changed_and_no_rate_takes_the_shaper_away(network):
    assert lines(network.change_rate(ChangeRate("ada", up="1 Mbit/s")), "tc") == [
        f"qdisc replace dev eth0 root {shaping(125e3, 0.02)}"
    ]
    assert network.change_rate(ChangeRate("ada", up="1 Mbit/s")) == []
    assert lines(network.change_rate(ChangeRate("ada", down="unlimited")), "tc") == ["qdisc del dev p1 root"]
    assert [b.namespace for b in network.change_rate(ChangeRate("carl", up="1 Mbit/s"))] == ["lab1-carl"] * 2


def test_counts_are_read_from_what_tc_shows(network):
    def shown(pref, passed):
        return [
            {"pref": pref, "kind": "u32"},
            {"pref": pref, "options": {"fh": "800:", "ht_divisor": 1}},
            {"pref": pref, "options": {"actions": [{"kind": "mirred", "stats": {"bytes": passed, "packets": 3}}]}},
        ]

    cut = [{"pref": 2, "options": {"fh": "800::800"}}]
    answers = [cut + shown(1002, 5) + shown(1003, 0), shown(1001, 7), [], [], shown(1004, 9)]
    assert len(network.counting().lines) == 5
    assert network.read_counts(answers) == {
        ("ada", "ben"): 5,
        ("ada", "carl"): 0,
        ("ben", "ada"): 7,
        (COORDINATOR, "dora"): 9,
    }
