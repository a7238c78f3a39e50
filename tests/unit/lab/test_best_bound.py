"""The bound over all pipelines, against periods reckoned by hand, and lines that several hosts share."""

import pytest

from brigade.coordinator.costs import Costs, NodeCosts
from brigade.lab.best_bound import best_period_s
from brigade.lab.bound import bound_of
from brigade.lab.scenario_spec import HostSpec, PairSpec
from brigade.wire.costs import BlockCost
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import NodeContact, StagePlan
from brigade.wire.run_spec import CompressionSpec

RAW = CompressionSpec(forward="raw", backward="raw")
KB = 1000


def block(seconds: float, output_bytes: int = 100 * KB) -> BlockCost:
    return BlockCost(
        forward_s=seconds / 3, backward_s=seconds * 2 / 3, optimizer_s=0.0, parameter_bytes=0, gradient_bytes=0,
        optimizer_bytes=0, saved_bytes=0, output_bytes=output_bytes,
    )  # fmt: skip


def costs(**seconds: tuple[float, ...]) -> Costs:
    nodes = {name: NodeCosts(blocks=tuple(map(block, row)), memory_bytes=1) for name, row in seconds.items()}
    return Costs(fingerprint="f", microbatch_samples=1, boundaries=(), nodes=nodes, links=())


def test_the_best_of_all_cuts_and_orders() -> None:
    hosts = (HostSpec(name="ada"), HostSpec(name="ben"))
    # ada is twice as fast: she takes two blocks of three, whichever
    assert best_period_s(costs(ada=(1, 1, 1), ben=(2, 2, 2)), RAW, hosts) == pytest.approx(2.0)


def test_a_line_that_is_too_narrow_leaves_everything_on_one_host() -> None:
    # a value takes 1 s at 100 kB/s: two stages would need 1 s a microbatch, one alone 0.6 s
    hosts = (HostSpec(name="ada", up="800 kbit/s"), HostSpec(name="ben"))
    fast = costs(ada=(0.2, 0.2, 0.2), ben=(2, 2, 2))
    assert best_period_s(fast, RAW, hosts) == pytest.approx(0.6)
    wide = (HostSpec(name="ada"), HostSpec(name="ben"))
    pair = PairSpec(between=("ada", "ben"), rate="800 kbit/s")
    assert best_period_s(costs(ada=(1, 1, 1), ben=(2, 2, 2)), RAW, wide, (pair,)) == pytest.approx(2.0)
    assert best_period_s(costs(ada=(0.4, 0.4), ben=(0.4, 0.4)), RAW, wide, (pair,)) == pytest.approx(0.8)


def test_hosts_that_the_scenario_does_not_know_give_no_bound() -> None:
    assert best_period_s(costs(eve=(1, 1)), RAW, (HostSpec(name="ada"),)) is None


def test_a_line_between_sites_limits_all_that_share_it() -> None:
    hosts = tuple(HostSpec(name=name, site=site) for name, site in (("ada", "x"), ("ben", "y"), ("cy", "x")))
    pair = PairSpec(between=("x", "y"), rate="8 Mbit/s", latency_ms=50)
    stages = tuple(
        StagePlan(contact=NodeContact(node_id=h.name, name=h.name, public_key="", endpoint=""), first_block=i, end_block=i + 1)
        for i, h in enumerate(hosts)
    )  # fmt: skip
    did = StageStatistics(
        forward_s=0.1, backward_s=0.1, forward_bytes=2 * 100 * KB, backward_bytes=2 * 50 * KB, tokens=20
    )
    bound = bound_of(stages, (did, did, did), 2, hosts, (pair,))
    assert bound is not None
    # From x to y go ada's activations and cy's gradients: (100 + 50) kB a microbatch at 1 MB/s
    assert bound.tokens_per_s == pytest.approx(10 / 0.15)
    assert bound.limited_by == "the line between ada and ben, 8 Mbit/s"
    assert [hop.round_trip_s for hop in bound.line.hops] == pytest.approx([0.1, 0.1])
