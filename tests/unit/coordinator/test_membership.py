"""Who is let in, who is refused and why, and who counts as gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import ScriptedNode, make_spec

from brigade.coordinator.run_events import AbortAsked, ConnectionClosed, HangUp, MessageArrived, TimePassed
from brigade.coordinator.run_members import Names, clean_name, data_endpoint
from brigade.wire import messages as m


@pytest.fixture
def world():
    return World(make_spec(nodes=5, gather_timeout_s=1e6))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"run_id": "another"}, "unknown_run"),
        ({"proof": "0" * 64}, "bad_proof"),
        ({"advertise": "0.0.0.0"}, "unreachable"),
        ({"advertise": "::"}, "unreachable"),
        ({"data_port": 0}, "unreachable"),
    ],
)
def test_a_refusal_has_a_code_and_a_reason(world, changes, code):
    node = world.node("ada")
    node.join(**changes)
    world.settle()
    assert node.refused.code == code
    assert node.refused.reason
    assert not world.membership.members
    assert any(line.startswith("ada   xx") for line in world.transcript), "the connection is closed"


def test_a_node_that_comes_when_the_run_is_over_is_told_so(world):
    world.end = None
    world.core.handle(AbortAsked(), world.now)
    node = world.node("ada")
    node.join()
    world.settle()
    assert node.refused.code == "run_over"


def test_two_nodes_of_one_name_are_told_apart(world):
    first, second = world.node("ada"), world.node("ada2")
    second.name = "ada"
    first.join()
    world.settle()
    second.join()
    world.settle()
    assert sorted(member.name for member in world.membership.members.values()) == ["ada", "ada-2"]


def test_a_copy_of_a_live_identity_is_refused_and_the_first_is_not_disturbed(world):
    world.join("ada")
    world.settle()
    first = world.nodes["ada"]
    copy = ScriptedNode(world, "ada", incarnation="2")
    copy.join()
    world.settle()
    world.tick()  # the first one sends its heartbeat
    world.settle()
    assert copy.refused.code == "identity_in_use"
    assert "must not share a node.key" in copy.refused.reason
    (member,) = world.membership.members.values()
    assert member.incarnation == first.incarnation
    assert member.control == first.control


def test_a_daemon_that_was_killed_and_started_again_is_in_after_three_seconds(world):
    world.join("ada")
    world.settle()
    world.nodes["ada"].silent = True  # killed; its connection still looks alive
    again = ScriptedNode(world, "ada", incarnation="2")
    again.join()
    world.nodes["again"] = again
    begun = world.now
    world.run(until=lambda w: again.pulse)
    assert world.now - begun <= 4.0
    assert again.refused is None
    (member,) = world.membership.members.values()
    assert member.incarnation == "2"


def test_a_daemon_whose_connection_broke_is_in_at_once(world):
    world.join("ada")
    world.settle()
    world.kill_node("ada")
    again = ScriptedNode(world, "ada", incarnation="2")
    again.join()
    world.settle()
    assert again.pulse


def test_whoever_says_no_hello_is_hung_up_on(world):
    node = world.node("ada")
    node.open = world.open(node, "control")
    for _ in range(9):
        world.tick()
    assert "ada   xx no Hello within 10 s" not in world.transcript
    world.tick()
    assert "ada   xx no Hello within 10 s" in world.transcript


def test_a_stranger_s_message_is_not_processed(world):
    node = world.node("ada")
    node.control = world.open(node, "control")
    node.say(m.StageLoaded(generation=0, stage=0, parameter_count=1))
    world.settle()
    assert "ada   xx only a node of this run may say that" in world.transcript


def test_a_closed_connection_counts_as_gone_after_its_grace_unless_the_heart_beats(world):
    world.join("ada")
    world.settle()
    node = world.nodes["ada"]
    world.handle(ConnectionClosed(connection=node.control, reason="gone"))
    for _ in range(10):
        world.tick()
    assert world.membership.members, "heartbeats still come"
    node.silent = True
    for _ in range(16):
        world.tick()
    assert not world.membership.members


def test_the_coordinator_s_own_sleep_is_not_held_against_the_nodes(world):
    world.join("ada", "bob")
    world.settle()
    world.now += 120.0  # the process was stopped; heartbeats wait unread
    world.handle(TimePassed())
    assert len(world.membership.members) == 2
    world.nodes["bob"].silent = True
    for _ in range(16):
        world.tick()
    assert [member.name for member in world.membership.members.values()] == ["ada"]


def test_a_heartbeat_of_nobody_is_hung_up_on(world):
    node = world.node("ada")
    connection = world.open(node, "pulse")
    event = MessageArrived(connection=connection, message=m.Pulse(number=1, incarnation="9"))
    assert [type(c) for c in world.core.handle(event, world.now)] == [HangUp]


def test_the_memory_that_an_owner_lends_is_what_counts(world):
    node = world.node("ada")
    node.join(memory_limit_bytes=1000)
    world.settle()
    (member,) = world.membership.members.values()
    assert member.device.memory_bytes == 1000


def test_a_remembered_node_needs_no_proof(world):
    world.join("ada")
    world.settle()
    world.kill_node("ada")
    again = ScriptedNode(world, "ada", incarnation="2")
    again.join(proof="")
    world.settle()
    assert again.pulse


@pytest.mark.parametrize(
    ("name", "clean"), [("ada", "ada"), ("", "node"), ("  a b\n", "a-b"), ("x" * 100, "x" * 40), ("[red]", "-red-")]
)
def test_names_can_stand_in_a_table(name, clean):
    assert clean_name(name) == clean


@given(
    st.lists(
        st.one_of(st.sampled_from(["a", "b", "a-2", "a-3", "a-12", "a-b"]), st.integers(0, 20)), min_size=1, max_size=60
    )
)
def test_names_are_the_first_that_are_free(steps):
    """Against the definition: the wanted name, or the first number that nobody has."""
    names, taken = Names(), []
    for step in steps:
        if isinstance(step, int):
            if taken:
                names.give_back(taken.pop(step % len(taken)))
            continue
        given = names.take(step)
        expected, number = step, 1
        while expected in taken:
            number += 1
            expected = f"{step}-{number}"
        assert given == expected
        taken.append(given)


def test_ipv6_hosts_get_brackets():
    assert data_endpoint("::1", 7) == "tcp://[::1]:7"
    assert data_endpoint("10.0.0.1", 7) == "tcp://10.0.0.1:7"
