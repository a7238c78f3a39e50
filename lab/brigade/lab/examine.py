"""Makes the result of an experiment from what was seen, from the ledger of its run, and from the nodes' timelines."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from brigade.coordinator.costs import COSTS_NAME, Costs, read_costs
from brigade.coordinator.record import stage_totals
from brigade.coordinator.run_events import Commit
from brigade.coordinator.store import STORE_NAME, Store
from brigade.lab.attribution import Attribution, LinkTimes, StageTimes, attribute
from brigade.lab.best_bound import best_period_s
from brigade.lab.bound import Bound, bound_of, narrowest_rates
from brigade.lab.experiment_files import read_timelines
from brigade.lab.observed import Observed
from brigade.lab.predict import Prediction
from brigade.lab.result import RESULT_VERSION, Ledger, LinkUse, Losses, Point, Result, StageWaits, Wire
from brigade.lab.scenario import Scenario
from brigade.node.timeline import StageLife
from brigade.partition.batching import Batching
from brigade.partition.limits import Limit, Pace, find_limit
from brigade.wire.plan import Plan
from brigade.wire.run_spec import RunSpec

DIGITS = 4  # of seconds and shares


def examine(scenario: Scenario, run_dir: Path, observed: Observed) -> Result:
    """Return the result of an experiment from what was seen and from what lies in and beside the run's directory."""
    plan: Plan | None = None
    commits: list[Commit] = []
    held_out: list[tuple[int, float | None]] = []
    if (run_dir / STORE_NAME).is_file():
        with Store(run_dir / STORE_NAME, readonly=True) as store:
            plan, commits = store.latest_plan(), list(store.commits())
            held_out = [(each.step + 1, each.loss) for each in store.evaluations()]
    costs = read_costs(run_dir / COSTS_NAME, scenario.run).costs if (run_dir / COSTS_NAME).is_file() else None
    return conclude(scenario, plan, commits, held_out, read_timelines(run_dir.parent), observed, costs)


def examine_prediction(scenario: Scenario, prediction: Prediction, costs: Costs) -> Result:
    """Return the result that an experiment is predicted to have."""
    plan, commits, lives, observed = prediction.plan, prediction.commits, prediction.lives, prediction.observed
    result = conclude(scenario, plan, commits, [], lives, observed, costs)
    return replace(
        result, predicted=True, link_kind=None, replayed_steps=None
    )  # only the last time of a step is foretold


def conclude(
    scenario: Scenario,
    plan: Plan | None,
    commits: Sequence[Commit],
    held_out: Sequence[tuple[int, float | None]],
    lives: Sequence[StageLife],
    observed: Observed,
    costs: Costs | None,
) -> Result:
    """Return the result of an experiment from all that is known of it: the last plan, the ledger, the timelines."""
    spec = scenario.run.spec
    tokens, seconds = sum(commit.tokens for commit in commits), max((seen.at_s for seen in observed.steps), default=0.0)
    tokens_per_s = tokens / seconds if seconds > 0 else 0.0
    rate_of = narrowest_rates(scenario.hosts, scenario.spec.pair)
    times = attribute(lives, rate_of)
    bound = _bound(scenario, plan, commits)
    best_tokens_per_s = _best_tokens_per_s(scenario, costs, plan, commits, bound)
    efficiency = tokens_per_s / bound.tokens_per_s if bound else None
    limit = _limit(bound, plan, times, len(commits), seconds, efficiency)
    losses = [commit.loss for commit in commits]
    traffic = observed.traffic
    return Result(
        version=RESULT_VERSION,
        scenario=scenario.spec.name,
        seed=observed.seed,
        exit_code=observed.exit_code,
        reason=observed.reason,
        steps_committed=len(commits),
        max_steps=spec.training.max_steps,
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens_per_s,
        bound_tokens_per_s=bound.tokens_per_s if bound else None,
        best_bound_tokens_per_s=best_tokens_per_s,
        efficiency=efficiency,
        limited_by=limit.text if limit else "",
        loss=Losses(
            first=losses[0] if losses else None,
            last=losses[-1] if losses else None,
            validation=held_out[-1][1] if held_out else None,
            curve=_curve(commits, observed),
            held_out=tuple(held_out),
        ),
        wire=Wire(
            activation_bytes_per_token=_per_token(commits, "forward_bytes"),
            gradient_bytes_per_token=_per_token(commits, "backward_bytes"),
            bytes=sum(route.delivered for route in traffic.routes) if traffic else 0,
            routes=traffic.routes if traffic else (),
        ),
        waits=tuple(_waits(stage) for stage in times.stages) if times else (),
        links=tuple(_link(link, times) for link in times.links) if times else (),
        stages=tuple(f"{s.contact.name}: {s.first_block}-{s.end_block - 1}" for s in plan.stages) if plan else (),
        link_kind=scenario.spec.links,
        recoveries=observed.recoveries,
        replayed_steps=len(observed.steps) - len({seen.step for seen in observed.steps}),
        moves=0,
        ledger=judge_ledger(commits, spec, plan.train_samples if plan else 0),
        events=tuple((event.at_s, event.text) for event in observed.events),
        relay_late_mean_s=traffic.late_mean_s if traffic else 0.0,
        relay_late_most_s=traffic.late_most_s if traffic else 0.0,
    )


