"""Who is measured of a crowd, in which order, and what a node that goes changes about it."""

from collections.abc import Iterable
from dataclasses import replace

from tests.unit.coordinator.scripted_node import INPUTS, key_of, make_chain, make_device

from brigade.coordinator.run_events import Tell
from brigade.coordinator.run_members import Member
from brigade.coordinator.run_survey import MOST_CANDIDATES, MOST_LINKED, Survey, choose_candidates
from brigade.wire.costs import ChainReport, LinkReport
from brigade.wire.messages import LinksMeasured, MeasureLinks, ProfileBlocks
from brigade.wire.plan import Boundary


def make_members(count: int, host: str = "") -> list[Member]:
    return [
        Member(
            node_id=f"id-{number}",
            name=f"n{number}",
            public_key=key_of(f"n{number}"),
            endpoint=f"tcp://10.0.0.1:{number + 1}",
            incarnation="1",
            device=make_device(host or f"host-{number}"),
            control=number,
            heard_at=0.0,
        )
        for number in range(count)
    ]


def slower_chain(number: int, blocks: int) -> ChainReport:
    """A chain that takes longer the larger the number is."""
    chain = make_chain()
    block = replace(chain.blocks[0], forward_s=1.0 + number)
    boundaries: tuple[Boundary, ...] = (INPUTS,) * (blocks - 1)
    return replace(chain, blocks=(block,) * blocks, boundaries=boundaries)


def told(commands: Iterable[object]) -> dict[int, object]:
    return {command.connection: command.message for command in commands if isinstance(command, Tell)}


def profile(survey: Survey, blocks: int) -> None:
    orders = told(survey.begin())
    while orders:
        number, order = orders.popitem()
        assert isinstance(order, ProfileBlocks)
        member = next(member for member in survey.members if member.control == number)
        orders |= told(survey.take_profile(member, slower_chain(number, blocks)))


def answer(order: object) -> LinksMeasured:
    assert isinstance(order, MeasureLinks)
    return LinksMeasured(links=tuple(LinkReport(to=c.node_id, rtt_s=0.01, bytes_per_s=1e6) for c in order.to))


def test_accelerators_come_first_then_who_has_been_there_longest() -> None:
    members = make_members(3 * MOST_CANDIDATES)
    members[-1].device = replace(members[-1].device, kind="cuda")
    chosen = choose_candidates(members)
    assert chosen == (members[-1], *members[: MOST_CANDIDATES - 1])
    assert choose_candidates(members[:5]) == tuple(members[:5])


def test_a_crowd_times_its_links_in_pairs_and_only_the_fastest_do() -> None:
    survey = Survey(make_members(MOST_CANDIDATES), INPUTS)
    profile(survey, blocks=200)
    left_out = survey.keep_fastest()
    assert {member.control for member in survey.members} == set(range(MOST_LINKED))
    assert {member.control for member in left_out} == set(range(MOST_LINKED, MOST_CANDIDATES))
    orders, most = told(survey.begin_links()), 0
    while orders:
        most = max(most, len(orders))
        number, order = orders.popitem()
        orders |= told(survey.take_links(survey.members[number], answer(order)))
    assert most == MOST_LINKED // 2
    assert survey.linked
    assert len(survey.links) == MOST_LINKED * (MOST_LINKED - 1)


def test_a_line_needs_no_more_nodes_than_blocks() -> None:
    survey = Survey(make_members(40), INPUTS)
    profile(survey, blocks=20)
    assert len(survey.keep_fastest()) == 20
    small = Survey(make_members(12), INPUTS)
    profile(small, blocks=4)
    assert not small.keep_fastest(), "a small fleet is measured as a whole"


def test_the_next_node_of_a_machine_has_its_turn_when_one_goes() -> None:
    members = make_members(3, host="shared")
    survey = Survey(members, INPUTS)
    assert list(told(survey.begin())) == [0]
    assert not survey.drop(members[1]), "it was not its turn"
    assert list(told(survey.drop(members[0]))) == [2]
    survey.take_profile(members[2], slower_chain(2, 4))
    assert survey.profiled


def test_rounds_go_on_without_a_node_that_goes() -> None:
    members = make_members(3)
    survey = Survey(members, INPUTS)
    profile(survey, blocks=4)
    orders = told(survey.begin_links())
    assert list(orders) == [0]
    (order,) = told(survey.drop(members[0])).values()
    assert isinstance(order, MeasureLinks)
    assert [contact.name for contact in order.to] == ["n2"], "nobody measures who has gone"
    assert told(survey.take_links(members[0], answer(orders[0]))) == {}, "nor is its answer taken"
    assert not survey.links
    (last,) = told(survey.take_links(members[1], answer(order))).values()
    survey.take_links(members[2], answer(last))
    assert survey.linked
    assert set(survey.links) == {("id-1", "id-2"), ("id-2", "id-1")}


def test_a_link_to_a_node_that_went_while_it_was_timed_is_not_kept() -> None:
    members = make_members(3)
    survey = Survey(members, INPUTS)
    profile(survey, blocks=4)
    (order,) = told(survey.begin_links()).values()
    survey.drop(members[2])
    survey.take_links(members[0], answer(order))
    assert set(survey.links) == {("id-0", "id-1")}


def test_what_was_measured_of_a_node_that_goes_is_forgotten() -> None:
    members = make_members(3)
    survey = Survey(members, INPUTS)
    profile(survey, blocks=4)
    orders = told(survey.begin_links())
    while orders:
        number, order = orders.popitem()
        orders |= told(survey.take_links(members[number], answer(order)))
    survey.drop(members[1])
    assert set(survey.links) == {("id-0", "id-2"), ("id-2", "id-0")}
    assert set(survey.chains) == {"id-0", "id-2"}


def test_the_wait_is_as_long_as_the_round_may_take() -> None:
    """One node after the other has all its links to time, each with its own deadline."""
    survey = Survey(make_members(12), INPUTS)
    profile(survey, blocks=4)
    (order,) = told(survey.begin_links()).values()
    assert isinstance(order, MeasureLinks)
    assert len(order.to) == 11
    assert survey.links_limit_s > 11 * order.deadline_s
