"""Costs of a scenario without measuring: by hand for devices and lines, the same each time, and planned with."""

import pytest

from brigade.coordinator.costs import AccessCosts, read_costs
from brigade.lab.assumed import LOOPBACK_BYTES_PER_S, Assumption
from brigade.lab.scenario import read_scenario
from brigade.node.building import measure_device

RUN = """
name = "toy"
[model]
kind = "gpt"
vocab_size = 256
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
[data]
kind = "text"
path = "text.txt"
sequence_length = 8
[training]
max_steps = 3
batch_size = 8
microbatches = 4
[pipeline]
nodes = 3
"""
HOSTS = """
name = "toy"
[[host]]
name = "ada"
site = "here"
emulate = "3 s/GFLOP"
up = "8 Mbit/s"
down = "16 Mbit/s"
latency_ms = 10
memory = "1 GiB"
[[host]]
name = "bob"
site = "here"
emulate = "6 s/GFLOP"
[[host]]
name = "cyd"
site = "there"
emulate = "3 s/GFLOP"
up = "32 Mbit/s"
pipe = "shared"
[[pair]]
between = ["here", "there"]
latency_ms = 40
rate = "24 Mbit/s"
[coordinator]
latency_ms = 5
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    directory = tmp_path_factory.mktemp("toy")
    (directory / "text.txt").write_bytes(bytes(range(32)) * 100)
    (directory / "run.toml").write_text(RUN)
    (directory / "scenario.toml").write_text(HOSTS)
    return read_scenario(directory / "scenario.toml")


@pytest.fixture(scope="module")
def assumption(scenario):
    return Assumption(scenario)


def test_a_pretended_device_takes_what_its_operations_take(assumption) -> None:
    costs = assumption.costs()
    embedding, layer, *_ = costs.nodes["ada"].blocks
    linear, attention = 2 * 2 * 8 * 12 * 16 * 16, 2 * 2 * 2 * 2 * 8 * 8 * 8
    assert layer.forward_s == pytest.approx(3e-9 * (linear + attention), rel=0.01)
    assert layer.backward_s == pytest.approx(2 * layer.forward_s)
    assert (embedding.forward_s, layer.optimizer_s) == (0, 0), "an embedding multiplies nothing"
    for slow, fast in zip(costs.nodes["bob"].blocks, costs.nodes["ada"].blocks, strict=True):
        assert slow.forward_s == pytest.approx(2 * fast.forward_s)
        assert slow.output_bytes == fast.output_bytes
    assert layer.output_bytes == 2 * 8 * 16 * 4
    assert costs.nodes["ada"].memory_bytes == 2**30


def test_lines_are_those_of_the_scenario(assumption) -> None:
    costs = assumption.costs()
    links = {(link.source, link.target): link for link in costs.links}
    assert len(links) == 6
    assert links["ada", "bob"].bytes_per_s == pytest.approx(1e6), "the uplink"
    assert links["bob", "ada"].bytes_per_s == pytest.approx(2e6), "the downlink"
    assert links["bob", "cyd"].bytes_per_s == pytest.approx(3e6), "the line between the sites"
    assert links["ada", "bob"].rtt_s == pytest.approx(0.02)
    assert links["ada", "cyd"].rtt_s == pytest.approx(0.08)
    assert costs.accesses["ada"] == AccessCosts(up_bytes_per_s=1e6, down_bytes_per_s=2e6)
    assert costs.accesses["bob"] == AccessCosts(up_bytes_per_s=None, down_bytes_per_s=None)
    assert costs.accesses["cyd"] == AccessCosts(up_bytes_per_s=4e6, down_bytes_per_s=4e6, half_duplex=True)
    assert {frozenset(trunk.links) for trunk in costs.trunks} == {
        frozenset({("ada", "cyd"), ("bob", "cyd")}),
        frozenset({("cyd", "ada"), ("cyd", "bob")}),
    }
    assert costs.nodes["ada"].coordinator_way_s == pytest.approx(0.015)
    assert max(link.bytes_per_s for link in costs.links) <= LOOPBACK_BYTES_PER_S


def test_the_same_scenario_gives_the_same_costs(scenario, assumption) -> None:
    assert Assumption(scenario).costs().to_json() == assumption.costs().to_json()


def test_costs_follow_what_has_become_of_hosts(assumption) -> None:
    before, now = assumption.costs(), assumption.costs({"ada": 4.0}, {"ada": ("4 Mbit/s", None)})
    assert now.nodes["ada"].blocks[1].forward_s == pytest.approx(4 * before.nodes["ada"].blocks[1].forward_s)
    assert now.nodes["bob"] == before.nodes["bob"]
    assert now.accesses["ada"] == AccessCosts(up_bytes_per_s=5e5, down_bytes_per_s=2e6)


def test_a_node_takes_the_costs_for_its_own(scenario, assumption, tmp_path) -> None:
    (tmp_path / "costs.json").write_bytes(assumption.costs().to_json())
    given = read_costs(tmp_path / "costs.json", scenario.run)
    reported = measure_device(scenario.run.spec, scenario.run.data.inputs, "cpu", timed=False)
    assert sum(block.forward_s for block in reported.blocks) == 0
    chain = given.chain("bob", reported)
    assert chain.blocks == given.costs.nodes["bob"].blocks
    assert chain.boundaries == reported.boundaries == given.costs.boundaries