def judge_ledger(commits: Sequence[Commit], spec: RunSpec, train_samples: int) -> Ledger:
    """Hold the samples of committed steps against those that belong to these steps by seed, step by step."""
    lost: Counter[tuple[int, int]] = Counter()
    repeated: Counter[tuple[int, int]] = Counter()
    training = spec.training
    if commits:
        batching = Batching(
            samples=train_samples,
            batch_size=training.batch_size,
            microbatches=training.microbatches,
            seed=spec.seed,
            shuffle=training.shuffle,
        )
        last = max(commit.step for commit in commits)
        wanted = Counter((step, int(i)) for step in range(last + 1) for i in batching.sample_ids(step))
        found = Counter((commit.step, i) for commit in commits for i in commit.samples)
        lost, repeated = wanted - found, found - wanted
    return Ledger(
        committed=sum(len(commit.samples) for commit in commits), lost=lost.total(), repeated=repeated.total()
    )


def _bound(scenario: Scenario, plan: Plan | None, commits: Sequence[Commit]) -> Bound | None:
    totals = stage_totals(commits, plan.generation) if plan else []
    if plan is None or not totals:
        return None
    steps = sum(commit.generation == plan.generation for commit in commits)
    return bound_of(plan.stages, totals, steps * plan.microbatches, scenario.hosts, scenario.spec.pair, steps)


def _best_tokens_per_s(
    scenario: Scenario, costs: Costs | None, plan: Plan | None, commits: Sequence[Commit], bound: Bound | None
) -> float | None:
    """Return the bound over all pipelines, of which the one that ran is one; None when no costs were noted."""
    if bound is None or plan is None or costs is None:
        return None
    period_s = best_period_s(costs, scenario.run.spec.compression, scenario.hosts, scenario.spec.pair)
    if period_s is None:
        return None
    tokens = max(commit.tokens for commit in commits) / plan.microbatches
    return max(bound.tokens_per_s, tokens / period_s)


def _limit(
    bound: Bound | None,
    plan: Plan | None,
    times: Attribution | None,
    steps: int,
    seconds: float,
    efficiency: float | None,
) -> Limit | None:
    if bound is None or plan is None or not steps:
        return None
    pace = Pace(
        step_s=seconds / steps,
        microbatches=plan.microbatches,
        schedule=plan.schedule,
        norm_round_s=times.norm_round_s if times else 0.0,
        evaluation_s=times.evaluation_s / steps if times else 0.0,
        recovery_s=times.recovery_s / steps if times else 0.0,
        overlapping=plan.versions > 1,
        warm_ups=plan.warm_ups,
    )
    return find_limit(bound.line, pace, bound.name, efficiency)


def _curve(commits: Sequence[Commit], observed: Observed) -> tuple[Point, ...]:
    at_s = {seen.step: seen.at_s for seen in observed.steps}  # of a replayed step the last time
    points, tokens = [], 0
    for commit in commits:
        tokens += commit.tokens
        points.append(Point(commit.step + 1, round(at_s.get(commit.step + 1, 0.0), 4), tokens, commit.loss))
    return tuple(points)


def _per_token(commits: Sequence[Commit], direction: str) -> float:
    tokens = sum(commit.tokens for commit in commits)
    sent = sum(getattr(stage, direction) for commit in commits for stage in commit.statistics)
    return sent / tokens if tokens else 0.0


def _waits(times: StageTimes) -> StageWaits:
    return StageWaits(
        stage=times.stage,
        node=times.node,
        wall_s=round(times.wall_s, DIGITS),
        covered=round(times.covered, DIGITS),
        encode_s=round(times.encode_s, DIGITS),
        decode_s=round(times.decode_s, DIGITS),
        **{part: round(seconds, DIGITS) for part, seconds in times.parts.items()},
    )


def _link(link: LinkTimes, times: Attribution) -> LinkUse:
    return LinkUse(
        source=times.stages[link.sender].node,
        target=times.stages[link.receiver].node,
        bytes=link.bytes,
        busy_share=round(link.line_s / times.seconds, DIGITS) if link.line_s > 0 and times.seconds > 0 else None,
        sending_s=round(link.sending_s, DIGITS),
        waiting_s=round(link.waiting_s, DIGITS),
    )
