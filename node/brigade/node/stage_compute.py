"""Everything that one stage computes: its blocks, their gradients, the update, the held-out loss, the state to save.

Torch only, no sockets and no clock but the stopwatch; one compute thread owns it. Values come and go in host memory.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brigade.node.autograd_stage import AutogradStage, Gradients
from brigade.node.boundary_value import conform
from brigade.node.freezing import check_patterns, freeze
from brigade.node.loss import build_loss, count_samples
from brigade.node.optimizer import StageOptimizer
from brigade.node.stage_error import StageError
from brigade.node.stage_state import (
    load_blocks,
    load_older,
    load_optimizer,
    older_versions,
    snapshot_older,
    snapshot_stage,
)
from brigade.node.state_files import StateFile
from brigade.node.step_gradients import StepGradients
from brigade.node.tied_weights import TiedWeights
from brigade.node.weight_versions import WeightVersions
from brigade.partition import tree
from brigade.partition.chain import Chain
from brigade.partition.optimizers import hidden_matrices
from brigade.partition.versions import VersionRule
from brigade.wire.errors import BrigadeError, LocalProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Plan
from brigade.wire.run_spec import RunSpec


class StepSums(NamedTuple):
    """What a stage knows when all microbatches of a step are through; the last three at the last stage only."""

    squared_norm: float  # of this stage's gradients, tied ones at their owner only
    finite: bool
    loss_sum: float
    target_count: int
    samples: tuple[int, ...]


class StageSeconds(NamedTuple):
    """Seconds of computing."""

    forward_s: float
    backward_s: float
    optimizer_s: float


class StageCompute:
    """One stage of a plan on one device. Call `load_initial` or `load_files` first."""

    def __init__(self, chain: Chain, plan: Plan, stage: int, spec: RunSpec, device: torch.device | str = "cpu") -> None:
        self._chain = chain
        self._plan = plan
        self._stage = stage
        self._spec = spec
        self._device = torch.device(device)
        self._blocks = range(plan.stages[stage].first_block, plan.stages[stage].end_block)
        self._loss = build_loss(spec.training.loss)
        self._seconds = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self._losses: dict[int, list[tuple[float, int]]] = {}  # by step
        self._samples: dict[int, list[int]] = {}
        self._evaluated: list[tuple[float, int]] = []
        check_patterns(chain.blocks, spec.training.freeze)

    # --- state ---------------------------------------------------------------------------------------------------

    def _build(self, version: int) -> None:
        """Build the blocks with initial weights; these are called `version`."""
        with self._reporting(-1, f"loading blocks {self._block_names}"):
            blocks = self._chain.materialise(self._blocks.start, self._blocks.stop, self._spec.seed, self._device)
            by_index = dict(zip(self._blocks, blocks, strict=True))
            freeze(by_index, self._spec.training.freeze, self._plan.tied)
            self._tied = TiedWeights(self._plan.tied, by_index)
            named = {
                f"{index}.{name}": parameter
                for index, block in by_index.items()
                for name, parameter in block.named_parameters()
            }
            self._parameters = {name: each for name, each in named.items() if name not in self._tied.copies}
            trained = {name: each for name, each in self._parameters.items() if each.requires_grad}
            followed = {name: named[name] for name in self._tied.followed if name in self._tied.aliases}
            self._versions = WeightVersions(
                trained | followed, trained, self._tied.aliases, copies=self._copies, version=version
            )
            self._rule = VersionRule(self._plan.versions, version)
            self._step_gradients = StepGradients(named.values())
            matrices = hidden_matrices(self._chain.blocks, self._chain.tied)
            self._optimizer = StageOptimizer(self._versions.masters, self._spec.training, matrices)
            self._autograd = AutogradStage(
                blocks,
                stage=self._stage,
                first_block=self._blocks.start,
                run_seed=self._spec.seed,
                device=self._device,
                recompute=self._spec.training.gradient_checkpointing or self._plan.stages[self._stage].recompute,
                bf16=self._spec.training.bf16,
                versions=self._plan.versions,
            )
        self._losses.clear()
        self._samples.clear()

    def load_initial(self) -> None:
        """Build the stage with the run's initial weights; ConfigError when the model or optimizer cannot be used."""
        self._build(0)

    def load_files(self, paths: Sequence[Path], steps_done: int = 0) -> None:
        """Build the stage with the state in these files of a checkpoint after `steps_done` steps, in any order.

        Older versions of the weights are taken up if the plan has a use for them. Raises CheckpointError when a file is
        missing, torn, or does not fit the model and optimizer.
        """
        self._build(steps_done)
        with self._reporting(-1, f"loading the checkpoint of blocks {self._block_names}"):
            load_blocks(self._autograd.blocks, paths)
            load_optimizer(self._optimizer, self._blocks, paths)
            for age in range(1, min(self._copies, 1 + older_versions(path.name for path in paths))):
                self._versions.load_older(age, load_older(self._blocks, age, paths))
        self._rule = VersionRule(self._plan.versions, self._versions.held[0])

    def snapshot(self, step: int | None = None) -> dict[str, StateFile]:
        """Return copies in host memory of all state that a later `load_files` needs, by file name.

        To be called after `apply` of this step and the last `set_tied_weight`, before the next `apply`; forwards and
        backwards of later steps may have run. Without a step, nothing may be in flight.
        """
        if self._autograd.in_flight if step is None else self._autograd.in_flight_until(step):
            raise LocalProtocolError("a snapshot in the middle of a step")
        with self._reporting(-1, f"copying the state of blocks {self._block_names}"):
            self._versions.use(self._versions.newest)
            older = self._versions.older()[: self._plan.versions - 1]
            with self._autograd.buffers.as_after(self._versions.newest - 1 if step is None else step):
                newest = snapshot_stage(self._autograd.blocks, self._optimizer)
            return newest | snapshot_older(self._blocks, older)

    @property
    def oldest_version(self) -> int:
        """Return the oldest version of the weights that a step may use: how many updates it has seen."""
        return self._rule.first

    @property
    def parameter_count(self) -> int:
        """Numbers in the parameters of this stage; tied ones count at their owner."""
        return sum(each.numel() for each in self._parameters.values())

    # --- one step ------------------------------------------------------------------------------------------------

    def count_targets(self, targets: Any) -> int:
        """Return how many targets of a microbatch count in the loss."""
        return self._loss.count(targets)

    def forward(
        self, slot: Slot, inputs: Any, targets: Any, *, step_target_count: int, samples: Sequence[int] = ()
    ) -> Any:
        """Run one microbatch forward and keep its graph; return the output, or None at the last stage.

        `step_target_count` counts the targets of the whole step: the loss is a mean over these.
        """
        what = f"forward of microbatch {slot.index}"
        with self._timed("forward"), self._reporting(slot.step, what):
            self._versions.use(self._rule.version_of(slot.step))
            output = self._autograd.forward(slot, inputs)
            if not self._is_last:
                return self._hand_over(slot, output, targets, samples)
        with self._timed("forward"), self._reporting(slot.step, f"loss of microbatch {slot.index}"):
            total = self._loss.total(output, self._to_device(targets))
            self._autograd.hold(slot, [total / max(1, step_target_count)])
            loss = float(total.detach()), self._loss.count(targets)
            self._losses.setdefault(slot.step, []).append(loss)
            self._samples.setdefault(slot.step, []).extend(samples)
        return None

    def backward(self, slot: Slot, gradients: Sequence[Tensor | None] | None) -> Gradients:
        """Run one microbatch backward and return the gradients of its inputs, None for zero.

        `gradients` are those of the output's tensors, in the order of `tree.flatten`; None at the last stage.
        """
        with (
            self._timed("backward"),
            self._reporting(slot.step, f"backward of microbatch {slot.index}, blocks {self._block_names}"),
        ):
            if (gradients is None) != self._is_last:
                raise LocalProtocolError("only the last stage makes its own gradients")
            self._versions.use(self._rule.version_of(slot.step))
            self._step_gradients.work_on(slot.step)
            of_inputs = self._autograd.backward(slot, [torch.ones(())] if gradients is None else gradients)
            return [None if each is None else each.to("cpu") for each in of_inputs]

    def tied_parameter(self, key: str) -> Tensor:
        """Return what a message about the follower `key` is about, for its shape and dtype.

        Raises RemoteProtocolError when nothing here goes by that key.
        """
        return self._tied.parameter(key).detach()

    def tied_gradients(self, step: int) -> dict[str, Tensor]:
        """Return, after a step's last backward, what owners on other stages wait for, by follower's key."""
        self._step_gradients.work_on(step)
        return self._tied.gradients()

    def add_tied_gradient(self, key: str, gradient: Tensor) -> None:
        """Take the gradient of the follower `key` for a parameter owned here."""
        self._tied.add_gradient(key, gradient)

    def end_of_step(self, step: int) -> StepSums:
        """Return the sums of a step, after its last backward and the last awaited tied gradient."""
        if (count := self._autograd.in_flight_until(step)) > 0:
            raise LocalProtocolError(f"{count} microbatches have not been run backward")
        with self._timed("optimizer"), self._reporting(step, f"gradient norm of blocks {self._block_names}"):
            self._step_gradients.work_on(step)
            self._tied.sum_gradients()
            squared_norm = self._squared_norm()
        losses = self._losses.pop(step, [])
        return StepSums(
            squared_norm=squared_norm,
            finite=math.isfinite(squared_norm),
            loss_sum=math.fsum(loss for loss, _ in losses),
            target_count=sum(count for _, count in losses),
            samples=tuple(self._samples.pop(step, ())),
        )

    def apply(self, step: int, learning_rate: float, gradient_scale: float, skip: bool) -> None:
        """Scale the gradients and update, or drop them; a skipped step leaves no trace, not even in buffers."""
        if self._autograd.in_flight_until(step):
            raise LocalProtocolError("an update in the middle of a step")
        with self._timed("optimizer"), self._reporting(step, f"update of blocks {self._block_names}"):
            self._step_gradients.work_on(step)
            self._versions.begin_update()
            if not skip:
                if gradient_scale != 1.0:
                    for gradient in self._gradients():
                        gradient.mul_(gradient_scale)
                for key, master in self._versions.masters.items():
                    master.grad = self._parameters[key].grad
                self._optimizer.step(learning_rate, delay=step - self._rule.version_of(step))
                for master in self._versions.masters.values():
                    master.grad = None
            self._step_gradients.drop(step)
        self._autograd.buffers.end(step, skipped=skip)

    def drop_step(self) -> None:
        """Forget all that is under way: graphs, gradients, sums, and what it did to buffers."""
        self._autograd.drop()
        self._tied.drop()
        self._step_gradients.drop_all()
        self._losses.clear()
        self._samples.clear()

    def tied_weights(self) -> dict[str, Tensor]:
        """Return, after `apply`, the new values that followers on other stages wait for, by follower's key."""
        self._versions.use(self._versions.newest)
        return {key: value.to("cpu", copy=True) for key, value in self._tied.weights().items()}

    def set_tied_weight(self, key: str, value: Tensor) -> None:
        """Take the owner's new value of the parameter `key` followed here."""
        self._versions.use(self._versions.newest)
        self._tied.set_weight(key, value)

    def take_seconds(self) -> StageSeconds:
        """Return the seconds computed since the last call."""
        taken = StageSeconds(*self._seconds.values())
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return taken

    # --- held-out data -------------------------------------------------------------------------------------------

    def evaluate(self, slot: Slot, inputs: Any, targets: Any) -> Any:
        """Run one held-out microbatch with the weights after its step, without side effects.

        Returns the output, or None at the last stage.
        """
        with self._reporting(slot.step, f"evaluation of microbatch {slot.index}"):
            self._versions.use(slot.step + 1)
            output = self._autograd.evaluate(slot, inputs)
            if not self._is_last:
                value, _ = conform(output, self._plan.boundaries[self._stage], count_samples(targets))
                return _to_host(value)
            with torch.no_grad():
                total = self._loss.total(output, self._to_device(targets))
            self._evaluated.append((float(total), self._loss.count(targets)))
            return None

    def end_of_evaluation(self) -> tuple[float, int]:
        """Return summed loss and target count of the evaluation at the last stage, and begin a new one."""
        evaluated, self._evaluated = self._evaluated, []
        return math.fsum(loss for loss, _ in evaluated), sum(count for _, count in evaluated)

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _copies(self) -> int:
        """Return how many versions of the weights lie in memory."""
        return self._plan.versions if self._plan.mode == "async" else 1

    @property
    def _is_last(self) -> bool:
        return self._stage == len(self._plan.stages) - 1

    @property
    def _block_names(self) -> str:
        first, last = self._blocks.start, self._blocks.stop - 1
        return f"{first}" if first == last else f"{first} to {last}"

    def _hand_over(self, slot: Slot, output: Any, targets: Any, samples: Sequence[int]) -> Any:
        count = len(samples) or count_samples(targets)
        value, leaves = conform(output, self._plan.boundaries[self._stage], count)
        self._autograd.hold(slot, leaves)
        return _to_host(value)

    def _to_device(self, value: Any) -> Any:
        leaves, structure = tree.flatten(value)
        return tree.unflatten(structure, [leaf.to(self._device, non_blocking=True) for leaf in leaves])

    def _gradients(self) -> list[Tensor]:
        return [each.grad for each in self._parameters.values() if each.grad is not None]

    def _squared_norm(self) -> float:
        norms = [_norm(gradient) for gradient in self._gradients()]
        return math.fsum(norm * norm for norm in torch.stack(norms).tolist()) if norms else 0.0

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        self._seconds[what] += time.perf_counter() - start

    @contextmanager
    def _reporting(self, step: int, what: str) -> Iterator[None]:
        try:
            yield
        except (StageError, LocalProtocolError):
            raise
        except BrigadeError as error:
            if step < 0:
                raise  # what a person wrote, or a checkpoint: its text says all
            raise StageError(stage=self._stage, step=step, what=what, error=str(error)) from error
        except Exception as error:
            raise StageError.of(error, stage=self._stage, step=step, what=what) from error


def _norm(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    dtype = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=dtype)
    return norm


def _to_host(value: Any) -> Any:
    leaves, structure = tree.flatten(value)
    return tree.unflatten(structure, [leaf.detach().to("cpu") for leaf in leaves])
