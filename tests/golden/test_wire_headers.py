"""The bytes of every message: a change of the wire shows as a difference of tests/golden/wire_headers.txt."""

from pathlib import Path
from typing import get_args

import pytest

from brigade.wire import messages as m
from brigade.wire.costs import BlockCost, ChainReport, DeviceReport, LinkReport
from brigade.wire.encoding import Message, decode, encode
from brigade.wire.keys import node_id
from brigade.wire.message_parts import FileSpec, Slot, StageStatistics, TensorHeader, ValueHeader
from brigade.wire.messages import MESSAGES
from brigade.wire.plan import Boundary, LeafSpec, NodeContact, Plan, StagePlan, TiedParameter
from brigade.wire.run_spec import CompressionSpec, GptSpec, PipelineSpec, RunSpec, TextData, TrainingSpec

FILE_NAME = "wire_headers.txt"


def contact(name, letter):
    key = letter * 40
    return NodeContact(node_id=node_id(key), name=name, public_key=key, endpoint=f"tcp://[2001:db8::{letter}]:7801")


ADA, BO, CY = contact("ada", "a"), contact("bo", "b"), contact("cy", "c")
DEVICE = DeviceReport(
    kind="cuda", name="Some GPU", memory_bytes=2**36, host="m-17", threads=8, software="brigade 0.1.0, torch 2.9"
)
BOUNDARY = Boundary(
    structure=["d", [["hidden", 0], ["mask", ["t", [1, None]]]]],
    leaves=(
        LeafSpec(dtype="float32", fixed=(0, 128, 64), per_sample=(1, 0, 0)),
        LeafSpec(dtype="bool", fixed=(0, 128), per_sample=(1, 0)),
    ),
)
TIED = TiedParameter(owner="0.embedding.weight", followers=("5.head.weight",))
BLOCK = BlockCost(
    forward_s=0.001, backward_s=0.002, optimizer_s=0.0005, parameter_bytes=4096, gradient_bytes=4096,
    optimizer_bytes=8192, saved_bytes=65536, output_bytes=32768,
)  # fmt: skip
SPEC = RunSpec(
    name="sample",
    seed=7,
    model=GptSpec(),
    data=TextData(path="text.txt"),
    training=TrainingSpec(max_steps=100, optim_args={"amsgrad": True}),
    pipeline=PipelineSpec(nodes=3),
    compression=CompressionSpec(forward="int8:block=256+zstd", backward="bf16"),
)
PLAN = Plan(
    run_id="run-1",
    generation=3,
    stages=(
        StagePlan(contact=ADA, first_block=0, end_block=2, forward_codec="bf16", compute_share=0.25),
        StagePlan(contact=BO, first_block=2, end_block=6, recompute=True, compute_share=0.75),
    ),
    schedule="1f1b",
    microbatches=4,
    train_samples=1000,
    validation_samples=50,
    boundaries=(BOUNDARY,),
    tied=(TIED,),
    period_s=0.125,
    reason="two stages suffice",
    spares=(CY,),
)
FILE = FileSpec(name="checkpoint/40/block-003.safetensors", size=123_456, sha256="0123456789abcdef" * 4)
SLOT = Slot(step=41, index=3)
TENSOR = TensorHeader(dtype="bfloat16", shape=(4, 128, 64), codec="bf16+zstd", frames=1)
MASK = TensorHeader(dtype="bool", shape=(4, 128), codec="raw", frames=1)
VALUE = ValueHeader(structure=BOUNDARY.structure, tensors=(TENSOR, MASK))
TARGETS = ValueHeader(structure=0, tensors=(TensorHeader(dtype="int64", shape=(4, 128), codec="raw", frames=2),))
STATISTICS = StageStatistics(forward_s=0.5, backward_s=1.0, wall_s=2.0, forward_bytes=1024, tokens=2048)

