"""Costs that are given instead of measured: written, read, held against nodes, and planned with."""

import dataclasses
import json
import math

import msgspec
import pytest
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import make_chain, make_device, make_spec

from brigade.coordinator.costs import (
    AccessCosts,
    Costs,
    GivenCosts,
    LinkCosts,
    NodeCosts,
    TrunkCosts,
    read_costs,
    record_costs,
)
from brigade.coordinator.planner import with_ways
from brigade.coordinator.run_events import MakePlan
from brigade.coordinator.run_file import read_run_file
from brigade.partition.line import Access
from brigade.partition.prediction import Handling, Surroundings, Trunk
from brigade.wire import messages as m
from brigade.wire.costs import BlockCost, LinkReport
from brigade.wire.errors import ConfigError, PlanError
from brigade.wire.plan import NodeContact

CHAIN = make_chain()
COST = BlockCost(
    forward_s=0.1,
    backward_s=0.2,
    optimizer_s=0.0,
    parameter_bytes=10,
    gradient_bytes=10,
    optimizer_bytes=20,
    saved_bytes=30,
    output_bytes=40,
)


def make_costs(*names: str, **changes: object) -> Costs:
    costs = Costs(
        fingerprint=CHAIN.fingerprint,
        microbatch_samples=2,
        boundaries=CHAIN.boundaries,
        tied=CHAIN.tied,
        nodes={
            name: NodeCosts(
                blocks=(COST,) * len(CHAIN.blocks),
                memory_bytes=10**6 + i,
                encode_s=0.1,
                decode_s=0.2,
                coordinator_way_s=0.01 * i,
            )
            for i, name in enumerate(names)
        },
        links=tuple(LinkCosts(source=a, target=b, rtt_s=0.05, bytes_per_s=1e6) for a in names for b in names if a != b),
        accesses={name: AccessCosts(up_bytes_per_s=2e6, down_bytes_per_s=None) for name in names},
        trunks=(TrunkCosts(bytes_per_s=3e6, links=((names[0], names[-1]),)),),
        handling=Handling(encode_s=1e-3),
    )
    return msgspec.structs.replace(costs, **changes)


def write_run(directory, batch_size=8):
    (directory / "text.txt").write_bytes(bytes(range(256)) * 40)
    (directory / "run.toml").write_text(
        'name = "toy"\n[model]\nkind = "gpt"\n[data]\nkind = "text"\npath = "text.txt"\nsequence_length = 16\n'
        f"[training]\nmax_steps = 1\nbatch_size = {batch_size}\nmicrobatches = 4\n"
    )
    return read_run_file(directory / "run.toml")


def make_order(costs: Costs, *names: str) -> MakePlan:
    given = GivenCosts(costs, "costs.json")
    contacts = tuple(NodeContact(node_id=f"id-{n}", name=n, public_key="", endpoint="") for n in names)
    return MakePlan(
        generation=0,
        contacts=contacts,
        devices={c.node_id: given.device(c.name, make_device("here")) for c in contacts},
        chains={c.node_id: given.chain(c.name, CHAIN) for c in contacts},
        links=given.links(contacts),
        train_samples=100,
        validation_samples=5,
        surroundings=given.surroundings(contacts),
    )


def test_what_a_plan_was_made_of_can_be_written_and_read_again(tmp_path) -> None:
    costs = make_costs("ada", "bob", "cyd")
    (tmp_path / "costs.json").write_bytes(costs.to_json())
    read = read_costs(tmp_path / "costs.json", write_run(tmp_path)).costs
    assert read.to_json() == costs.to_json()
    assert record_costs(make_order(read, "ada", "bob", "cyd"), 2).to_json() == costs.to_json()


