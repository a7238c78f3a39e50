"""Forward and backward of consecutive blocks, one microbatch at a time, with any number of them in flight.

Where the value of another stage arrives, a graph begins and its gradient is kept for that stage. Every block runs
under its own seed, so masks of dropout depend on (run seed, step, microbatch, block) only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from brigade.node.randomness import seed_block
from brigade.node.stage_error import StageError
from brigade.node.step_buffers import StepBuffers
from brigade.partition import tree
from brigade.wire.errors import BrigadeError, LocalProtocolError
from brigade.wire.message_parts import Slot

Gradients = list[Tensor | None]  # one for each tensor of a boundary value; None is zero


class _Arrival(torch.autograd.Function):
    """Begin a graph at a tensor that came from another stage, and keep the gradient that comes back to it.

    A leaf that requires a gradient would do, but blocks may change their input in place, and leaves forbid it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, anchor: Tensor, tensor: Tensor, gradients: Gradients, index: int) -> Tensor:
        """Pass `tensor` on; `anchor` is what requires a gradient."""
        del anchor
        ctx.kept = (gradients, index)  # type: ignore[attr-defined]
        return tensor.detach()

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[None, None, None, None]:
        """Keep the gradient."""
        kept, index = ctx.kept  # type: ignore[attr-defined]
        kept[index] = gradients[0]
        return None, None, None, None


@dataclass(frozen=True, slots=True)
class _InFlight:
    """One microbatch between its forward and its backward."""

    roots: list[Tensor]  # what leaves the stage, with its graph
    input_gradients: Gradients  # filled by the backward


class AutogradStage:
    """The blocks of one stage, from `first_block` on; `first` and later stages differ in who wants input gradients."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        *,
        stage: int,
        first_block: int,
        run_seed: int,
        device: torch.device,
        recompute: bool,
        bf16: bool,
        versions: int = 1,
    ) -> None:
        self.blocks = {first_block + i: block for i, block in enumerate(blocks)}
        self._stage = stage
        self._run_seed = run_seed
        self._device = device
        self._recompute = recompute
        self._bf16 = bf16
        self._anchor = torch.zeros((), requires_grad=True)
        self.buffers = StepBuffers(self.blocks, versions)
        self._arrived: dict[Slot, Gradients] = {}
        self._in_flight: dict[Slot, _InFlight] = {}

    @property
    def in_flight(self) -> int:
        """Forwards held for their backward."""
        return len(self._in_flight)

    def in_flight_until(self, step: int) -> int:
        """Return how many forwards of this step and earlier ones are held."""
        return sum(slot.step <= step for slot in self._in_flight)

    def forward(self, slot: Slot, value: Any) -> Any:
        """Return the output for `value` with its graph; `hold` must follow."""
        if slot in self._in_flight:
            raise LocalProtocolError(f"the forward of microbatch {slot.index} of step {slot.step} has been run")
        self.buffers.begin(slot.step)
        leaves, structure = tree.flatten(value)
        leaves = [leaf.to(self._device, non_blocking=True) for leaf in leaves]
        gradients: Gradients = [None] * len(leaves)
        if self._stage > 0:
            leaves = [self._arrive(leaf, gradients, index) for index, leaf in enumerate(leaves)]
        self._arrived[slot] = gradients
        value = tree.unflatten(structure, leaves)
        with self._autocast():
            for index, block in self.blocks.items():
                value = self._run_block(slot, index, block, value)
        return value

    def hold(self, slot: Slot, roots: Sequence[Tensor]) -> None:
        """Keep the graphs of `roots`, what leaves this stage, for the backward."""
        self._in_flight[slot] = _InFlight(list(roots), self._arrived.pop(slot))

    def backward(self, slot: Slot, gradients: Sequence[Tensor | None]) -> Gradients:
        """Add to the gradients of all parameters; return those of the inputs. `gradients` match the held roots.

        A missing gradient is zero. The last stage's root is a scalar loss, with gradient 1.
        """
        held = self._in_flight.pop(slot, None)
        if held is None or len(gradients) != len(held.roots):
            raise LocalProtocolError(
                f"no forward waits for these gradients of microbatch {slot.index}, step {slot.step}"
            )
        pairs = [
            (root, gradient.to(device=root.device, dtype=root.dtype, non_blocking=True))
            for root, gradient in zip(held.roots, gradients, strict=True)
            if gradient is not None and root.requires_grad
        ]
        if pairs:
            torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
        return held.input_gradients

    @torch.no_grad()
    def evaluate(self, slot: Slot, value: Any) -> Any:
        """Return the output in evaluation mode, after the slot's step; modes and buffers are as before afterwards."""
        leaves, structure = tree.flatten(value)
        value = tree.unflatten(structure, [leaf.to(self._device, non_blocking=True) for leaf in leaves])
        with self._autocast(), self.buffers.as_after(slot.step):
            for index, block in self.blocks.items():
                with self._naming(slot, index, block), _evaluating(block):
                    seed_block(self._run_seed, slot, index, self._device)
                    originals = self.buffers.of[index].fork()
                    try:
                        value = block(value)
                    finally:
                        self.buffers.of[index].install(originals)
        return value

    def drop(self) -> None:
        """Forget everything in flight and what it did to buffers."""
        self._in_flight.clear()
        self._arrived.clear()
        self.buffers.drop_all()

    def _arrive(self, leaf: Tensor, gradients: Gradients, index: int) -> Tensor:
        if not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        arrived: Tensor = _Arrival.apply(self._anchor, leaf, gradients, index)  # type: ignore[no-untyped-call]
        return arrived

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)

    def _run_block(self, slot: Slot, index: int, block: nn.Module, value: Any) -> Any:
        run = self._block_run(slot, index, block)
        if not self._recompute:
            return run(value)
        with set_checkpoint_early_stop(False):  # stopping early is an exception through the block's own code
            return checkpoint(run, value, use_reentrant=False, preserve_rng_state=False)

    def _block_run(self, slot: Slot, index: int, block: nn.Module) -> Callable[[Any], Any]:
        """Return the forward of one microbatch, which gives the same the second time, and changes buffers once."""
        buffers = self.buffers.of[index]
        before: list[Tensor | None] | None = None

        def run(value: Any) -> Any:
            nonlocal before
            if self._recompute:
                value = _copy(value)  # the block may change its input in place, and needs it again
            with self._naming(slot, index, block):
                seed_block(self._run_seed, slot, index, self._device)
                if before is None:
                    before = buffers.fork()
                    output = block(value)
                    buffers.settle(before)
                    return output
                current = buffers.values()
                buffers.install(before)
                buffers.fork()
                try:
                    return block(value)
                finally:
                    buffers.install(current)

        return run

    @contextmanager
    def _naming(self, slot: Slot, index: int, block: nn.Module) -> Iterator[None]:
        try:
            yield
        except BrigadeError:
            raise
        except Exception as error:
            kind = "evaluation" if slot.evaluation else "forward"
            what = f"{kind} of microbatch {slot.index}, block {index} ({type(block).__name__})"
            raise StageError.of(error, stage=self._stage, step=slot.step, what=what) from error


def _copy(value: Any) -> Any:
    leaves, structure = tree.flatten(value)
    return tree.unflatten(structure, [leaf.clone() for leaf in leaves])


@contextmanager
def _evaluating(block: nn.Module) -> Iterator[None]:
    training = [module for module in block.modules() if module.training]  # some may be kept in evaluation mode
    block.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
