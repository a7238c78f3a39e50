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
from brigade.node.stage_state import load_blocks, load_optimizer, snapshot_stage
from brigade.node.state_files import StateFile
from brigade.node.tied_weights import TiedWeights
from brigade.partition import tree
from brigade.partition.chain import Chain
from brigade.partition.optimizers import hidden_matrices
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
        self._clear_sums()
        self._evaluated: list[tuple[float, int]] = []
        check_patterns(chain.blocks, spec.training.freeze)

    # --- state ---------------------------------------------------------------------------------------------------

    def load_initial(self) -> None:
        """Build the stage with the run's initial weights; ConfigError when the model or optimizer cannot be used."""
        with self._reporting(-1, f"loading blocks {self._block_names}"):
            blocks = self._chain.materialise(self._blocks.start, self._blocks.stop, self._spec.seed, self._device)
            by_index = dict(zip(self._blocks, blocks, strict=True))
            freeze(by_index, self._spec.training.freeze, self._plan.tied)
            self._tied = TiedWeights(self._plan.tied, by_index)
            self._parameters = {
                f"{index}.{name}": parameter
                for index, block in by_index.items()
                for name, parameter in block.named_parameters()
                if f"{index}.{name}" not in self._tied.copies
            }
            trained = {name: each for name, each in self._parameters.items() if each.requires_grad}
            matrices = hidden_matrices(self._chain.blocks, self._chain.tied)
            self._optimizer = StageOptimizer(trained, self._spec.training, matrices)
            self._autograd = AutogradStage(
                blocks,
                stage=self._stage,
                first_block=self._blocks.start,
                run_seed=self._spec.seed,
                device=self._device,
                recompute=self._spec.training.gradient_checkpointing or self._plan.stages[self._stage].recompute,
                bf16=self._spec.training.bf16,
            )
        self._clear_sums()

    def load_files(self, paths: Sequence[Path]) -> None:
        """Build the stage with the state in these files, two for each of its blocks, in any order.

        Raises CheckpointError when a file is missing, torn, or does not fit the model and optimizer.
        """
        self.load_initial()
        with self._reporting(-1, f"loading the checkpoint of blocks {self._block_names}"):
            load_blocks(self._autograd.blocks, paths)
            load_optimizer(self._optimizer, self._blocks, paths)

    def snapshot(self) -> dict[str, StateFile]:
        """Return copies in host memory of all state that a later `load_files` needs, by file name.

        To be called between steps, after `apply` and after the last `set_tied_weight`.
        """
        if self._autograd.in_flight:
            raise LocalProtocolError("a snapshot in the middle of a step")
        with self._reporting(-1, f"copying the state of blocks {self._block_names}"):
            return snapshot_stage(self._autograd.blocks, self._optimizer)

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
            output = self._autograd.forward(slot, inputs)
            if not self._is_last:
                return self._hand_over(slot, output, targets, samples)
        with self._timed("forward"), self._reporting(slot.step, f"loss of microbatch {slot.index}"):
            total = self._loss.total(output, self._to_device(targets))
            self._autograd.hold(slot, [total / max(1, step_target_count)])
            self._losses.append((float(total.detach()), self._loss.count(targets)))
            self._samples.extend(samples)
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
            of_inputs = self._autograd.backward(slot, [torch.ones(())] if gradients is None else gradients)
            return [None if each is None else each.to("cpu") for each in of_inputs]

    def tied_parameter(self, key: str) -> Tensor:
        """Return what a message about the follower `key` is about, for its shape and dtype.

        Raises RemoteProtocolError when nothing here goes by that key.
        """
        return self._tied.parameter(key).detach()

    def tied_gradients(self) -> dict[str, Tensor]:
        """Return, after the last backward, the gradients that owners on other stages wait for, by follower's key."""
        return self._tied.gradients()

    def add_tied_gradient(self, key: str, gradient: Tensor) -> None:
        """Take the gradient of the follower `key` for a parameter owned here."""
        self._tied.add_gradient(key, gradient)

    def end_of_step(self, step: int) -> StepSums:
        """Return the sums of a step, after its last backward and the last awaited tied gradient."""
        if self._autograd.in_flight:
            raise LocalProtocolError(f"{self._autograd.in_flight} microbatches have not been run backward")
        with self._timed("optimizer"), self._reporting(step, f"gradient norm of blocks {self._block_names}"):
            self._tied.sum_gradients()
            squared_norm = self._squared_norm()
        return StepSums(
            squared_norm=squared_norm,
            finite=math.isfinite(squared_norm),
            loss_sum=math.fsum(loss for loss, _ in self._losses),
            target_count=sum(count for _, count in self._losses),
            samples=tuple(self._samples),
        )

    def apply(self, step: int, learning_rate: float, gradient_scale: float, skip: bool) -> None:
        """Scale the gradients and update, or drop them; a skipped step leaves no trace, not even in buffers."""
        if skip:
            self.drop_step()
            return
        if self._autograd.in_flight:
            raise LocalProtocolError("an update in the middle of a step")
        with self._timed("optimizer"), self._reporting(step, f"update of blocks {self._block_names}"):
            if gradient_scale != 1.0:
                for gradient in self._gradients():
                    gradient.mul_(gradient_scale)
            self._optimizer.step(learning_rate)
        self._autograd.end_step()
        self._clear_gradients()
        self._clear_sums()

    def drop_step(self) -> None:
        """Forget the step under way: graphs, gradients, sums, and what it did to buffers."""
        self._autograd.drop_step()
        self._tied.drop()
        self._clear_gradients()
        self._clear_sums()

    def tied_weights(self) -> dict[str, Tensor]:
        """Return, after `apply`, the new values that followers on other stages wait for, by follower's key."""
        return {key: value.to("cpu", copy=True) for key, value in self._tied.weights().items()}

    def set_tied_weight(self, key: str, value: Tensor) -> None:
        """Take the owner's new value of the parameter `key` followed here."""
        self._tied.set_weight(key, value)

    def take_seconds(self) -> StageSeconds:
        """Return the seconds computed since the last call."""
        taken = StageSeconds(*self._seconds.values())
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return taken

    # --- held-out data -------------------------------------------------------------------------------------------

    def evaluate(self, slot: Slot, inputs: Any, targets: Any) -> Any:
        """Run one held-out microbatch without side effects; return the output, or None at the last stage."""
        with self._reporting(slot.step, f"evaluation of microbatch {slot.index}"):
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

    def _clear_gradients(self) -> None:
        for block in self._autograd.blocks.values():
            block.zero_grad(set_to_none=True)

    def _clear_sums(self) -> None:
        self._losses: list[tuple[float, int]] = []
        self._samples: list[int] = []

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
