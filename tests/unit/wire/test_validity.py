"""The rules for what fields may hold: each has a message that keeps it and one that breaks it."""

from dataclasses import replace

import pytest
import torch

from brigade.compression.dtypes import DTYPES
from brigade.wire import messages as m
from brigade.wire.costs import DeviceReport
from brigade.wire.errors import RemoteProtocolError
from brigade.wire.keys import node_id
from brigade.wire.limits import Limits
from brigade.wire.message_parts import FileSpec, Slot, StageStatistics, TensorHeader, ValueHeader
from brigade.wire.plan import Boundary, LeafSpec, NodeContact, Plan, StagePlan
from brigade.wire.validity import (
    ITEM_BYTES,
    check_frames,
    check_message,
    check_value_header,
    frame_count,
    is_node_name,
    is_safe_name,
)

KEY = "k" * 40
CONTACT = NodeContact(node_id=node_id(KEY), name="ada", public_key=KEY, endpoint="tcp://10.0.0.1:7801")
LEAF = LeafSpec(dtype="float32", fixed=(0, 8), per_sample=(1, 0))
PLAN = Plan(
    run_id="r",
    generation=0,
    stages=(
        StagePlan(contact=CONTACT, first_block=0, end_block=2),
        StagePlan(contact=CONTACT, first_block=2, end_block=3),
    ),
    schedule="1f1b",
    microbatches=2,
    train_samples=10,
    validation_samples=0,
    boundaries=(Boundary(structure=0, leaves=(LEAF,)),),
)


def tensor(shape=(2, 3), dtype="float32", codec="raw", frames=1):
    return TensorHeader(dtype=dtype, shape=shape, codec=codec, frames=frames)


def value(*tensors):
    return ValueHeader(structure=None, tensors=tensors)


def refused(message, words):
    with pytest.raises(RemoteProtocolError, match=words):
        check_message(message)


def test_dtypes_are_those_of_torch_and_of_the_codecs():
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES if hasattr(torch, name)} == {
        name: size for name, size in ITEM_BYTES.items() if hasattr(torch, name)
    }
    assert {name: info.item_bytes for name, info in DTYPES.items()} == ITEM_BYTES


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0, 5), (1,) * 16, (2**20, 2**10), (2**30 - 1,)], ids=lambda shape: f"{len(shape)}d"
)
def test_sound_tensors(shape):
    check_value_header(value(tensor(shape)))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (tensor(dtype="qint8"), "unknown dtype 'qint8'"),
        (tensor(dtype="torch.float32"), "unknown dtype"),
        (tensor((1,) * 17), "too many dimensions"),
        (tensor((-1, 3)), "below 0"),
        (tensor((2**40 + 1,)), "shape"),
        (tensor((2**31,)), "too large"),
        (tensor((2**40,) * 16), "too large"),
        (tensor((0, 2**40, 2**40)), "too large"),
        (tensor((2**32,) * 2), "too large"),  # 2**64: wraps to 0 in 64 bits
        (tensor(codec=""), "codec"),
        (tensor(codec="raw\x1b[2J"), "codec"),
        (tensor(codec="x" * 257), "codec"),
        (tensor(frames=-1), "frames is -1"),
        (tensor(frames=5000), "too many frames|frame count"),
    ],
)
def test_unsound_tensors(header, words):
    with pytest.raises(RemoteProtocolError, match=words):
        check_value_header(value(header))
    refused(m.TiedWeight(run_id="r", generation=1, step=1, parameter="0.w", tensor=header), words.split("|")[-1])


def test_a_value_has_a_bounded_number_of_tensors_and_frames():
    limits = Limits(max_tensors=2, max_frames=5)
    check_value_header(value(tensor(frames=2), tensor(frames=3)), limits)
    with pytest.raises(RemoteProtocolError, match="too many frames"):
        check_value_header(value(tensor(frames=3), tensor(frames=3)), limits)
    with pytest.raises(RemoteProtocolError, match="too many tensors"):
        check_value_header(value(*[tensor(frames=0)] * 3), limits)


def activation(own, targets, samples=()):
    return m.Activation(
        run_id="r",
        generation=1,
        slot=Slot(step=1, index=0),
        attempt=0,
        value=own,
        targets=targets,
        samples=samples,
        step_target_count=1,
    )


