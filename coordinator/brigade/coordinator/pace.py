"""What sets the pace of a run, in one sentence, from what its stages say of every step and from the survey of links."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from brigade.partition.limits import Pace, find_limit
from brigade.partition.line import HopTime, Line, Server, StageTime
from brigade.wire.costs import LinkReport
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import Plan

Links = Mapping[tuple[str, str], LinkReport]  # by node id: from, to


def describe_limit(
    plan: Plan, totals: Sequence[StageStatistics], links: Links, steps: int, step_s: float | None
) -> str:
    """Return what limits a run whose stages did so many steps under this plan; empty before they did any.

    `step_s` is what a step usually takes. A link that was not measured counts as fast.
    """
    if steps < 1 or step_s is None:
        return ""
    microbatches = steps * plan.microbatches
    last = len(plan.stages) - 1
    line = Line(
        stages=tuple(
            StageTime(
                total.forward_s / microbatches,
                total.backward_s / microbatches,
                optimizer_s=total.optimizer_s / steps,
                encode_s=total.encode_s / microbatches / max(1, (k > 0) + (k < last)),
                decode_s=total.decode_s / microbatches / max(1, (k > 0) + (k < last)),
            )
            for k, total in enumerate(totals)
        ),
        hops=tuple(
            _hop(_link(plan, links, k, k + 1), _link(plan, links, k + 1, k), near, far, microbatches)
            for k, (near, far) in enumerate(pairwise(totals))
        ),
    )
    gated_s = min(total.gated_s for total in totals) / steps  # of the stage that is usually the last
    pace = Pace(
        step_s=step_s,
        microbatches=plan.microbatches,
        schedule=plan.schedule,
        norm_round_s=gated_s,
        overlapping=plan.versions > 1,
        warm_ups=plan.warm_ups,
    )
    limit = find_limit(line, pace, lambda server: _name(server, plan, links))
    return limit.text if limit else ""


def _link(plan: Plan, links: Links, sender: int, receiver: int) -> LinkReport | None:
    ids = plan.stages[sender].contact.node_id, plan.stages[receiver].contact.node_id
    link = links.get(ids)
    return link if link is not None and not link.error and link.bytes_per_s > 0 else None


def _hop(
    there: LinkReport | None, back: LinkReport | None, near: StageStatistics, far: StageStatistics, microbatches: int
) -> HopTime:
    rates = [link.bytes_per_s if link else math.inf for link in (there, back)]
    ways = [link.rtt_s / 2 if link else 0.0 for link in (there, back)]
    activation_s, gradient_s = (
        size / microbatches / rate for size, rate in zip((near.forward_bytes, far.backward_bytes), rates, strict=True)
    )
    return HopTime(activation_s, gradient_s, *ways)


def _name(server: Server, plan: Plan, links: Links) -> str:
    if server.kind == "compute":
        return f"the device of {plan.stages[server.index].contact.name}"
    ends = (server.index, server.index + 1) if server.kind == "activations" else (server.index + 1, server.index)
    sender, receiver = (plan.stages[k].contact.name for k in ends)
    link = _link(plan, links, *ends)
    assert link is not None  # one that was not measured takes no time
    return f"the link from {sender} to {receiver}, {link.bytes_per_s * 8 / 1e6:.3g} Mbit/s"
