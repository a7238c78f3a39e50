"""The state of a run that nobody leads at the moment, as its files tell it."""

import time
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from brigade.coordinator.checkpoints import list_sealed
from brigade.coordinator.export import CHECKPOINTS_NAME, MODEL_NAME
from brigade.coordinator.run_events import Commit
from brigade.coordinator.run_state import RECENT_STEPS, usual
from brigade.coordinator.status import STATUS_VERSION, describe_stage, predicted_step_s
from brigade.coordinator.store import STORE_NAME, Store
from brigade.wire.errors import ConfigError
from brigade.wire.message_parts import StageStatistics

INTERRUPTED = "interrupted"  # its coordinator ended without a word


def recorded_status(run_dir: Path) -> dict[str, Any]:
    """Return what `brigade status` shows of a run without a coordinator; the same keys as of a living one.

    Raises ConfigError when there is no run.
    """
    with Store(run_dir / STORE_NAME, readonly=True) as store:
        run, plan, attempt = store.load_run(), store.latest_plan(), store.last_attempt()
        commits, evaluations, events = list(store.commits()), store.evaluations(), store.events()
    if run is None:
        raise ConfigError(f"{run_dir} holds no run")
    last, evaluation = (commits[-1] if commits else None), (evaluations[-1] if evaluations else None)
    sealed = list_sealed(run_dir / CHECKPOINTS_NAME)
    state = attempt.state if attempt is not None and attempt.state is not None else INTERRUPTED
    model = run_dir / MODEL_NAME
    totals = [] if plan is None else stage_totals(commits, plan.generation) or [StageStatistics()] * len(plan.stages)
    return {
        "version": STATUS_VERSION,
        "run": run.name,
        "run_id": run.run_id,
        "state": state,
        "attempt": run.attempt,
        "generation": run.generation,
        "waiting_for": "",
        "reason": "" if attempt is None or state == "finished" else attempt.reason,
        "step": len(commits),
        "max_steps": run.spec.training.max_steps,
        "loss": last and last.loss,
        "gradient_norm": last and last.gradient_norm,
        "learning_rate": last and last.learning_rate,
        "validation_loss": evaluation and evaluation.loss,
        "validation_step": evaluation and evaluation.step + 1,
        "tokens": sum(commit.tokens for commit in commits),
        "tokens_per_s": 0.0,
        "throughput": 0.0,
        "unit": "",
        "usual_step_s": usual([commit.duration_s for commit in commits[-RECENT_STEPS:]]),
        "predicted_step_s": plan and predicted_step_s(plan),
        "limited_by": "",  # that takes what links carry
        "step_s": last and round(last.duration_s, 4),
        "time_left_s": None,
        "checkpoint_steps": sealed[-1] if sealed else None,
        "saving": [],
        "model": str(model) if state == "finished" and model.is_file() else "",
        "plan_reason": "" if plan is None else plan.reason,
        "stages": [] if plan is None else [describe_stage(plan, index, total) for index, total in enumerate(totals)],
        "nodes_there": 0,
        "nodes": [],
        "events": [
            {"s_ago": round(time.time() - event.at, 1), "kind": event.kind, "text": event.text, "node": event.node}
            for event in events
        ],
    }


def stage_totals(commits: Iterable[Commit], generation: int) -> list[StageStatistics]:
    """Return the statistics of each stage, summed over the steps of one plan; empty when it has done none."""
    rows = [commit.statistics for commit in commits if commit.generation == generation]
    return [_total(of_stage) for of_stage in zip(*rows, strict=True)]


def _total(statistics: Iterable[StageStatistics]) -> StageStatistics:
    each = list(statistics)
    return StageStatistics(**{field.name: sum(getattr(s, field.name) for s in each) for field in fields(each[0])})
