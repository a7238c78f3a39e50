"""Boundary values as messages and back: what the codec pool does for each microbatch.

Pure functions of their arguments, safe to call from several threads; nothing here knows sockets or schedules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from brigade.compression.codec import Codec, build_codec
from brigade.compression.tensors import pack, unpack
from brigade.partition import tree
from brigade.wire.encoding import Buffer
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import Slot, TensorHeader, ValueHeader
from brigade.wire.messages import Activation, Gradient, TiedGradient, TiedWeight
from brigade.wire.plan import Boundary, Plan

RAW = "raw"
TARGETS = "raw+zstd"
LIGHT_BYTES = 2**21  # at most a fraction of a millisecond to copy
LIGHT_TARGET_BYTES = 2**17  # as little to squeeze


@dataclass(frozen=True, slots=True)
class Parcel:
    """One microbatch as a stage receives it: inputs, targets, and what the step's mean is over."""

    value: Any
    targets: Any
    samples: tuple[int, ...]
    step_target_count: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An encoded message: header, frames, and how many bytes it would have been in plain fp32."""

    message: Activation | Gradient | TiedGradient | TiedWeight
    frames: list[Buffer]
    raw_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of all frames."""
        return sum(memoryview(frame).nbytes for frame in self.frames)


def packs_lightly(codec: Codec, value: Any, targets: Any = None) -> bool:
    """Tell whether packing costs less than waking another thread: tensors as they are, and few targets."""
    return codec.text == RAW and _bytes(value) <= LIGHT_BYTES and _bytes(targets) <= LIGHT_TARGET_BYTES


def is_light(message: Activation | Gradient, frames: Sequence[Buffer]) -> bool:
    """Tell whether unpacking costs less than waking another thread: a short copy, and few targets."""
    targets = message.targets.tensors if isinstance(message, Activation) else ()
    return (
        all(header.codec == RAW for header in message.value.tensors)
        and sum(memoryview(frame).nbytes for frame in frames) <= LIGHT_BYTES
        and sum(8 * math.prod(header.shape) for header in targets) <= LIGHT_TARGET_BYTES
    )


def pack_activation(plan: Plan, slot: Slot, parcel: Parcel, codec: Codec, seed: int) -> Outgoing:
    """Encode a stage's output with its targets for the next stage."""
    value, frames, raw_bytes = _pack_value(parcel.value, codec, seed)
    targets, target_frames, _ = _pack_value(parcel.targets, build_codec(TARGETS), 0)
    message = Activation(
        run_id=plan.run_id,
        generation=plan.generation,
        slot=slot,
        attempt=0,
        value=value,
        targets=targets,
        samples=parcel.samples,
        step_target_count=parcel.step_target_count,
    )
    return Outgoing(message, [*frames, *target_frames], raw_bytes)


def unpack_activation(message: Activation, frames: Sequence[Buffer], boundary: Boundary, sample_count: int) -> Parcel:
    """Decode what the previous stage has sent, holding it against the plan.

    Raises RemoteProtocolError for any nesting, dtype, shape or sample count that the plan does not say.
    """
    if len(message.samples) != sample_count:
        raise RemoteProtocolError(
            f"microbatch {message.slot.index} of step {message.slot.step} came with {len(message.samples)} samples; "
            f"the batching says {sample_count}"
        )
    own, theirs = _split(frames, message.value, message.targets)
    expected = [(leaf.dtype, leaf.shape(sample_count)) for leaf in boundary.leaves]
    if not tree.same_shape(boundary.structure, message.value.structure):
        raise RemoteProtocolError("the nesting of an activation differs from the plan's boundary")
    value = tree.unflatten(message.value.structure, unpack(message.value.tensors, own, expected))
    tree.check(message.targets.structure, len(message.targets.tensors))
    targets = tree.unflatten(message.targets.structure, unpack(message.targets.tensors, theirs, None))
    return Parcel(value, targets, message.samples, message.step_target_count)


def pack_gradient(plan: Plan, slot: Slot, gradients: Sequence[Tensor | None], codec: Codec, seed: int) -> Outgoing:
    """Encode the gradients of a stage's input leaves for the previous stage; None travels as nothing."""
    value, frames, raw_bytes = _pack_value(list(gradients), codec, seed)
    message = Gradient(run_id=plan.run_id, generation=plan.generation, slot=slot, attempt=0, value=value)
    return Outgoing(message, frames, raw_bytes)


def unpack_gradient(
    message: Gradient, frames: Sequence[Buffer], boundary: Boundary, sample_count: int
) -> list[Tensor | None]:
    """Decode the gradients of the boundary's leaves, in their order; None where there is none.

    Raises RemoteProtocolError for any leaf that does not fit the plan.
    """
    structure = message.value.structure
    tree.check(structure, len(message.value.tensors))
    places = tree.unflatten(structure, list(range(len(message.value.tensors))))
    if not isinstance(places, list) or len(places) != len(boundary.leaves):
        raise RemoteProtocolError("a gradient does not have one place for each tensor of the plan's boundary")
    present = [leaf for leaf, place in zip(boundary.leaves, places, strict=True) if place is not None]
    if len(present) != len(message.value.tensors):
        raise RemoteProtocolError("a gradient holds something that is not a tensor")
    expected = [(leaf.dtype, leaf.shape(sample_count)) for leaf in present]
    tensors = iter(unpack(message.value.tensors, list(frames), expected))
    return [None if place is None else next(tensors) for place in places]


def pack_tied(
    kind: type[TiedGradient] | type[TiedWeight], plan: Plan, step: int, parameter: str, tensor: Tensor
) -> Outgoing:
    """Encode the gradient or the value of a tied parameter, without loss."""
    # a copy: frames share memory until they are sent, and the next update comes before that
    headers, frames = pack([tensor.clone()], build_codec(RAW), 0)
    message = kind(run_id=plan.run_id, generation=plan.generation, step=step, parameter=parameter, tensor=headers[0])
    return Outgoing(message, frames, tensor.numel() * 4)


def unpack_tied(header: TensorHeader, frames: Sequence[Buffer], like: Tensor) -> Tensor:
    """Decode a tied parameter's gradient or value; it must have the dtype and shape of `like`."""
    expected = [(str(like.dtype).removeprefix("torch."), tuple(like.shape))]
    return unpack([header], list(frames), expected)[0]


def _pack_value(value: Any, codec: Codec, seed: int) -> tuple[ValueHeader, list[Buffer], int]:
    leaves, structure = tree.flatten(value)
    headers, frames = pack(leaves, codec, seed)
    raw_bytes = sum(leaf.numel() * (4 if leaf.is_floating_point() else leaf.element_size()) for leaf in leaves)
    return ValueHeader(structure=structure, tensors=headers), frames, raw_bytes


def _bytes(value: Any) -> int:
    return sum(leaf.nbytes for leaf in tree.flatten(value)[0])


def _split(frames: Sequence[Buffer], value: ValueHeader, targets: ValueHeader) -> tuple[list[Buffer], list[Buffer]]:
    own = sum(header.frames for header in value.tensors)
    theirs = sum(header.frames for header in targets.tensors)
    if own + theirs != len(frames):
        raise RemoteProtocolError(f"a message announced {own + theirs} frames and came with {len(frames)}")
    return list(frames[:own]), list(frames[own:])
