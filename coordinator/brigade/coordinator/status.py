"""The state of a run as plain JSON: what `brigade status` shows and `brigade status --json` prints."""

import math
from typing import Any

from brigade.coordinator.pace import describe_limit
from brigade.coordinator.run_state import Line, RunState
from brigade.coordinator.run_table import State
from brigade.coordinator.wording import show_duration
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import Plan

STATUS_VERSION = 1
MOST_NODES_TOLD = 500
LEAST_DELAY_S, DELAYED_STEPS = 5.0, 3  # a step that takes longer than both is worth a word


def describe_run(run: RunState, now: float) -> dict[str, Any]:
    """Return run, progress, stages and nodes; every value is a JSON value."""
    tally, commit, evaluation = run.tally, run.tally.last_commit, run.tally.last_evaluation
    max_steps = run.spec.training.max_steps
    per_s, unit = tally.throughput(run.spec)
    return {
        "version": STATUS_VERSION,
        "run": run.spec.name,
        "run_id": run.beginning.run_id,
        "state": run.state.value,
        "attempt": run.attempt,
        "generation": run.generation,
        "waiting_for": _waiting_for(run, now),
        "reason": run.ending.reason if run.ending else run.closing.reason if run.closing else "",
        "step": tally.steps_done,
        "max_steps": max_steps,
        "loss": None if commit is None else commit.loss,
        "gradient_norm": None if commit is None else commit.gradient_norm,
        "learning_rate": None if commit is None else commit.learning_rate,
        "validation_loss": None if evaluation is None else evaluation.loss,
        "validation_step": None if evaluation is None else evaluation.step + 1,
        "tokens": tally.tokens_seen,
        "tokens_per_s": round(tally.tokens_per_s, 1),
        "throughput": round(per_s, 1),
        "unit": unit,
        "usual_step_s": _rounded(tally.usual_step_s, 4),
        "predicted_step_s": None if run.line is None else predicted_step_s(run.line.plan),
        "limited_by": _limited_by(run),
        "step_s": None if commit is None else round(commit.duration_s, 4),
        "time_left_s": _rounded(tally.time_left_s(max_steps)) if not run.state.over else None,
        "checkpoint_steps": tally.sealed_steps,
        "saving": [] if run.line is None else run.line.saves.pending,
        "model": tally.export_path,
        "plan_reason": "" if run.line is None else run.line.plan.reason,
        "stages": [] if run.line is None else _stages(run, run.line),
        "nodes_there": len(run.membership.members),
        "nodes": _nodes(run, now),
        "events": [
            {"s_ago": round(now - at, 1), "kind": note.kind, "text": note.text, "node": note.node, "level": note.level}
            for at, note in run.notes
        ],
    }


def _limited_by(run: RunState) -> str:
    line = run.line
    if line is None:
        return ""
    links = {} if run.survey is None else run.survey.links
    return describe_limit(line.plan, line.totals, links, line.steps, run.tally.usual_step_s)


def _stages(run: RunState, line: Line) -> list[dict[str, Any]]:
    links = {} if run.survey is None else run.survey.links
    stages = line.plan.stages
    rows = []
    for index, stage in enumerate(stages):
        row = describe_stage(line.plan, index, line.totals[index])
        row["parameters"] = line.parameters.get(index)
        for key, other in (("link", index + 1), ("back_link", index - 1)):
            to = stages[other].contact.node_id if 0 <= other < len(stages) else ""
            if (link := links.get((stage.contact.node_id, to))) is not None:
                row |= {f"{key}_bytes_per_s": _rounded(link.bytes_per_s), f"{key}_rtt_s": _finite(link.rtt_s)}
        rows.append(row)
    return rows


