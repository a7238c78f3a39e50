"""Real stage cores, real computing and the coordinator's real step rounds in one thread, in a seeded order of events."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from brigade.coordinator.run_events import Commit, Evaluation
from brigade.coordinator.run_steps import StepRounds
from brigade.node import stage_events as ev
from brigade.node.datasets import load_tensors
from brigade.node.stage_compute import StageCompute
from brigade.node.stage_core import Phase, StageCore
from brigade.node.state_files import StateFile, write
from brigade.partition.batching import Batching, evaluation_batches
from brigade.partition.boundaries import trace
from brigade.partition.chain import build_chain
from brigade.partition.samples import Source
from brigade.wire.message_parts import Slot, StageStatistics
from brigade.wire.messages import Evaluated, GradientsReady, StepApplied
from brigade.wire.plan import NodeContact, Plan, StagePlan
from brigade.wire.run_spec import RunSpec


class StageLine:
    """One life of a pipeline; `run` trains until everybody rests."""

    def __init__(
        self,
        spec: RunSpec,
        source: Source,
        cuts: Sequence[int],
        *,
        seed: int = 0,
        mode: str = "exact",
        versions: int = 1,
        warm_ups: Sequence[int] = (),
        slack: int = 1,
        files: Path | None = None,
        first_step: int = 0,
        stop_after: int | None = None,
        poison: Callable[[int, StageCompute], None] = lambda step, stage: None,
    ) -> None:
        training = spec.training
        self.spec, self.source, self.random, self.poison = spec, source, random.Random(seed), poison
        self.batching = Batching(
            source.train_count, training.batch_size, training.microbatches, spec.seed, training.shuffle
        )
        chain = build_chain(spec.model)
        leaving = trace(chain.blocks, source.inputs)
        stages = len(cuts) - 1
        self.plan = Plan(
            run_id="run",
            generation=0,
            stages=tuple(
                StagePlan(contact=_contact(k), first_block=cuts[k], end_block=cuts[k + 1]) for k in range(stages)
            ),
            schedule=spec.pipeline.schedule if mode == "exact" else "ls-1f1b",
            microbatches=training.microbatches,
            train_samples=source.train_count,
            validation_samples=source.validation_count,
            boundaries=tuple(leaving[end - 1] for end in cuts[1:-1]),
            tied=chain.tied,
            mode=mode,
            versions=versions,
            warm_ups=tuple(warm_ups),
            slack=slack,
        )
        held_out = evaluation_batches(source.validation_count, self.batching.microbatch_samples, training.eval_batches)
        self.held_out = held_out
        self.computes = [StageCompute(chain, self.plan, k, spec) for k in range(stages)]
        for k, compute in enumerate(self.computes):
            if files is None:
                compute.load_initial()
            else:
                blocks = range(cuts[k], cuts[k + 1])
                mine = [path for path in sorted(files.iterdir()) if int(path.name[6:9]) in blocks]
                compute.load_files(mine, first_step)
        self.cores = [
            StageCore(
                self.plan,
                k,
                self.batching,
                len(held_out),
                first_step,
                oldest_version=self.computes[k].oldest_version,
                end_step=training.max_steps,
            )
            for k in range(stages)
        ]
        self.rounds = StepRounds(
            training, self.plan, attempt=1, first_step=first_step, sample_ids=self.batching.sample_ids
        )
        self.rounds.save_allowed = True
        self.stop_after = stop_after
        self.commits: list[Commit] = []
        self.evaluations: dict[int, float | None] = {}
        self.saved: dict[int, dict[str, StateFile]] = {}  # by steps done
        self.peak_versions = 1
        self._local: list[deque[Callable[[], ev.StageEvent | None]]] = [deque() for _ in range(stages)]
        self._bag: list[tuple[int, ev.StageEvent]] = []
        self._parcels: list[dict[Slot, Any]] = [{} for _ in range(stages)]
        self._gradients: list[dict[Slot, Any]] = [{} for _ in range(stages)]
        self._tied: dict[tuple[str, int, str], Tensor] = {}
        self._counts: dict[int, int] = {}

    # --- the life ---------------------------------------------------------------------------------------------------

    def run(self) -> list[Commit]:
        for stage in range(len(self.cores)):
            self._bag.append((stage, ev.TrainingBegun(self.rounds.step)))
        while True:
            busy = [k for k, queue in enumerate(self._local) if queue]
            if self._bag and (not busy or self.random.random() < 0.5):
                # what one neighbour sends stays in order, and so do decisions
                stage, event = self._bag.pop(self._first_of_a_kind())
                self._feed(stage, event)
            elif busy:
                stage = self.random.choice(busy)
                event_or_none = self._local[stage].popleft()()
                if event_or_none is not None:
                    self._feed(stage, event_or_none)
            else:
                break
        assert all(core.phase is Phase.RESTING for core in self.cores), [core.doing() for core in self.cores]
        return self.commits

    def _first_of_a_kind(self) -> int:
        chosen_stage, chosen = self._bag[self.random.randrange(len(self._bag))]
        same = [(stage, type(event)) == (chosen_stage, type(chosen)) for stage, event in self._bag]
        return same.index(True)

    def _feed(self, stage: int, event: ev.StageEvent) -> None:
        for command in self.cores[stage].handle(event, 0.0):
            self._carry_out(stage, command)

    def _carry_out(self, stage: int, command: ev.StageCommand) -> None:
        work, compute = self._local[stage], self.computes[stage]
        match command:
            case ev.RunForward(slot):
                work.append(lambda: self._forward(stage, slot))
            case ev.RunBackward(slot):
                work.append(lambda: self._backward(stage, slot))
            case ev.SendActivation(slot):
                self._bag.append((stage + 1, ev.ActivationArrived(slot)))
            case ev.SendGradient(slot):
                self._bag.append((stage - 1, ev.GradientArrived(slot)))
            case ev.SendTiedGradients(step):
                work.append(lambda: self._send_tied("gradient", step, compute.tied_gradients(step)))
            case ev.SendTiedWeights(step):
                work.append(lambda: self._send_tied("weight", step, compute.tied_weights()))
            case ev.AddTiedGradient(step, key):
                work.append(lambda: compute.add_tied_gradient(key, self._tied["gradient", step, key]))
            case ev.SetTiedWeight(step, key):
                work.append(lambda: compute.set_tied_weight(key, self._tied["weight", step, key]))
            case ev.SumGradients(step):
                work.append(lambda: self._sum(stage, step))
            case ev.ApplyUpdate(step, rate, scale, skip):
                work.append(lambda: self._apply(stage, step, rate, scale, skip))
            case ev.SaveState(step):
                work.append(lambda: self.saved.setdefault(step + 1, {}).update(compute.snapshot(step)))
            case ev.SumEvaluation(step):
                work.append(lambda: ev.EvaluationSummed(step, *compute.end_of_evaluation()))
            case ev.Tell(message):
                self._told(message)

    # --- computing --------------------------------------------------------------------------------------------------

    def _forward(self, stage: int, slot: Slot) -> ev.StageEvent:
        kind = "validation" if slot.evaluation else "train"
        ids = self.held_out[slot.index] if slot.evaluation else self.batching.microbatch(slot.step, slot.index)
        value, targets = load_tensors(self.source, kind, np.asarray(ids))
        if stage > 0:
            value = self._parcels[stage].pop(slot)
        if slot.evaluation:
            output = self.computes[stage].evaluate(slot, value, targets)
        else:
            output = self.computes[stage].forward(
                slot, value, targets, step_target_count=self._target_count(slot.step), samples=tuple(ids.tolist())
            )
        if stage + 1 < len(self.cores):
            self._parcels[stage + 1][slot] = output
        return ev.ForwardDone(slot)

    def _target_count(self, step: int) -> int:
        if step not in self._counts:
            ids = [self.batching.microbatch(step, i) for i in range(self.batching.microbatch_count(step))]
            loaded = [load_tensors(self.source, "train", np.asarray(part))[1] for part in ids]
            self._counts[step] = sum(self.computes[0].count_targets(targets) for targets in loaded)
        return self._counts[step]

    def _backward(self, stage: int, slot: Slot) -> ev.StageEvent:
        gradients = self.computes[stage].backward(slot, self._gradients[stage].pop(slot, None))
        if stage > 0:
            self._gradients[stage - 1][slot] = gradients
        return ev.BackwardDone(slot)

    def _send_tied(self, what: str, step: int, tensors: dict[str, Tensor]) -> None:
        for key, tensor in tensors.items():
            self._tied[what, step, key] = tensor.clone()
            tie = next(tie for tie in self.plan.tied if key in tie.followers)
            target = tie.owner if what == "gradient" else key
            event = ev.TiedGradientArrived if what == "gradient" else ev.TiedWeightArrived
            self._bag.append((self._stage_of(target), event(step, key)))

    def _stage_of(self, key: str) -> int:
        block = int(key.partition(".")[0])
        return next(k for k, stage in enumerate(self.plan.stages) if stage.first_block <= block < stage.end_block)

    def _sum(self, stage: int, step: int) -> ev.StageEvent:
        self.poison(step, self.computes[stage])
        sums = self.computes[stage].end_of_step(step)
        return ev.GradientsSummed(step, *sums)

    def _apply(self, stage: int, step: int, rate: float, scale: float, skip: bool) -> ev.StageEvent:
        self.computes[stage].apply(step, rate, scale, skip)
        self.peak_versions = max(self.peak_versions, len(self.computes[stage]._versions.held))
        return ev.UpdateDone(step, StageStatistics())

    # --- the coordinator --------------------------------------------------------------------------------------------

    def _told(self, message: GradientsReady | StepApplied | Evaluated) -> None:
        decision = None
        match message:
            case GradientsReady():
                self.rounds.closing = self.stop_after is not None and message.step + 1 >= self.stop_after
                decision = self.rounds.take_gradients(message)
            case StepApplied():
                commit = self.rounds.take_update(message, 0.0)
                while commit is not None:
                    self.commits.append(commit)
                    more, next_commit = self.rounds.stored(commit.step)
                    self._note(self.rounds.early_evaluation(commit.step))
                    decision, commit = decision or more, next_commit
            case Evaluated():
                self._note(self.rounds.take_evaluation(message))
        if decision is not None:
            for stage in range(len(self.cores)):
                order = ev.StepDecided(
                    decision.step,
                    decision.learning_rate,
                    decision.gradient_scale,
                    decision.skip,
                    decision.evaluate,
                    decision.save,
                    decision.last,
                )
                self._bag.append((stage, order))

    def _note(self, evaluation: Evaluation | None) -> None:
        if evaluation is not None:
            self.evaluations[evaluation.step] = evaluation.loss

    # --- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Newest parameters and persistent buffers by `"<block>.<name>"`."""
        files = {name: f for compute in self.computes for name, f in compute.snapshot(self.rounds.step - 1).items()}
        return {
            f"{file.facts['block']}.{key}": tensor
            for name, file in files.items()
            if name.count(".") == 1
            for key, tensor in file.tensors.items()
        }

    def momenta(self) -> dict[str, Tensor]:
        """The state of SGD by parameter."""
        states = (compute._optimizer.states() for compute in self.computes)
        return {name: state["momentum_buffer"] for each in states for name, state in each.items()}

    def save(self, steps_done: int, directory: Path) -> None:
        write(directory, self.saved[steps_done])


def same_losses(commits: Sequence[Commit], rows: Sequence[tuple[float, float]]) -> None:
    for commit, (loss, norm) in zip(commits, rows, strict=True):
        assert (commit.loss, commit.gradient_norm) == (loss, norm), f"step {commit.step}"


def _contact(stage: int) -> NodeContact:
    return NodeContact(node_id=f"node{stage}", name=f"node{stage}", public_key="", endpoint="")
