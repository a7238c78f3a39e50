"""Makes the plan of a run from what the nodes measured: which nodes, in which order, with which blocks."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from brigade.partition.cost_tables import Links, Measurements
from brigade.partition.course import GOOD_ENOUGH, Course, overlaps
from brigade.partition.fixed_order import NEAR, Split
from brigade.partition.order import rank_orders
from brigade.partition.prediction import (
    PLAIN,
    STEADY_STEPS,
    Surroundings,
    lay_course,
    predict_step_s,
    stage_of,
)
from brigade.partition.refusal import explain_refusal, format_blocks
from brigade.wire.costs import ChainReport, DeviceReport
from brigade.wire.errors import PlanError
from brigade.wire.plan import NodeContact, Plan, StagePlan
from brigade.wire.run_spec import PipelineSpec, RunSpec

WORTH = 1.03  # a stage more must make the step at least 3 % shorter
FINALISTS = 8  # orders for each number of stages that are run on paper, if that is
MOST_ACTIONS = 20_000  # of all stages that are run on paper together: some tenths of a second


@dataclass(frozen=True, slots=True)
class Proposal:
    """A split and the predicted seconds of a full step with it."""

    split: Split
    step_s: float


class Settled(NamedTuple):
    """What was found for one mode."""

    measured: Measurements
    proposals: list[Proposal]
    chosen: Proposal
    course: Course


def plan(
    run_id: str,
    generation: int,
    contacts: Sequence[NodeContact],
    devices: Mapping[str, DeviceReport],
    chains: Mapping[str, ChainReport],
    links: Links,
    spec: RunSpec,
    train_samples: int,
    validation_samples: int,
    codec_ratio: Callable[[str], float] = lambda _: 1.0,
    surroundings: Surroundings = PLAIN,
) -> Plan:
    """Return the plan with the shortest predicted step; the same for the same measurements, whoever came first.

    `devices` and `chains` are by node id, `links` by (from, to); `codec_ratio` tells how many times smaller a codec
    makes a boundary value, `surroundings` what blocks and links do not tell. Raises PlanError that says what is missing
    when no plan is possible.
    """
    contacts = sorted(contacts, key=lambda contact: (contact.name, contact.node_id))
    _check_measured(contacts, devices, chains)
    _check_counts(spec, len(contacts), len(chains[contacts[0].node_id].blocks), train_samples)
    microbatches = min(spec.training.microbatches, spec.training.batch_size, train_samples)

    def settle(pipeline: PipelineSpec) -> Settled:
        asked = replace(spec, pipeline=pipeline)
        measured = Measurements(contacts, devices, chains, links, asked, microbatches, codec_ratio)
        proposals = propose(measured, pipeline.stages, surroundings)
        if not proposals:
            raise PlanError(explain_refusal(measured, pipeline.stages))
        chosen = choose(proposals)
        return Settled(measured, proposals, chosen, lay_course(measured, chosen.split, surroundings))

    settled, why = _choose_mode(settle, spec.pipeline)
    measured, split, course = settled.measured, settled.chosen.split, settled.course
    return Plan(
        run_id=run_id,
        generation=generation,
        stages=_stages(measured, split, spec),
        schedule=course.schedule,
        microbatches=microbatches,
        train_samples=train_samples,
        validation_samples=validation_samples,
        boundaries=tuple(measured.chain.boundaries[cut - 1] for cut in split.cuts[1:-1]),
        tied=measured.chain.tied,
        period_s=settled.chosen.step_s / microbatches,
        reason=_reason(measured, settled.chosen, settled.proposals) + why,
        spares=tuple(contact for node, contact in enumerate(contacts) if node not in split.order),
        mode=course.mode,
        versions=course.versions,
        warm_ups=() if course.sizing is None else course.sizing.warm_ups,
        slack=0 if course.sizing is None else course.sizing.slack,
    )


def _choose_mode(settle: Callable[[PipelineSpec], Settled], pipeline: PipelineSpec) -> tuple[Settled, str]:
    """Return the plan of the mode that was asked for, or of the one that `auto` stands for, and what to say of it."""
    settled = settle(pipeline)
    if pipeline.mode == "stash":  # so many versions have to fit into memory, too
        settled = settle(replace(pipeline, mode="async", versions=settled.course.versions))
    share = f"{settled.course.efficiency:.0%} of what devices and links allow"
    if pipeline.mode == "auto":
        if settled.course.efficiency >= GOOD_ENOUGH:
            return settled, f"; exact, which reaches {share}"
        try:
            settled = settle(replace(pipeline, mode="async"))
        except PlanError as error:
            return settled, f"; exact, which reaches only {share}, because async does not fit: {error}"
        why = f"; async, because exact reaches only {share}"
    else:
        why = "" if pipeline.mode == "exact" else f"; {settled.course.mode} with {settled.course.versions} versions"
    remark = settled.course.remark
    return settled, why + (f", {settled.course.efficiency:.0%} of the best: {remark}" if remark else "")


def propose(measured: Measurements, stages: int | None, surroundings: Surroundings = PLAIN) -> list[Proposal]:
    """Return the best proposal for each number of stages that is possible, fewest stages first.

    Orders are ranked by a formula; the first few are decided by running the schedule on paper, which knows
    what latency does to it. What a bound rules out is not run; the neighbours of the choice are, to be told of.
    """
    ranked = rank_orders(measured.tables(), stages, FINALISTS)
    splits = [split for finalists in ranked.values() for split in finalists if _tied_stages_meet(measured, split)]
    splits.sort(key=lambda split: (split.estimate_s(measured.beats), len(split.order), split.order))
    found: dict[int, Proposal] = {}
    fastest, actions = math.inf, 0

    def run_on_paper(split: Split, limit_s: float) -> None:
        nonlocal fastest, actions
        best = found.get(len(split.order))
        if shortest_step_s(measured, split) > min(limit_s, best.step_s if best else math.inf):
            return
        actions += 2 * STEADY_STEPS * measured.microbatches * len(split.order)
        proposal = Proposal(split, predict_step_s(measured, split, surroundings))
        if best is None or (proposal.step_s, split.order) < (best.step_s, best.split.order):
            found[len(split.order)] = proposal
        fastest = min(fastest, proposal.step_s)

    for split in splits:
        if actions < MOST_ACTIONS:
            run_on_paper(split, fastest * WORTH)
    chosen = len(choose([found[count] for count in sorted(found)]).split.order) if found else 0
    for count in {chosen - 1, chosen + 1} - set(found):
        for split in [split for split in splits if len(split.order) == count][:1]:
            run_on_paper(split, math.inf)
    return [found[count] for count in sorted(found)]


def shortest_step_s(measured: Measurements, split: Split) -> float:
    """Return seconds that no step can do without.

    Every stage works through all microbatches; before the first and after the last of them lies all that is in front
    of the stage, unless steps overlap.
    """
    order, cuts = split.order, split.cuts
    bound = before_s = 0.0
    for k, node in enumerate(order):
        compute_s = sum(block.forward_s + block.backward_s for block in measured.blocks[node][cuts[k] : cuts[k + 1]])
        bound = max(bound, before_s + measured.microbatches * compute_s)
        if k + 1 < len(order):
            hop = measured.hop_time(node, order[k + 1], cuts[k + 1])
            if not overlaps(measured.pipeline):
                before_s += compute_s + hop.activation_s + hop.gradient_s + hop.round_trip_s
    return bound * (1 - 1e-9)  # sums in another order


def choose(proposals: Sequence[Proposal]) -> Proposal:
    """Return the proposal with the fewest stages that comes within 3 % of the fastest."""
    fastest = min(proposal.step_s for proposal in proposals)
    return next(proposal for proposal in proposals if proposal.step_s <= fastest * WORTH)


def _check_measured(
    contacts: Sequence[NodeContact], devices: Mapping[str, DeviceReport], chains: Mapping[str, ChainReport]
) -> None:
    if not contacts:
        raise PlanError("there is no node to plan for")
    for contact in contacts:
        if contact.node_id not in devices or contact.node_id not in chains:
            raise PlanError(f"node {contact.name} has not reported what it can do")
        if chains[contact.node_id].fingerprint != chains[contacts[0].node_id].fingerprint:
            raise PlanError(f"nodes {contacts[0].name} and {contact.name} have different models")


def _check_counts(spec: RunSpec, nodes: int, blocks: int, train_samples: int) -> None:
    stages = spec.pipeline.stages
    if stages is not None and stages > nodes:
        raise PlanError(f"pipeline.stages is {stages}, but there are {nodes} nodes, and a node holds one stage")
    if stages is not None and stages > blocks:
        raise PlanError(f"pipeline.stages is {stages}, but the model has {blocks} blocks, and a block is never split")
    if blocks == 0 or train_samples < 1:
        raise PlanError(f"nothing to train: {blocks} blocks, {train_samples} samples")


def _tied_stages_meet(measured: Measurements, split: Split) -> bool:
    """Stages that share a tied parameter send it to each other, so they need a link wherever they stand."""
    for tied in measured.chain.tied:
        owner = split.order[stage_of(split, tied.owner)]
        for follower in tied.followers:
            node = split.order[stage_of(split, follower)]
            if node != owner and not measured.link_works(owner, node):
                return False
    return True


def _stages(measured: Measurements, split: Split, spec: RunSpec) -> tuple[StagePlan, ...]:
    seconds = _stage_seconds(measured, split)
    last = len(split.order) - 1
    return tuple(
        StagePlan(
            contact=measured.contacts[node],
            first_block=split.cuts[k],
            end_block=split.cuts[k + 1],
            recompute=measured.recompute,
            forward_codec=spec.compression.forward if k < last else "raw",
            backward_codec=spec.compression.backward if k > 0 else "raw",
            compute_share=seconds[k] / sum(seconds) if sum(seconds) > 0 else 1 / len(seconds),
            most_in_flight=measured.most_in_flight(node, split.cuts[k], split.cuts[k + 1]),
        )
        for k, node in enumerate(split.order)
    )


def _stage_seconds(measured: Measurements, split: Split) -> list[float]:
    times = [measured.stage_time(node, split.cuts[k], split.cuts[k + 1]) for k, node in enumerate(split.order)]
    return [time.forward_s + time.backward_s for time in times]


def _reason(measured: Measurements, chosen: Proposal, proposals: Sequence[Proposal]) -> str:
    split = chosen.split
    names = [measured.contacts[node].name for node in split.order]
    seconds = _stage_seconds(measured, split)
    slowest = seconds.index(max(seconds))
    text = (
        f"{' -> '.join(names)}: a step is predicted to take {format_seconds(chosen.step_s)}; "
        f"the slowest stage is {names[slowest]} with {format_blocks(split.cuts[slowest], split.cuts[slowest + 1])}, "
        f"{format_seconds(seconds[slowest])} a microbatch"
    )
    if split.bottleneck_s > max(seconds) * NEAR:
        text += f", but a link takes {format_seconds(split.bottleneck_s)} a microbatch"
    for other in proposals:
        if abs(len(other.split.order) - len(split.order)) == 1:
            count = len(other.split.order)
            text += f"; {count} {'stage' if count == 1 else 'stages'} would take {format_seconds(other.step_s)}"
    return text


def format_seconds(seconds: float) -> str:
    """Return a duration for a person: `95 ms`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