def test_frames_of_an_activation_are_those_of_value_and_targets():
    message = activation(value(tensor(frames=2), tensor(frames=0)), value(tensor(frames=3)))
    assert frame_count(message) == 5
    check_frames(message, [b"x"] * 5)
    for count in (4, 6):
        with pytest.raises(RemoteProtocolError, match=f"came with {count} frames and announces 5"):
            check_frames(message, [b"x"] * count)


def test_both_values_of_an_activation_share_the_limit_of_frames():
    half = value(tensor(frames=3))
    check_message(activation(half, half), Limits(max_frames=6))
    with pytest.raises(RemoteProtocolError, match="too many frames"):
        check_message(activation(half, half), Limits(max_frames=5))


def test_messages_without_payload_come_without_frames():
    check_frames(m.PulseEcho(number=1), [])
    with pytest.raises(RemoteProtocolError, match="came with 1"):
        check_frames(m.PulseEcho(number=1), [b""])
    check_frames(m.LinkProbe(number=1), [b"x"])


def test_frames_and_messages_have_a_largest_size():
    limits = Limits(max_frame_bytes=10, max_message_bytes=15)
    message = m.Gradient(run_id="r", generation=1, slot=Slot(step=1, index=0), attempt=0, value=value(tensor(frames=2)))
    check_frames(message, [b"x" * 10, b"x" * 5], limits)
    with pytest.raises(RemoteProtocolError, match="frame of 11 bytes"):
        check_frames(message, [b"x" * 11, b""], limits)
    with pytest.raises(RemoteProtocolError, match="16 bytes"):
        check_frames(message, [b"x" * 10, b"x" * 6], limits)


def test_a_part_lies_within_its_file():
    part = m.FilePart(name="data/a", offset=6, size=10)
    check_message(part)
    check_frames(part, [memoryview(b"1234")])
    with pytest.raises(RemoteProtocolError, match="beyond the 10 bytes"):
        check_frames(part, [b"12345"])
    with pytest.raises(RemoteProtocolError, match="at most 2"):
        check_frames(part, [b"123"], Limits(max_file_part_bytes=2))
    refused(replace(part, offset=11), "begins beyond")
    check_frames(m.FilePart(name="data/empty", offset=0, size=0), [b""])


def test_sample_ids():
    check_message(activation(value(), value(), samples=(5, 0, 2**40)))
    refused(activation(value(), value(), samples=(0, -1)), "samples has a number below 0")
    refused(activation(value(), value(), samples=tuple(range(65_537))), "too many sample ids: 65537")


@pytest.mark.parametrize(
    "name", ["a", "data/text.txt", "checkpoint/40/block-003.safetensors", "an ö/x y", "..a", "a..b/.c"]
)
def test_safe_names(name):
    assert is_safe_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "/etc/passwd", "..", "a/../b", "../a", "a/..", ".", "./a", "a//b", "a/", "a\\b", "C:/x", "c:x", "a\0b",
        "a\nb", "x" * 256, "a/" * 600 + "b", "\ud800", "ö" * 128, "\u202eevil",
    ],
)  # fmt: skip
def test_unsafe_names(name):
    assert not is_safe_name(name)


def test_node_names():
    assert is_node_name("ada-2")
    assert is_node_name("Zoë's laptop")
    for name in ("", " a", "a ", "a\nb", "\x1b[31m", "x" * 65):
        assert not is_node_name(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node_id": "ada"}, "id 'ada'"),
        ({"name": "\x07"}, "name"),
        ({"public_key": "k" * 39}, "public key"),
        ({"public_key": "k" * 39 + "'"}, "public key"),
        ({"endpoint": "tcp://0.0.0.0:7801"}, "every address"),
        ({"endpoint": "tcp://10.0.0.1:0"}, "port 0"),
        ({"endpoint": "ipc:///tmp/x"}, "only tcp"),
    ],
)
def test_contacts(change, words):
    check_message(m.ProfileBlocks(roster=(CONTACT,), colocated=1, inputs=None))
    refused(m.ProfileBlocks(roster=(CONTACT, replace(CONTACT, **change)), colocated=1, inputs=None), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": ()}, "too few stages"),
        ({"boundaries": ()}, "boundaries"),
        ({"microbatches": 0}, "microbatches"),
        ({"warm_ups": (1,)}, "warm-ups"),
        ({"warm_ups": (1, 2)}, "rise along the line"),
        ({"mode": "sloppy"}, "mode 'sloppy'"),
        ({"versions": 2}, "mode exact has versions"),
        ({"mode": "async"}, "mode async has versions"),
        ({"mode": "lowmem", "versions": 10**6}, "versions"),
        ({"stages": (PLAN.stages[0], replace(PLAN.stages[1], first_block=1))}, r"blocks \(1, 3\)"),
        ({"stages": (PLAN.stages[0], replace(PLAN.stages[1], end_block=2))}, r"blocks \(2, 2\)"),
        ({"boundaries": (Boundary(structure=0, leaves=(replace(LEAF, dtype="?"),)),)}, "unknown dtype"),
        ({"boundaries": (Boundary(structure=0, leaves=(replace(LEAF, fixed=(1,)),)),)}, "different lengths"),
        ({"boundaries": (Boundary(structure=0, leaves=(replace(LEAF, fixed=(2**50, 0)),)),)}, "beyond"),
    ],
)
def test_plans(change, words):
    check_message(m.LoadStage(plan=PLAN, stage=1, first_step=0))
    refused(m.LoadStage(plan=replace(PLAN, **change), stage=0, first_step=0), words)


