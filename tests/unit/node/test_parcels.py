"""Boundary values as messages and back: equal where the plan fits, a protocol error where it does not."""

from dataclasses import replace

import pytest
import torch

from brigade.compression.codec import build_codec
from brigade.node.parcels import (
    Parcel,
    is_light,
    pack_activation,
    pack_gradient,
    pack_tied,
    packs_lightly,
    unpack_activation,
    unpack_gradient,
    unpack_tied,
)
from brigade.partition import tree
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.messages import TiedWeight
from brigade.wire.plan import Boundary, LeafSpec, Plan

SLOT = Slot(step=3, index=1)
PLAN = Plan(
    run_id="r",
    generation=1,
    stages=(),
    schedule="1f1b",
    microbatches=2,
    train_samples=8,
    validation_samples=0,
    boundaries=(),
)
VALUE = {"h": torch.randn(2, 3, 4), "mask": torch.tensor([[True, False], [False, True]]), "extra": (None, 7)}
BOUNDARY = Boundary(
    structure=tree.flatten(VALUE)[1],
    leaves=(
        LeafSpec(dtype="float32", fixed=(0, 3, 4), per_sample=(1, 0, 0)),
        LeafSpec(dtype="bool", fixed=(0, 2), per_sample=(1, 0)),
    ),
)
PARCEL = Parcel(VALUE, torch.tensor([[1, -100], [3, 4]]), (5, 6), 9)


def sent():  # type: ignore[no-untyped-def]
    outgoing = pack_activation(PLAN, SLOT, PARCEL, build_codec("raw"), 0)
    return outgoing.message, [memoryview(bytes(frame)) for frame in outgoing.frames]


def test_an_activation_comes_back_with_targets_and_samples() -> None:
    message, frames = sent()
    parcel = unpack_activation(message, frames, BOUNDARY, 2)
    assert torch.equal(parcel.value["h"], VALUE["h"])
    assert torch.equal(parcel.value["mask"], VALUE["mask"])
    assert parcel.value["extra"] == (None, 7)
    assert torch.equal(parcel.targets, PARCEL.targets)
    assert (parcel.samples, parcel.step_target_count) == ((5, 6), 9)


def test_targets_of_a_byte_vocabulary_cost_two_bytes_each_at_most() -> None:
    targets = torch.randint(0, 256, (16, 128))
    with_targets = pack_activation(PLAN, SLOT, replace(PARCEL, targets=targets), build_codec("raw"), 0).payload_bytes
    without = pack_activation(PLAN, SLOT, replace(PARCEL, targets=None), build_codec("raw"), 0).payload_bytes
    assert with_targets - without <= 2 * targets.numel()


@pytest.mark.parametrize(
    "leaf",
    [
        LeafSpec(dtype="float32", fixed=(0, 3, 5), per_sample=(1, 0, 0)),
        LeafSpec(dtype="bfloat16", fixed=(0, 3, 4), per_sample=(1, 0, 0)),
        LeafSpec(dtype="float32", fixed=(1, 3, 4), per_sample=(1, 0, 0)),
    ],
)
def test_another_shape_or_dtype_than_the_plans_is_refused(leaf: LeafSpec) -> None:
    message, frames = sent()
    with pytest.raises(RemoteProtocolError):
        unpack_activation(message, frames, replace(BOUNDARY, leaves=(leaf, BOUNDARY.leaves[1])), 2)


def test_wrong_samples_nesting_or_frames_are_refused() -> None:
    message, frames = sent()
    with pytest.raises(RemoteProtocolError, match="2 samples; the batching says 3"):
        unpack_activation(message, frames, BOUNDARY, 3)
    with pytest.raises(RemoteProtocolError, match="nesting"):
        unpack_activation(message, frames, replace(BOUNDARY, structure=["t", [0, 1]]), 2)
    with pytest.raises(RemoteProtocolError, match="frames"):
        unpack_activation(message, frames[:-1], BOUNDARY, 2)


def test_gradients_keep_their_places_and_absent_ones_cost_nothing() -> None:
    gradients = [torch.randn(2, 3, 4), None]
    outgoing = pack_gradient(PLAN, SLOT, gradients, build_codec("raw"), 0)
    back = unpack_gradient(outgoing.message, [memoryview(bytes(f)) for f in outgoing.frames], BOUNDARY, 2)  # type: ignore[arg-type]
    assert torch.equal(back[0], gradients[0])  # type: ignore[arg-type]
    assert back[1] is None
    assert outgoing.payload_bytes == 2 * 3 * 4 * 4


def test_a_gradient_with_other_places_is_refused() -> None:
    outgoing = pack_gradient(PLAN, SLOT, [torch.randn(2, 3, 4)], build_codec("raw"), 0)
    with pytest.raises(RemoteProtocolError, match="one place for each tensor"):
        unpack_gradient(outgoing.message, [memoryview(bytes(f)) for f in outgoing.frames], BOUNDARY, 2)  # type: ignore[arg-type]


def test_a_tied_weight_is_a_copy_and_must_have_the_right_shape() -> None:
    weight = torch.randn(3, 2)
    outgoing = pack_tied(TiedWeight, PLAN, 4, "5.w", weight)
    before = weight.clone()
    weight.zero_()  # the next update comes before the frames are sent
    assert isinstance(outgoing.message, TiedWeight)
    assert torch.equal(unpack_tied(outgoing.message.tensor, outgoing.frames, weight), before)
    with pytest.raises(RemoteProtocolError):
        unpack_tied(outgoing.message.tensor, outgoing.frames, torch.zeros(2, 3))


def test_what_costs_less_than_waking_a_thread() -> None:
    activation, frames = sent()
    assert is_light(activation, frames)
    assert packs_lightly(build_codec("raw"), PARCEL.value, PARCEL.targets)
    for codec in ("raw+zstd", "bf16", "int8:block=64"):
        assert not packs_lightly(build_codec(codec), PARCEL.value)
        coded = pack_gradient(PLAN, SLOT, [VALUE["h"]], build_codec(codec), 0)
        assert not is_light(coded.message, [memoryview(frame) for frame in coded.frames])
    assert not packs_lightly(build_codec("raw"), torch.empty(2**20))
    assert not packs_lightly(build_codec("raw"), VALUE, torch.empty(2**16, dtype=torch.int64))
    long = pack_activation(
        PLAN, SLOT, replace(PARCEL, targets=torch.zeros(2**16, dtype=torch.int64)), build_codec("raw"), 0
    )
    assert not is_light(long.message, [memoryview(frame) for frame in long.frames])  # small on the wire
