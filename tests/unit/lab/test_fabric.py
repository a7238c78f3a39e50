"""Which lines a connection passes, and what is shared."""

import pytest

from brigade.lab.fabric import LEAST_PIECE, MOST_PIECE, MOST_WINDOW, make_fabric
from brigade.lab.scenario_spec import COORDINATOR, HostSpec, LinkSpec, PairSpec

ADA = HostSpec(name="ada", site="bonn", up="8 Mbit/s", down="80 Mbit/s", latency_ms=10, jitter_ms=1, loss=0.1)
BEN = HostSpec(name="ben", site="bonn", latency_ms=1)
CARL = HostSpec(name="carl", site="rome", up="40 Mbit/s", pipe="shared", latency_ms=5, loss=0.5)
TRUNK = PairSpec(between=("bonn", "rome"), rate="200 Mbit/s", latency_ms=50)


@pytest.fixture
def fabric():
    return make_fabric(
        (ADA, BEN, CARL), LinkSpec(latency_ms=3), (TRUNK, PairSpec(between=("ada", "ben"), latency_ms=2))
    )


def test_delays_add_up_unless_a_pair_says_otherwise(fabric):
    assert fabric.route("ada", COORDINATOR).delay_s == pytest.approx(0.013)
    assert fabric.route("ada", "ben").delay_s == fabric.route("ben", "ada").delay_s == pytest.approx(0.002)
    assert fabric.route("ada", "carl").delay_s == pytest.approx(0.05)
    assert fabric.route("ada", "carl").loss == pytest.approx(1 - 0.9 * 0.5)
    assert fabric.route("ada", "carl").jitter_s == pytest.approx(0.001)


def test_a_host_has_one_uplink_and_one_downlink_for_all(fabric):
    assert fabric.route("ada", "ben").uplink is fabric.route("ada", COORDINATOR).uplink
    assert fabric.route("ben", "ada").later[-1] is fabric.route(COORDINATOR, "ada").later[-1]
    assert fabric.route("ada", "ben").uplink.bucket.rate == 1e6
    assert fabric.route("ben", "ada").later[-1].rate == 1e7


def test_a_shared_pipe_is_one_line_for_both_ways(fabric):
    assert fabric.route("carl", "ada").uplink.bucket is fabric.route("ada", "carl").later[-1]
    assert fabric.route("carl", "ada").uplink.bucket.rate == 5e6


def test_a_pair_of_sites_is_shared_by_all_their_hosts_each_way(fabric):
    trunk = fabric.route("ada", "carl").later[0]
    assert trunk.rate == 2.5e7
    assert fabric.route("ben", "carl").later[0] is trunk
    assert fabric.route("carl", "ben").later[0] is fabric.route("carl", "ada").later[0]
    assert fabric.route("carl", "ben").later[0] is not trunk
    assert len(fabric.route("ada", "ben").later) == 1


def test_pieces_and_windows_fit_the_slowest_line(fabric):
    slow, fast = fabric.route("ada", COORDINATOR), fabric.route("ben", COORDINATOR)
    assert slow.piece_bytes == LEAST_PIECE
    assert fabric.route("carl", COORDINATOR).piece_bytes == 10_000
    assert fast.piece_bytes == MOST_PIECE
    assert fast.window_bytes == MOST_WINDOW
    assert slow.window_bytes >= 1e6 * (slow.delay_s + slow.uplink.queue_s)


def test_cuts_are_of_one_way_or_of_both(fabric):
    fabric.cut("ada", "", "silent", both=False)
    assert fabric.route("ada", "carl").cut == fabric.route("ada", COORDINATOR).cut == "silent"
    assert fabric.route("carl", "ada").cut == "whole"
    fabric.cut("ada", "ben", "reset", both=True)
    assert fabric.route("ben", "ada").cut == "reset"
    assert len(fabric.cut("ada", "", "whole", both=True)) == 6
    assert {route.cut for route in fabric.routes.values()} == {"whole"}


def test_a_rate_changes_for_every_route(fabric):
    fabric.change_rate("ada", "16 Mbit/s", None, now=0.0)
    assert fabric.route("ada", "carl").slowest_rate == 2e6
    assert fabric.route("carl", "ada").later[-1].rate == 1e7