EXAMPLES = (
    m.Hello(
        run_id="run-1", name="ada", incarnation="5f0c", proof="ab" * 32, device=DEVICE, data_port=7801,
        advertise="2001:db8::a", memory_limit_bytes=2**34,
    ),
    m.Welcome(
        run_id="run-1", spec=SPEC, name="ada", pulse_port=7701, bulk_port=7702, pulse_interval_s=1.0,
        silence_limit_s=15.0,
    ),
    m.Refused(code="bad_proof", reason="it does not have this run's invite"),
    m.Leaving(reason="SIGTERM"),
    m.NodeFailed(stage=1, step=-1, what="forward of microbatch 3", error="RuntimeError: größer als erlaubt"),
    m.ProfileBlocks(roster=(ADA, BO), colocated=2, inputs=BOUNDARY),
    m.Profiled(
        chain=ChainReport(fingerprint="f00d", blocks=(BLOCK, BLOCK), boundaries=(BOUNDARY,), tied=(TIED,)),
    ),
    m.MeasureLinks(to=(BO,), payload_bytes=1_048_576, deadline_s=10.0),
    m.LinksMeasured(links=(LinkReport(to=BO.node_id, rtt_s=0.002, bytes_per_s=1e8),)),
    m.LinkProbe(number=1),
    m.LinkProbeEcho(number=1),
    m.LoadStage(plan=PLAN, stage=1, first_step=40, checkpoint=(FILE,), data=None),
    m.StandBy(generation=3, reason="two of three nodes suffice"),
    m.StageLoaded(generation=3, stage=1, parameter_count=1_000_000),
    m.BeginTraining(generation=3, step=40),
    m.GradientsReady(
        generation=3, step=41, stage=1, squared_norm=0.25, finite=True, loss_sum=1024.5, target_count=512,
        samples=(3, 1, 4, 15),
    ),
    m.ApplyStep(
        generation=3, step=41, learning_rate=0.003, gradient_scale=0.5, skip=False, evaluate=True, save=False, last=False,
        warm_ups=(3, 0),
    ),
    m.StepApplied(generation=3, step=41, stage=1, statistics=STATISTICS),
    m.Evaluated(generation=3, step=41, loss_sum=99.75, target_count=64),
    m.StateSaved(generation=3, step=41, stage=1, files=(FILE,)),
    m.RunEnded(success=True, reason="all steps are done"),
    m.FileWanted(name="data/shakespeare.txt", offset=65536),
    m.FilePart(name="data/shakespeare.txt", offset=65536, size=100_000),
    m.Activation(
        run_id="run-1", generation=3, slot=SLOT, attempt=1, value=VALUE, targets=TARGETS, samples=(3, 1, 4, 15),
        step_target_count=2048,
    ),
    m.Gradient(run_id="run-1", generation=3, slot=SLOT, attempt=1, value=VALUE),
    m.TiedGradient(run_id="run-1", generation=3, step=41, parameter="5.head.weight", tensor=TENSOR),
    m.TiedWeight(run_id="run-1", generation=3, step=41, parameter="5.head.weight", tensor=TENSOR),
    m.Pulse(number=12, incarnation="5f0c", step=41, forwards=3, backwards=1, doing="backward of microbatch 1"),
    m.PulseEcho(number=12),
    m.StatusWanted(),
    m.StatusTold(status={"state": "training", "step": 41, "loss": 2.5, "nodes": [{"name": "ada"}], "error": None}),
    m.StopWanted(),
    m.RevokeWanted(node="ada"),
    m.Done(ok=False, reason="no node is called ada"),
)  # fmt: skip


def test_every_message_has_an_example():
    assert [type(example).__name__ for example in EXAMPLES] == list(MESSAGES)


def test_the_union_lists_every_message():
    assert list(get_args(Message)) == list(MESSAGES.values())


def test_bytes_of_every_message(golden):
    golden(FILE_NAME, "".join(f"{type(example).__name__} {encode(example).hex()}\n" for example in EXAMPLES))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_golden_bytes_decode_to_the_example(example):
    lines = (Path(__file__).parent / FILE_NAME).read_text(encoding="utf-8").splitlines()
    stored = dict(line.split() for line in lines)
    assert decode(bytes.fromhex(stored[type(example).__name__])) == example
