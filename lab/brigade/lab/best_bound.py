"""The best that any pipeline over the hosts of a run could do, whatever it chose: which of them, order and cuts."""

import math
from collections.abc import Sequence

import numpy as np

from brigade.compression.spec import ratio
from brigade.coordinator.costs import Costs
from brigade.lab.bound import access_of, trunk_rates
from brigade.lab.scenario_spec import HostSpec, PairSpec
from brigade.partition.period_bound import best_period
from brigade.wire.errors import PlanError
from brigade.wire.run_spec import CompressionSpec


def best_period_s(
    costs: Costs, codecs: CompressionSpec, hosts: Sequence[HostSpec], pairs: Sequence[PairSpec] = ()
) -> float | None:
    """Return the seconds a microbatch below which no pipeline comes; None where a node is no host of the scenario.

    Blocks cost what the last plan was made of, on the nodes that it could choose from; rates are those that the
    scenario begins with. A line that several hops would share is counted for each alone.
    """
    spec_of = {host.name: host for host in hosts}
    names = [name for name in costs.nodes if name in spec_of]
    if len(names) != len(costs.nodes) or not names:
        return None
    blocks = [costs.nodes[name].blocks for name in names]
    sizes = [block.output_bytes for block in blocks[0][:-1]]
    rate_of = trunk_rates(hosts, pairs)
    rates = np.array([[math.inf if a == b else rate_of(a, b) for b in names] for a in names])
    try:
        best = best_period(
            np.array([[block.forward_s + block.backward_s for block in row] for row in blocks]),
            [size / ratio(codecs.forward) for size in sizes],
            [size / ratio(codecs.backward) for size in sizes],
            [access_of(spec_of[name]) for name in names],
            rates if np.isfinite(rates).any() else None,
        )
    except PlanError:
        return None
    return best.period_s if best.period_s > 0 else None
