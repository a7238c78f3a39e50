"""Namespaces do what the links of a scenario say: rate, delay, sharing, cuts. Real TCP, real time.

A machine that others use too is late now and then, never early: of several tries the one that comes nearest counts.
"""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from tests.shaped.namespace_lab import NamespaceLab, namespaces, unsupported
from tests.shaped.relay_lab import host, receive, round_trip_s, transfer_s
from tests.shaped.test_relay import DELAY_TOLERANCE_S, RATE_TOLERANCE, best_ratio, silent

from brigade.lab.namespace_network import FRAME_BYTES, PAYLOAD_BYTES
from brigade.lab.namespace_record import RECORDS
from brigade.lab.relay_orders import ChangeRate, Corrupt, Cut, Heal
from brigade.lab.scenario_spec import PairSpec
from brigade.wire.errors import BrigadeError

REASON = unsupported()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
ROOT = Path(__file__).parents[2]
TRIES = 12


@pytest.fixture(autouse=True)
def measured_at_once():
    """Let this process be woken as soon as something has come: it is the network that is measured."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -15)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


def near(value):
    return pytest.approx(value, abs=RATE_TOLERANCE)


def best_one_way_s(pair):
    return min(round_trip_s(*pair) for _ in range(3 * TRIES)) / 2


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "bytes_per_s"), [("10 Mbit/s", 1.25e6), ("80 Mbit/s", 1e7), ("400 Mbit/s", 5e7), ("1 Gbit/s", 1.25e8)]
)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_rate_is_what_full_packets_carry(rate, bytes_per_s, direction):
    link = {direction: rate, "queue_ms": 60}  # enough for the line to go on when this machine pauses
    ada, ben = (host("ada", **link), host("ben")) if direction == "up" else (host("ada"), host("ben", **link))
    size = int(bytes_per_s / 2)
    with NamespaceLab(ada, ben) as lab:
        pair = lab.connect("ada", "ben")
        assert best_ratio(lambda: transfer_s([pair], size)[0], size / bytes_per_s, TRIES) == near(1)


@pytest.mark.parametrize(("rate", "bytes_per_s", "latency_ms"), [("80 Mbit/s", 1e7, 6.0), ("1 Gbit/s", 1.25e8, 0.5)])
def test_the_rate_is_right_over_a_long_way(rate, bytes_per_s, latency_ms):
    size = int(bytes_per_s)
    with NamespaceLab(host("ada", up=rate, latency_ms=latency_ms), host("ben", latency_ms=latency_ms)) as lab:
        pair = lab.connect("ada", "ben")
        transfer_s([pair], size // 2)  # slow start is over
        expected_s = size / bytes_per_s + 2 * latency_ms / 1000
        assert best_ratio(lambda: transfer_s([pair], size)[0], expected_s, TRIES) == near(1)


def test_one_uplink_is_shared_by_all_connections_of_its_host():
    size, bytes_per_s = 3_000_000, 5e6
    with NamespaceLab(host("ada", up="40 Mbit/s"), host("ben"), host("carl")) as lab:
        pairs = [lab.connect("ada", "ben"), lab.connect("ada", "carl")]
        ends = []

        def both():
            ends[:] = transfer_s(pairs, size)
            return max(ends)

        assert best_ratio(both, 2 * size / bytes_per_s, TRIES) == near(1)
    assert min(ends) > 0.6 * max(ends), "both had their part all the time"


def test_one_downlink_is_shared_by_all_who_send_to_its_host():
    size = 2_000_000
    with NamespaceLab(host("ada"), host("ben"), host("carl", down="40 Mbit/s")) as lab:
        pairs = [lab.connect("ada", "carl"), lab.connect("ben", "carl")]
        assert best_ratio(lambda: max(transfer_s(pairs, size)), 2 * size / 5e6, TRIES) == near(1)


def test_a_shared_pipe_carries_both_directions_together():
    size, wire_per_s = 1_000_000, 5e6 * FRAME_BYTES / PAYLOAD_BYTES
    with NamespaceLab(host("ada"), host("carl", up="40 Mbit/s", down="40 Mbit/s", pipe="shared")) as lab:
        forth = lab.connect("ada", "carl")

        def ratio(pairs):
            """Return how long it took against what passed: acknowledgements take their part of the pipe too."""
            before = lab.wire_bytes("carl", "pipe")
            took_s = max(transfer_s(pairs, size))
            return took_s / ((lab.wire_bytes("carl", "pipe") - before) / wire_per_s)

        assert best_ratio(lambda: ratio([forth]), 1.0, TRIES) == near(1)
        assert best_ratio(lambda: ratio([forth, forth[::-1]]), 1.0, TRIES) == near(1)
        assert max(transfer_s([forth, forth[::-1]], size)) > 0.97 * 2 * size / 5e6


def test_two_sites_share_what_joins_them_each_way():
    size = 2_000_000
    hosts = (host("ada", site="bonn"), host("ben", site="bonn"), host("carl", site="rome"), host("dora", site="rome"))
    with NamespaceLab(*hosts, pairs=[PairSpec(between=("bonn", "rome"), rate="40 Mbit/s", latency_ms=4)]) as lab:
        pairs = [lab.connect("ada", "carl"), lab.connect("ben", "dora")]
        transfer_s(pairs, size // 4)
        assert best_ratio(lambda: max(transfer_s(pairs, size)), 2 * size / 5e6 + 0.004, TRIES) == near(1)
        opposite = [pairs[0], pairs[1][::-1]]
        assert max(transfer_s(opposite, size)) < 0.8 * 2 * size / 5e6, "each way has the rate for itself"
        beside = lab.connect("ada", "ben")
        assert transfer_s([beside], size)[0] < 0.5 * size / 5e6, "not everything passes the trunk"


def test_a_rate_changes_while_bytes_flow():
    size = 1_000_000
    with NamespaceLab(host("ada", up="400 Mbit/s"), host("ben")) as lab:
        pair = lab.connect("ada", "ben")
        transfer_s([pair], size)
        lab.order(ChangeRate("ada", up="20 Mbit/s"))
        assert best_ratio(lambda: transfer_s([pair], size)[0], size / 2.5e6, TRIES) == near(1)
        lab.order(ChangeRate("ada", up="unlimited"))
        assert transfer_s([pair], size)[0] < 0.5 * size / 2.5e6
        lab.order(ChangeRate("ben", down="40 Mbit/s"))
        assert best_ratio(lambda: transfer_s([pair], size)[0], size / 5e6, TRIES) == near(1)


# --- delay and loss ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_ms", [0.0, 0.1, 5.0, 40.0])
def test_the_delay_is_right(latency_ms):
    with NamespaceLab(host("ada", up="80 Mbit/s", latency_ms=latency_ms), host("ben", latency_ms=latency_ms)) as lab:
        pair = lab.connect("ada", "ben")
        one_way_s = best_one_way_s(pair)
        assert (lab.links.ways() == ()) == (latency_ms == 0), "what has no delay needs no delay line"
    assert one_way_s == pytest.approx(2 * latency_ms / 1000, abs=DELAY_TOLERANCE_S)
    assert one_way_s >= 2 * latency_ms / 1000 - 0.0001, "nothing is early"


def test_a_pair_has_a_delay_of_its_own():
    pairs = [PairSpec(between=("ada", "carl"), latency_ms=20)]
    with NamespaceLab(host("ada"), host("ben"), host("carl"), pairs=pairs) as lab:
        for other, latency_s in (("ben", 0.0), ("carl", 0.02)):
            pair = lab.connect("ada", other)
            one_way_s = best_one_way_s(pair)
            assert one_way_s == pytest.approx(latency_s, abs=DELAY_TOLERANCE_S)


def test_packets_are_lost_in_earnest_and_tcp_repeats_them():
    count, loss = 250, 0.2  # so many fit into the receiver's buffer
    with NamespaceLab(host("ada", loss=loss), host("ben")) as lab, ExitStack() as stack:
        place = lab.places["ben"]
        with lab.on("ben"):
            receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            receiver.bind((place.inner_host, place.ports[0]))
        with lab.on("ada"):
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        got = 0
        for _ in range(count):
            sender.sendto(b"?", (place.outer_host, place.ports[0]))
        while not silent(receiver, 1.0):
            got += len(receiver.recv(10))
        spread = (count * loss * (1 - loss)) ** 0.5
        assert count - got == pytest.approx(count * loss, abs=5 * spread)
        accepted, delivered = lab.counts()["ada", "ben"]
        assert accepted - delivered == pytest.approx((accepted / count) * (count - got), rel=0.5)
        near_end, far_end = lab.connect("ada", "ben")
        data = bytes(range(256)) * 200
        near_end.sendall(data)
        assert receive(far_end, len(data)) == data


# --- cuts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_ms", [0.0, 5.0])
def test_a_cut_is_silent_and_what_was_sent_comes_after_it(latency_ms):
    with NamespaceLab(host("ada", latency_ms=latency_ms), host("ben")) as lab:
        here, there = lab.connect("ada", "ben")
        round_trip_s(here, there)
        lab.order(Cut("ada"))
        here.sendall(b"there")
        there.sendall(b"back")
        assert silent(here)
        assert silent(there)
        with pytest.raises(TimeoutError):
            lab.dial("ada", "ben", timeout_s=0.2)
        lab.order(Heal("ada"))
        assert receive(there, 5) == b"there"
        assert receive(here, 4) == b"back"
        round_trip_s(*lab.connect("ada", "ben"))


def test_a_one_way_cut_delivers_nothing_while_the_other_way_lives():
    with NamespaceLab(host("ada"), host("ben"), host("carl")) as lab:
        here, there = lab.connect("ada", "ben")
        other = lab.connect("ada", "carl")
        round_trip_s(here, there)
        lab.order(Cut("ada", "ben", both=False))
        here.sendall(b"nobody hears this")
        there.sendall(b"heard")
        assert receive(here, 5) == b"heard"
        assert silent(there)
        round_trip_s(*other)
        lab.order(Heal("ada", "ben"))
        assert receive(there, 6) == b"nobody"


def test_a_reset_ends_connections_and_refuses_new_ones_until_it_is_healed():
    with NamespaceLab(host("ada"), host("ben"), host("carl")) as lab:
        ends, other = lab.connect("ada", "ben"), lab.connect("ada", "carl")
        round_trip_s(*ends)
        lab.order(Cut("ben", state="reset"))
        for end in ends:
            with pytest.raises((ConnectionResetError, ConnectionAbortedError)):
                end.recv(1)
        for source, target in (("ada", "ben"), ("ben", "ada")):
            began = time.monotonic()
            with pytest.raises(OSError, match="No route to host"):
                lab.dial(source, target)
            assert time.monotonic() - began < 5, "it is refused at once"
        round_trip_s(*other)
        lab.order(Heal("ben"))
        round_trip_s(*lab.connect("ada", "ben"))


def test_nothing_is_corrupted():
    with NamespaceLab(host("ada"), host("ben")) as lab, pytest.raises(BrigadeError, match="TCP repeats"):
        lab.order(Corrupt("ada", "ben"))


# --- what is there, and that it goes ----------------------------------------------------------------------------------


def test_bytes_are_counted_by_route():
    size = 1_000_000
    with NamespaceLab(host("ada", latency_ms=1), host("ben"), host("carl")) as lab:
        for target in ("ben", "carl"):
            transfer_s([lab.connect("ada", target)], size)
        transfer_s([lab.connect("ben", "carl")], 2 * size)
        counts = lab.counts()
    for route, sent in ((("ada", "ben"), size), (("ada", "carl"), size), (("ben", "carl"), 2 * size)):
        accepted, delivered = counts[route]
        assert accepted == delivered
        assert sent < delivered < 1.1 * sent
        assert counts[route[::-1]][0] < 0.1 * sent


def test_any_program_can_be_started_on_a_host():
    with NamespaceLab(host("ada"), host("ben")) as lab:
        place = lab.places["ben"]
        bind = f"import socket; socket.create_server(({place.inner_host!r}, 7000))"
        for name, exit_code in (("ben", 0), ("ada", 1)):
            command = lab.links.command(name, [sys.executable, "-c", bind])
            assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == exit_code


def test_nothing_is_left_behind():
    with NamespaceLab(host("ada", latency_ms=1, up="10 Mbit/s", pipe="shared"), host("ben")) as lab:
        lab.connect("ada", "ben")
        hub, delay_line = lab.links.hub, lab.links.delay_line.process.pid
        assert {hub, f"{hub}-ada", f"{hub}-ben", f"{hub}-coordinator"} <= namespaces()
        assert psutil.pid_exists(delay_line)
        assert (RECORDS / hub).is_dir()
    assert not [name for name in namespaces() if name.startswith(hub)]
    assert not psutil.pid_exists(delay_line)
    assert not (RECORDS / hub).exists()


DYING = """
import os, signal
from tests.shaped.namespace_lab import NamespaceLab
from tests.shaped.relay_lab import host
with NamespaceLab(host("ada", latency_ms=1), host("ben")) as lab:
    print(lab.links.hub, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_lab_has_left_is_taken_down_by_the_next_and_nothing_else_is():
    with NamespaceLab(host("ada")) as alive:
        done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, check=False, cwd=ROOT)
        hub = done.stdout.strip()
        assert hub, done.stderr
        stranger = f"{hub}-stranger"  # looks like one of it, and nobody has written it down
        subprocess.run(["ip", "netns", "add", stranger], check=True)
        try:
            with NamespaceLab(host("ada")):
                assert {name for name in namespaces() if name.startswith(hub)} == {stranger}
                assert not (RECORDS / hub).exists()
                assert alive.links.hub in namespaces()
        finally:
            subprocess.run(["ip", "netns", "del", stranger], check=True)


def test_a_network_that_cannot_be_made_leaves_nothing_behind(monkeypatch):
    from brigade.lab import namespace_network

    before = set(RECORDS.iterdir()) if RECORDS.is_dir() else set()
    monkeypatch.setattr(namespace_network, "CONGESTION", "no-such-thing")
    with pytest.raises(BrigadeError, match=r"ip -n lab.* -batch"), NamespaceLab(host("ada")):
        pass
    own = RECORDS / f"lab{psutil.Process().pid}"
    assert own in before or not own.exists()
    assert own.name not in namespaces()
