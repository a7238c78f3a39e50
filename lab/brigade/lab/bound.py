"""The best that any schedule could do with the stages and links of a run: its busiest device or line sets the pace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brigade.lab.quantities import parse_rate, show_rate
from brigade.lab.scenario_spec import HostSpec
from brigade.partition.closed_forms import capacity
from brigade.partition.line import Access, Server, StageTime, connect
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import StagePlan


@dataclass(frozen=True, slots=True)
class Bound:
    """Tokens a second that no schedule of these stages exceeds, and what allows no more."""

    tokens_per_s: float
    limited_by: str


def bound_of(
    stages: Sequence[StagePlan],
    totals: Sequence[StageStatistics],
    microbatches: int,
    hosts: Sequence[HostSpec],
) -> Bound | None:
    """Return the bound of what stages did in so many microbatches; None before they have done anything.

    Compute is what was measured, also where other programs were in the way; rates are those that the scenario begins
    with. Latency does not lengthen a period.
    """
    spec_of = {host.name: host for host in hosts}
    known = [spec_of.get(stage.contact.name) for stage in stages]
    links = [spec for spec in known if spec is not None]
    tokens = max((total.tokens for total in totals), default=0)
    if len(links) != len(stages) or not tokens or not microbatches:
        return None
    line = connect(
        [StageTime(t.forward_s / microbatches, t.backward_s / microbatches) for t in totals],
        [_access(link) for link in links],
        [total.forward_bytes / microbatches for total in totals[:-1]],
        [total.backward_bytes / microbatches for total in totals[1:]],
        [0.0] * (len(stages) - 1),
    )
    best = capacity(line)
    if best.period_s <= 0:
        return None
    return Bound(tokens / microbatches / best.period_s, _name(best.limited_by, links))


def _access(link: HostSpec) -> Access:
    up, down = (math.inf if rate is None else rate for rate in (parse_rate(link.up), parse_rate(link.down)))
    shared = link.pipe == "shared"
    return Access(up, up if shared else down, shared)


def _name(server: Server, links: Sequence[HostSpec]) -> str:
    link = links[server.index]
    match server.kind:
        case "uplink" | "pipe":
            return f"the {server.kind} of {link.name}, {show_rate(parse_rate(link.up))}"
        case "downlink":
            return f"the downlink of {link.name}, {show_rate(parse_rate(link.down))}"
        case _:
            return f"the device of {link.name}"