def describe_stage(plan: Plan, index: int, total: StageStatistics) -> dict[str, Any]:
    """Return one row; shares and ratios are between 0 and 1, seconds are sums over this plan's steps.

    What only a living coordinator knows is None.
    """
    stage = plan.stages[index]
    return {
        "stage": index,
        "node": stage.contact.name,
        "node_id": stage.contact.node_id,
        "first_block": stage.first_block,
        "end_block": stage.end_block,
        "parameters": None,
        "compute_share": round(stage.compute_share, 4),
        "link_to": plan.stages[index + 1].contact.name if index + 1 < len(plan.stages) else "",
        "link_bytes_per_s": None,
        "link_rtt_s": None,
        "back_link_bytes_per_s": None,
        "back_link_rtt_s": None,
        "forward_codec": stage.forward_codec,
        "backward_codec": stage.backward_codec,
        "wait_share": round(total.wait_s / total.wall_s, 4) if total.wall_s > 0 else None,
        "gated_share": round(total.gated_s / total.wall_s, 4) if total.wall_s > 0 else None,
        "forward_s": round(total.forward_s, 4),
        "backward_s": round(total.backward_s, 4),
        "optimizer_s": round(total.optimizer_s, 4),
        "encode_s": round(total.encode_s, 4),
        "decode_s": round(total.decode_s, 4),
        "wait_s": round(total.wait_s, 4),
        "gated_s": round(total.gated_s, 4),
        "wall_s": round(total.wall_s, 4),
        "forward_bytes": total.forward_bytes,
        "forward_raw_bytes": total.forward_raw_bytes,
        "backward_bytes": total.backward_bytes,
        "backward_raw_bytes": total.backward_raw_bytes,
        "tokens": total.tokens,
    }


def _nodes(run: RunState, now: float) -> list[dict[str, Any]]:
    """Return a row for each node, those with stages first; of a crowd as many as a message holds."""
    members = sorted(run.membership.members.values(), key=lambda member: run.stage_of(member) is None)
    return [
        {
            "node": member.name,
            "node_id": member.node_id,
            "endpoint": member.endpoint,
            "device": f"{member.device.kind}: {member.device.name}",
            "host": member.device.host,
            "memory_bytes": member.device.memory_bytes,
            "threads": member.device.threads,
            "software": member.device.software,
            "stage": run.stage_of(member),
            "leaving": member.leaving,
            "heard_s_ago": round(now - member.heard_at, 2),
            "step": member.pulse.step,
            "doing": member.pulse.doing,
        }
        for member in members[:MOST_NODES_TOLD]
    ]


def predicted_step_s(plan: Plan) -> float | None:
    """Return what the planner expected a full step to take; None when it expected nothing."""
    return _rounded(plan.period_s * plan.microbatches, 4) if plan.period_s > 0 else None


def _waiting_for(run: RunState, now: float) -> str:
    """Return, for a person, what keeps the run from going on; empty when it goes on."""
    line = run.line
    match run.state:
        case State.GATHERING:
            left = "" if run.limit is None else f", giving up in {show_duration(run.limit.at - now)}"
            return f"nodes ({len(run.membership.members)} of {run.spec.pipeline.nodes}{left})"
        case State.PROFILING | State.MEASURING:
            return "" if run.survey is None else run.survey.waiting_for
        case State.PLANNING:
            return "the planner"
        case State.LOADING if line is not None:
            owing = [k for k in range(len(line.plan.stages)) if k not in line.parameters]
            return f"{_names(line, owing)} to build"
        case State.TRAINING if line is not None:
            what, stages = line.rounds.waiting_for
            if now - line.rounds.began_at < max(LEAST_DELAY_S, DELAYED_STEPS * (run.tally.usual_step_s or 0.0)):
                return ""  # every step waits for every stage: that is how training goes
            return f"{what} of {_names(line, stages)}" if stages else ""
        case State.SAVING if line is not None and line.saves.pending:
            newest = line.saves.pending[-1]
            owing = line.saves.owing(newest)
            megabytes = line.saves.received_bytes(newest) / 1e6
            return f"files of {_names(line, owing)} ({megabytes:.1f} MB are here)" if owing else "the disk"
        case State.SAVING:
            return "the export" if run.exporting else "the held-out loss"
    return ""


def _names(line: Line, stages: list[int]) -> str:
    return ", ".join(line.name_stage(stage) for stage in stages)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return round(value, digits) if value is not None and math.isfinite(value) else None
