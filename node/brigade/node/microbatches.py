"""The samples of a microbatch, ready for the first stage; and how many there are, for every stage."""

from pathlib import Path
from typing import Any

from brigade.node.datasets import load_tensors, open_source
from brigade.node.loss import build_loss
from brigade.node.parcels import Parcel
from brigade.partition import tree
from brigade.partition.batching import Batching, evaluation_batches
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Plan
from brigade.wire.run_spec import FactoryData, RunSpec


class Microbatches:
    """What flows through the pipeline, by slot. Only the first stage may `load`."""

    def __init__(self, spec: RunSpec, plan: Plan) -> None:
        training = spec.training
        self.batching = Batching(
            samples=plan.train_samples,
            batch_size=training.batch_size,
            microbatches=plan.microbatches,
            seed=spec.seed,
            shuffle=training.shuffle,
        )
        self._held_out = evaluation_batches(
            plan.validation_samples, self.batching.microbatch_samples, training.eval_batches
        )
        self._spec = spec
        self._loss = build_loss(training.loss)
        self._source: Any = None
        self._loaded: dict[Slot, Parcel] = {}
        self._tokens: dict[int, int] = {}

    @property
    def evaluation_count(self) -> int:
        """Return the number of microbatches of one evaluation."""
        return len(self._held_out)

    def open(self, path: Path | None) -> None:
        """Open the data, on the first stage; raises ConfigError when it cannot be used."""
        self._source = open_source(self._spec.data, None if isinstance(self._spec.data, FactoryData) else path)

    def sample_count(self, slot: Slot) -> int:
        """Return the number of samples of a slot; RemoteProtocolError when there is no such slot."""
        count = len(self._held_out) if slot.evaluation else self.batching.microbatch_count(slot.step)
        if slot.step < 0 or not 0 <= slot.index < count:
            raise RemoteProtocolError(f"there is no microbatch {slot.index} in step {slot.step}")
        if slot.evaluation:
            return len(self._held_out[slot.index])
        size, larger = divmod(self.batching.sample_count(slot.step), count)  # as `Batching.microbatch` cuts them
        return size + (slot.index < larger)

    def load(self, slot: Slot) -> Parcel:
        """Return the samples of a slot in host memory; a whole step is read at its first microbatch."""
        if slot.evaluation:
            return self._load_evaluation(slot)
        if slot not in self._loaded:
            self._loaded = self._load_step(slot.step)
        return self._loaded.pop(slot)

    def _load_step(self, step: int) -> dict[Slot, Parcel]:
        slots = [Slot(step=step, index=index) for index in range(self.batching.microbatch_count(step))]
        ids = [self.batching.microbatch(step, slot.index) for slot in slots]
        loaded = [load_tensors(self._source, "train", part) for part in ids]
        count = sum(self._loss.count(targets) for _, targets in loaded)
        return {
            slot: Parcel(inputs, targets, tuple(part.tolist()), count)
            for slot, part, (inputs, targets) in zip(slots, ids, loaded, strict=True)
        }

    def _load_evaluation(self, slot: Slot) -> Parcel:
        ids = self._held_out[slot.index]
        inputs, targets = load_tensors(self._source, "validation", ids)
        return Parcel(inputs, targets, tuple(ids.tolist()), self._loss.count(targets))

    def count_tokens(self, step: int, targets: Any) -> None:
        """Add the target elements of one microbatch to the count of its step."""
        leaves, _ = tree.flatten(targets)
        self._tokens[step] = self._tokens.get(step, 0) + sum(leaf.numel() for leaf in leaves)

    def take_tokens(self, step: int) -> int:
        """Return the target elements of a step that were counted, and forget them."""
        return self._tokens.pop(step, 0)