def test_given_costs_are_told_by_node_id() -> None:
    order = make_order(make_costs("ada", "bob", "cyd"), "cyd", "ada")
    assert order.devices["id-cyd"].memory_bytes == 10**6 + 2
    assert order.chains["id-ada"].blocks[0] == COST
    assert (order.chains["id-ada"].encode_s, order.chains["id-ada"].decode_s) == (0.1, 0.2)
    assert set(order.links) == {("id-ada", "id-cyd"), ("id-cyd", "id-ada")}
    assert order.links["id-ada", "id-cyd"] == LinkReport(to="id-cyd", rtt_s=0.05, bytes_per_s=1e6)
    assert order.surroundings == Surroundings(
        accesses={name: Access(2e6, math.inf) for name in ("id-ada", "id-cyd")},
        trunks=(Trunk(3e6, frozenset({("id-ada", "id-cyd")})),),
        coordinator_way_s={"id-ada": 0.0, "id-cyd": 0.02},
        handling=Handling(encode_s=1e-3),
    )


def test_ways_to_the_coordinator_are_half_its_round_trips_unless_they_are_given() -> None:
    given = make_order(make_costs("ada", "bob"), "ada", "bob")
    assert with_ways(given, lambda _: 9.0) == given
    measured = dataclasses.replace(given, surroundings=Surroundings())
    told = {"id-ada": 0.08, "id-bob": None}
    assert with_ways(measured, told.get).surroundings.coordinator_way_s == {"id-ada": 0.04, "id-bob": 0.0}


def test_another_node_or_another_model_is_refused() -> None:
    given = GivenCosts(make_costs("ada", "bob"), "old/costs.json")
    with pytest.raises(PlanError, match=r"old/costs\.json says nothing of node eve; it knows ada, bob"):
        given.chain("eve", CHAIN)
    with pytest.raises(PlanError, match=r"another model than the one on node ada \(fingerprints f+ and beef\)"):
        given.chain("ada", dataclasses.replace(CHAIN, fingerprint="beef"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(microbatch_samples=3), "microbatch_samples is 3, but the run toy has 2 samples"),
        (lambda t: t.update(version=2), "version: "),
        (lambda t: t.pop("fingerprint"), "fingerprint is missing"),
        (lambda t: t["links"][0].update(rate=1), r"links\[0\].rate is not a known key"),
        (lambda t: t["links"][0].update(bytes_per_s=0), r"links\[0\]: a link without an error carries more than 0"),
        (lambda t: t["nodes"]["ada"].update(blocks=[]), r"nodes.ada.blocks: expected \d, one more than boundaries"),
        (lambda t: t["nodes"]["ada"]["blocks"][0].update(forward_s=-1), r"nodes.ada.blocks\[0\]: seconds and bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name_and_key(tmp_path, change, words) -> None:
    table = json.loads(make_costs("ada", "bob").to_json())
    change(table)
    (tmp_path / "costs.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=f"costs.json: .*{words}"):
        read_costs(tmp_path / "costs.json", write_run(tmp_path))


def test_a_file_that_is_none_is_refused(tmp_path) -> None:
    run_file = write_run(tmp_path)
    with pytest.raises(ConfigError, match=r"no\.json cannot be read: No such file"):
        read_costs(tmp_path / "no.json", run_file)
    (tmp_path / "torn.json").write_text('{"version": 1')
    with pytest.raises(ConfigError, match=r"torn\.json is no costs file"):
        read_costs(tmp_path / "torn.json", run_file)


def test_a_run_with_costs_measures_nothing_and_plans_with_them() -> None:
    world = World(make_spec(), costs=GivenCosts(make_costs("ada", "bob"), "costs.json"))
    orders = []
    world.refuse[MakePlan] = orders.append  # and the usual answer
    ada, bob = world.join("ada", "bob")
    assert world.run().exit_code == 0
    for node in (ada, bob):
        profiles = [order for order in node.orders if isinstance(order, m.ProfileBlocks)]
        assert [order.timed for order in profiles] == [False]
        assert not any(isinstance(order, m.MeasureLinks) for order in node.orders)
    (order,) = orders
    assert all(chain.blocks[0] == COST for chain in order.chains.values())
    assert len(order.links) == 2
    assert "what blocks and links cost stands in costs.json" in world.notes


def test_a_run_ends_when_the_costs_do_not_know_a_node() -> None:
    world = World(make_spec(), costs=GivenCosts(make_costs("ada", "eve"), "costs.json"))
    world.join("ada", "bob")
    end = world.run()
    assert (end.exit_code, end.state) == (1, "failed")
    assert "costs.json says nothing of node bob; it knows ada, eve" in end.reason
