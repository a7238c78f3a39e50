"""Every host has an address to live at and one to be reached at, and nobody else has either."""

from brigade.lab.hosts import place_hosts
from brigade.lab.scenario_spec import COORDINATOR


def test_addresses_are_told_apart_and_on_loopback():
    places = place_hosts([f"home-{n}" for n in range(250)], 21000)
    addresses = [host for place in places.values() for host in (place.inner_host, place.outer_host)]
    assert len(set(addresses)) == len(addresses) == 2 * 251
    assert all(address.startswith("127.") for address in addresses)


def test_the_coordinator_has_three_ports_and_a_node_one():
    places = place_hosts(["ada"], 21000)
    assert places["ada"].ports == (21000,)
    assert places["ada"].listen == f"{places['ada'].inner_host}:21000"
    assert places[COORDINATOR].ports == (21000, 21001, 21002)
