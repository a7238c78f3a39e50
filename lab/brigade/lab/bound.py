"""The best that any schedule could do with the stages and links of a run, and what kept the run from it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from brigade.lab.fabric import Fabric, Route, make_fabric
from brigade.lab.quantities import parse_rate, show_rate
from brigade.lab.scenario_spec import HostSpec, LinkSpec, PairSpec
from brigade.lab.token_bucket import TokenBucket
from brigade.partition.closed_forms import capacity
from brigade.partition.line import Access, HopTime, Line, Server, StageTime, connect
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import StagePlan


@dataclass(frozen=True, slots=True)
class Bound:
    """Tokens a second that no schedule of these stages exceeds, the busiest server, and the line that it follows from.

    `name` tells what a person calls a server of the line.
    """

    tokens_per_s: float
    limited_by: str
    line: Line
    name: Callable[[Server], str]


def bound_of(
    stages: Sequence[StagePlan],
    totals: Sequence[StageStatistics],
    microbatches: int,
    hosts: Sequence[HostSpec],
    pairs: Sequence[PairSpec] = (),
    steps: int = 0,
) -> Bound | None:
    """Return the bound of what stages did in so many microbatches and steps; None before they have done anything.

    Compute is what was measured, also where other programs were in the way; rates are those that the scenario begins
    with. Latency, encoding and the optimizer are in the line and do not lengthen its period.
    """
    spec_of = {host.name: host for host in hosts}
    known = [spec_of.get(stage.contact.name) for stage in stages]
    links = [spec for spec in known if spec is not None]
    tokens = max((total.tokens for total in totals), default=0)
    if len(links) != len(stages) or not tokens or not microbatches:
        return None
    trunks = _Trunks(make_fabric(hosts, LinkSpec(), pairs), [link.name for link in links])
    activations = [total.forward_bytes / microbatches for total in totals[:-1]]
    gradients = [total.backward_bytes / microbatches for total in totals[1:]]
    line = connect(
        [_stage_time(k, len(stages), total, microbatches, steps) for k, total in enumerate(totals)],
        [access_of(link) for link in links],
        activations,
        gradients,
        [route.delay_s for route, _ in trunks.routes],
    )
    line = replace(
        line,
        hops=tuple(
            _over_trunks(hop, activation, gradient, *routes)
            for hop, activation, gradient, routes in zip(line.hops, activations, gradients, trunks.routes, strict=True)
        ),
        trunks=trunks.numbers,
    )
    without_codec = replace(line, stages=tuple(StageTime(each.forward_s, each.backward_s) for each in line.stages))
    best = capacity(without_codec)
    if best.period_s <= 0:
        return None

    def name(server: Server) -> str:
        return _name(server, links, trunks)

    return Bound(tokens / microbatches / best.period_s, name(best.limited_by), line, name)


def narrowest_rates(hosts: Sequence[HostSpec], pairs: Sequence[PairSpec]) -> Callable[[str, str], float]:
    """Return a function that tells, for two hosts, the bytes a second of the narrowest line from one to the other."""
    fabric = make_fabric(hosts, LinkSpec(), pairs)

    def rate_of(source: str, target: str) -> float:
        if source not in fabric.links or target not in fabric.links:
            return math.inf
        rate = fabric.route(source, target).slowest_rate
        return math.inf if rate is None else rate

    return rate_of


def trunk_rates(hosts: Sequence[HostSpec], pairs: Sequence[PairSpec]) -> Callable[[str, str], float]:
    """Return a function that tells the same of the lines between the accesses of two hosts of the scenario."""
    fabric = make_fabric(hosts, LinkSpec(), pairs)
    return lambda source, target: _trunk_rate(fabric.route(source, target))


class _Trunks:
    """The lines between the accesses of neighbours: numbered, because several hops may share one."""

    def __init__(self, fabric: Fabric, names: Sequence[str]) -> None:
        self.routes = [(fabric.route(near, far), fabric.route(far, near)) for near, far in pairwise(names)]
        buckets = [_trunk(route) for both in self.routes for route in both]
        self._distinct = list({id(bucket): bucket for bucket in buckets if bucket is not None}.values())
        self.numbers = tuple((self._number(there), self._number(back)) for there, back in self.routes)

    def _number(self, route: Route) -> int:
        bucket = _trunk(route)
        return next((number for number, each in enumerate(self._distinct) if each is bucket), -1)

    def show(self, number: int) -> str:
        """Return, for a person, which trunk that is."""
        route = next(route for both in self.routes for route in both if self._number(route) == number)
        return f"the line between {route.source} and {route.target}, {show_rate(self._distinct[number].rate)}"


def _trunk(route: Route) -> TokenBucket | None:
    """Return the narrowest line of a route between the accesses of its ends."""
    limited = [line for line in route.later[:-1] if line.rate is not None]
    return min(limited, key=lambda line: line.rate or math.inf, default=None)


def _over_trunks(hop: HopTime, activation: float, gradient: float, there: Route, back: Route) -> HopTime:
    forth, home = _trunk_rate(there), _trunk_rate(back)
    return replace(hop, activation_s=activation / forth, gradient_s=gradient / home, back_way_s=back.delay_s)


def _trunk_rate(route: Route) -> float:
    trunk = _trunk(route)
    return math.inf if trunk is None or trunk.rate is None else trunk.rate


def _stage_time(stage: int, stages: int, total: StageStatistics, microbatches: int, steps: int) -> StageTime:
    values = microbatches * ((stage > 0) + (stage < stages - 1))  # that are sent, and as many that come
    return StageTime(
        total.forward_s / microbatches,
        total.backward_s / microbatches,
        optimizer_s=total.optimizer_s / steps if steps else 0.0,
        encode_s=total.encode_s / values if values else 0.0,
        decode_s=total.decode_s / values if values else 0.0,
    )


def access_of(link: HostSpec) -> Access:
    """Return what a host can send and receive."""
    up, down = (math.inf if rate is None else rate for rate in (parse_rate(link.up), parse_rate(link.down)))
    shared = link.pipe == "shared"
    return Access(up, up if shared else down, shared)


def _name(server: Server, links: Sequence[HostSpec], trunks: _Trunks) -> str:
    if server.kind == "trunk":
        return trunks.show(server.index)
    link = links[server.index]
    match server.kind:
        case "uplink" | "pipe":
            return f"the {server.kind} of {link.name}, {show_rate(parse_rate(link.up))}"
        case "downlink":
            return f"the downlink of {link.name}, {show_rate(parse_rate(link.down))}"
        case _:
            return f"the device of {link.name}"