def test_a_stage_is_one_of_its_plan():
    refused(m.LoadStage(plan=PLAN, stage=2, first_step=0), "stage 2")


def test_checksums_are_hexadecimal():
    good = FileSpec(name="a", size=1, sha256="0" * 64)
    check_message(m.StateSaved(generation=1, step=1, stage=0, files=(good,)))
    for checksum in ("", "0" * 63, "0" * 63 + "G", "A" * 64):
        refused(m.StateSaved(generation=1, step=1, stage=0, files=(replace(good, sha256=checksum),)), "checksum")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5])
def test_a_step_is_applied_with_finite_numbers(bad):
    good = m.ApplyStep(
        generation=1,
        step=1,
        learning_rate=0.0,
        gradient_scale=1.0,
        skip=False,
        evaluate=False,
        save=False,
        last=False,
    )
    check_message(good)
    refused(replace(good, learning_rate=bad), "rate")
    refused(replace(good, gradient_scale=bad), "rate")


def test_only_some_numbers_may_be_minus_one():
    check_message(m.NodeFailed(stage=-1, step=-1, what="", error=""))
    check_message(m.Pulse(number=0, incarnation="x"))
    refused(m.NodeFailed(stage=-2, step=-1, what="", error=""), "NodeFailed.stage is -2")
    refused(m.BeginTraining(generation=0, step=-1), "BeginTraining.step is -1")
    refused(m.Gradient(run_id="", generation=0, slot=Slot(step=-1, index=0), attempt=0, value=value()), "Slot.step")


def test_ports_and_times():
    good = m.MeasureLinks(to=(), payload_bytes=10, deadline_s=1.0)
    check_message(good)
    refused(replace(good, deadline_s=float("nan")), "time")
    refused(replace(good, payload_bytes=2**40), "asks for bytes")


def test_texts_of_nodes_have_a_largest_length():
    device = DeviceReport(kind="cpu", name="x", memory_bytes=1, host="h", threads=1, software="s")
    for message, field, most in (
        (m.NodeFailed(stage=-1, step=-1, what="", error=""), "what", 500),
        (m.NodeFailed(stage=-1, step=-1, what="", error=""), "error", 2500),
        (m.Leaving(reason=""), "reason", 2500),
        (m.Pulse(number=0, incarnation="x"), "doing", 500),
        (device, "software", 500),
    ):
        check_message(replace(message, **{field: "é" * most}))
        refused(replace(message, **{field: "é" * (most + 1)}), f"{field} has more than {most} characters")


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), 2**53, 2.0**60])
@pytest.mark.parametrize("field", ["wait_s", "wall_s", "forward_bytes", "tokens"])
def test_statistics_can_be_summed_and_shown(field, bad):
    good = m.StepApplied(
        generation=0, step=0, stage=0, statistics=StageStatistics(wall_s=2.0**53 - 1, tokens=2**53 - 1)
    )
    check_message(good)
    refused(replace(good, statistics=replace(good.statistics, **{field: bad})), f"StageStatistics.{field}")


def test_a_gradient_may_be_anything_but_negative():
    good = m.GradientsReady(generation=0, step=0, stage=0, squared_norm=0.0, finite=True, target_count=2**53 - 1)
    for squared_norm in (0.5, float("nan"), float("inf")):
        check_message(replace(good, squared_norm=squared_norm))
    refused(replace(good, squared_norm=-0.5), "squared norm")
    refused(replace(good, target_count=2**53), "target_count")
