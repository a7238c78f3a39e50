"""What each block costs on this device: seconds and bytes, for the planner.

Bytes are exact, seconds are medians. Blocks with the same classes, shapes and settings cost the same and are measured
once; one real block is in memory at a time.

Saved bytes are what autograd keeps from a block's forward to its backward: its inputs once, and every other storage
saved that is no parameter, no buffer and no output (an output is the next block's input and counts there). With
gradient checkpointing they are the inputs alone, and the backward includes the forward.
"""

import statistics
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from brigade.partition import boundaries, tree
from brigade.partition.chain import Chain
from brigade.partition.delay import compensate
from brigade.partition.materialise import describe, seeded
from brigade.partition.optimizers import build_optimizers, hidden_matrices
from brigade.wire.costs import BlockCost, ChainReport
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Boundary
from brigade.wire.run_spec import TrainingSpec

WARM_UPS = 2
REPEATS = 5


@dataclass(frozen=True)
class _Case:
    """One block in its place: what decides about its cost."""

    index: int
    first: bool
    last: bool
    inputs: Boundary
    frozen: frozenset[str]  # names of parameters that get no gradient
    followed: frozenset[str]  # names of tied parameters that another block's owner updates
    matrices: frozenset[str]  # names of parameters that Muon would update


@dataclass(frozen=True)
class _Measured:
    cost: BlockCost
    dtypes: tuple[torch.dtype, ...]  # of the outputs, as autocast makes them here


def measure_chain(
    chain: Chain, inputs: Boundary, training: TrainingSpec, microbatch_samples: int, device: torch.device | str
) -> ChainReport:
    """Return costs and boundaries of the chain on `device` for microbatches of `microbatch_samples` samples.

    `inputs` is what enters the first block. Raises ConfigError for what no pipeline can train, naming the block.
    """
    device = torch.device(device)
    outputs = boundaries.trace(chain.blocks, inputs)
    followers = {key for tie in chain.tied for key in tie.followers}
    matrices = hidden_matrices(chain.blocks, chain.tied)
    known: dict[str, _Measured] = {}
    costs: list[BlockCost] = []
    between: list[Boundary] = []
    entering = inputs
    for index, paper in enumerate(chain.blocks):
        names = [name for name, _ in paper.named_parameters()]
        case = _Case(
            index=index,
            first=index == 0,
            last=index == len(chain.blocks) - 1,
            inputs=entering,
            frozen=frozenset(n for n in names if any(fnmatchcase(f"{index}.{n}", each) for each in training.freeze)),
            followed=frozenset(n for n in names if f"{index}.{n}" in followers),
            matrices=frozenset(n for n in names if f"{index}.{n}" in matrices),
        )
        signature = _signature(paper, case)
        if signature not in known:
            known[signature] = _measure(chain, case, outputs[index], training, microbatch_samples, device)
        measured = known[signature]
        entering = boundaries.with_dtypes(outputs[index], measured.dtypes)
        between.append(entering)
        costs.append(measured.cost)
    return ChainReport(
        fingerprint=chain.fingerprint, blocks=tuple(costs), boundaries=tuple(between[:-1]), tied=chain.tied
    )


def describe_chain(chain: Chain, inputs: Boundary) -> ChainReport:
    """Return what is known of a chain on paper: all but its costs, which are 0."""
    outputs = boundaries.trace(chain.blocks, inputs)
    nothing = BlockCost(
        forward_s=0.0,
        backward_s=0.0,
        optimizer_s=0.0,
        parameter_bytes=0,
        gradient_bytes=0,
        optimizer_bytes=0,
        saved_bytes=0,
        output_bytes=0,
    )
    return ChainReport(
        fingerprint=chain.fingerprint,
        blocks=(nothing,) * len(chain.blocks),
        boundaries=tuple(outputs[:-1]),
        tied=chain.tied,
    )


def _signature(block: nn.Module, case: _Case) -> str:
    modules = [
        (path, type(module).__module__, type(module).__qualname__, sorted(_settings(module)))
        for path, module in block.named_modules()
    ]
    place = (case.first, case.last, case.inputs, sorted(case.frozen), sorted(case.followed), sorted(case.matrices))
    return repr((modules, describe(block), place))


def _settings(module: nn.Module) -> Iterable[tuple[str, str]]:
    # Settings are plain attributes; whatever else a module holds is told by its repr.
    yield "repr", module.extra_repr()
    for name, value in vars(module).items():
        if isinstance(value, (bool, int, float, str, tuple, list)) and not name.startswith("_"):
            yield name, repr(value)


def _measure(
    chain: Chain, case: _Case, output: Boundary, training: TrainingSpec, samples: int, device: torch.device
) -> _Measured:
    where = boundaries.describe(case.index, chain.blocks[case.index])
    (block,) = chain.materialise(case.index, case.index + 1, 0, device)
    for name, parameter in block.named_parameters():
        if name in case.frozen:
            parameter.requires_grad_(False)
    with seeded(0), torch.enable_grad():
        bench = _Bench(block, case, training, samples, device)
        try:
            inputs, results = bench.forward()
        except Exception as error:
            raise ConfigError(f"model: {where} fails on {device}: {type(error).__name__}: {error}") from error
        leaves, structure = boundaries.flatten_output(results, where)
        expected = [leaf.shape(samples) for leaf in output.leaves]
        if not tree.same_shape(structure, output.structure) or [tuple(leaf.shape) for leaf in leaves] != expected:
            raise ConfigError(f"model: {where} returns another shape with values than without")
        input_bytes = boundaries.payload_bytes(case.inputs, samples)
        dtypes = tuple(leaf.dtype for leaf in leaves)
        del inputs, results, leaves
        saved_bytes = input_bytes if training.gradient_checkpointing else input_bytes + bench.saved_bytes()
        forward_s, backward_s = bench.time_passes()
        if training.gradient_checkpointing:
            backward_s += forward_s
        trained = {n: p for n, p in block.named_parameters() if p.requires_grad and n not in case.followed}
        optimizer_s, optimizer_bytes = _time_optimizer(training, trained, case.matrices, device)
    cost = BlockCost(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        parameter_bytes=_total_bytes((*block.parameters(), *block.buffers())),
        gradient_bytes=_total_bytes(p for p in block.parameters() if p.requires_grad),
        optimizer_bytes=optimizer_bytes,
        saved_bytes=saved_bytes,
        output_bytes=0 if case.last else boundaries.payload_bytes(boundaries.with_dtypes(output, dtypes), samples),
    )
    return _Measured(cost=cost, dtypes=dtypes)


class _Bench:
    """One real block with example inputs; runs it as a stage does."""

    def __init__(
        self, block: nn.Module, case: _Case, training: TrainingSpec, samples: int, device: torch.device
    ) -> None:
        self._block = block
        self._case = case
        self._training = training
        self._device = device
        self._leaves, self._structure = tree.flatten(boundaries.example(case.inputs, samples, device))

    def forward(self) -> tuple[list[Tensor], Any]:
        """Run once with fresh inputs; return their tensors and the result."""
        leaves = [leaf.detach() for leaf in self._leaves]
        if not self._case.first:
            for leaf in leaves:
                leaf.requires_grad_(leaf.is_floating_point() or leaf.is_complex())
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._training.bf16):
            return leaves, self._block(tree.unflatten(self._structure, leaves))

    def _roots(self, results: Any) -> list[Tensor]:
        """Return the tensors where the backward starts: the loss at the end of the chain."""
        leaves = tree.flatten(results)[0]
        if self._case.last and len(leaves) == 1 and leaves[0].is_floating_point():
            leaves = [_loss(leaves[0], self._training.loss)]
        return [leaf for leaf in leaves if leaf.requires_grad]

    def time_passes(self) -> tuple[float, float]:
        """Return the median seconds of forward and backward."""
        forwards, backwards = [], []
        for _ in range(WARM_UPS + REPEATS):
            start = self._now()
            _, results = self.forward()
            roots = self._roots(results)
            middle = self._now()
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
            end = self._now()
            forwards.append(middle - start)
            backwards.append(end - middle)
        return statistics.median(forwards[WARM_UPS:]), statistics.median(backwards[WARM_UPS:])

    def saved_bytes(self) -> int:
        """Return the bytes that autograd keeps, without parameters, buffers, inputs and outputs."""
        kept: dict[StorageWeakRef, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            leaves, results = self.forward()
            roots = self._roots(results)
        elsewhere = (*self._block.parameters(), *self._block.buffers(), *leaves, *tree.flatten(results)[0])
        for tensor in elsewhere:
            kept.pop(_storage(tensor), None)
        del roots
        return sum(kept.values())

    def _now(self) -> float:
        return _now(self._device)


def _loss(output: Tensor, loss: str) -> Tensor:
    # A loss of the user's own is not run here: it may want targets that we cannot invent.
    if loss == "cross_entropy" and output.dim() >= 2:
        logits = output.flatten(0, -2).float()
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=output.device))
    if loss == "mse":
        return F.mse_loss(output.float(), torch.zeros_like(output, dtype=torch.float32))
    return output


def _time_optimizer(
    training: TrainingSpec, parameters: Mapping[str, nn.Parameter], matrices: Container[str], device: torch.device
) -> tuple[float, int]:
    """Return the seconds of one late update, and the bytes of its state and of what passes through memory with it."""
    if not parameters:
        return 0.0, 0
    update = compensate(build_optimizers(parameters, training, matrices), training)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, 1e-3)
    seconds = []
    for _ in range(WARM_UPS + REPEATS):
        start = _now(device)
        try:
            update.step(training.learning_rate, delay=1)
        except Exception as error:
            raise ConfigError(f"training.optim: {training.optim} cannot update: {error}") from error
        seconds.append(_now(device) - start)
    return statistics.median(seconds[WARM_UPS:]), update.extra_bytes()


def _total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
