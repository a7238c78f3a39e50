"""A pretended device: the same numbers, the seconds of another machine, and on average the right ones."""

import pytest
import torch

from brigade.node import emulation
from brigade.node.emulated_speed import SpeedSource, parse_speed
from brigade.node.emulation import EmulatedStageCompute, emulated_report, forward_gflop
from brigade.node.stage_compute import StageCompute
from brigade.partition.chain import build_chain
from brigade.partition.measure import measure_chain
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Boundary, LeafSpec, NodeContact, Plan, StagePlan
from brigade.wire.run_spec import GptSpec, MlpSpec, RunSpec, TextData, TrainingSpec

ROWS = Boundary(structure=0, leaves=(LeafSpec(dtype="float32", fixed=(0, 6), per_sample=(1, 0)),))
IDS = Boundary(structure=0, leaves=(LeafSpec(dtype="int64", fixed=(0, 8), per_sample=(1, 0)),))
MLP = MlpSpec(input_size=6, hidden_sizes=(8, 8), num_labels=3)
SLOT = Slot(step=0, index=0)


def make(kind, *more, model=MLP, loss="mse"):
    spec = RunSpec(name="x", model=model, data=TextData(path="x"), training=TrainingSpec(max_steps=9, loss=loss))
    contact = NodeContact(node_id="a", name="ada", public_key="", endpoint="")
    chain = build_chain(model)
    plan = Plan(
        run_id="run", generation=0, schedule="1f1b", microbatches=2, train_samples=8, validation_samples=0, boundaries=(),
        stages=(StagePlan(contact=contact, first_block=0, end_block=len(chain.blocks)),),
    )  # fmt: skip
    compute = kind(chain, plan, 0, spec, "cpu", *more)
    compute.load_initial()
    return compute


class Clock:
    """Time that passes only by work and by sleep."""

    def __init__(self):
        self.wall_s = self.computed_s = 0.0
        self.slept = []
        self.wakes_late_s = 0.0

    def perf_counter(self):
        return self.wall_s

    def thread_time(self):
        return self.computed_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.wall_s += seconds + self.wakes_late_s

    def work(self, computed_s, others_s=0.0):
        self.computed_s += computed_s
        self.wall_s += computed_s + others_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(emulation, "time", clock)
    return clock


def test_operations_are_counted_on_paper():
    counts = forward_gflop(build_chain(MLP), ROWS, 5)
    products = [6 * 8, 8 * 8, 8 * 3]
    assert sum(counts) == pytest.approx(2 * 5 * sum(products) / 1e9)
    gpt = GptSpec(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    layers = forward_gflop(build_chain(gpt), IDS, 3)
    linear, attention = 2 * 3 * 8 * 12 * 16 * 16, 2 * 2 * 3 * 2 * 8 * 8 * 8
    assert layers[1] == layers[2] == pytest.approx((linear + attention) / 1e9, rel=0.01)
    assert layers[0] == 0


def test_the_numbers_are_those_of_the_machine_itself():
    plain, emulated = make(StageCompute), make(EmulatedStageCompute, SpeedSource("0.001 s/GFLOP"))
    inputs, targets = torch.randn(4, 6), torch.randn(4, 3)
    sums = []
    for compute in (plain, emulated):
        compute.forward(SLOT, inputs, targets, step_target_count=12, samples=(1, 2, 3, 4))
        compute.backward(SLOT, None)
        sums.append(compute.end_of_step(0))
        compute.apply(0, 0.1, 1.0, False)
    assert sums[0] == sums[1]
    for name, value in plain._parameters.items():
        assert torch.equal(value, emulated._parameters[name])


def test_a_forward_and_a_backward_take_the_time_of_their_operations(clock):
    compute = make(EmulatedStageCompute, SpeedSource("1000000 s/GFLOP"))
    compute.forward(SLOT, torch.randn(4, 6), torch.randn(4, 3), step_target_count=12, samples=(1, 2, 3, 4))
    compute.backward(SLOT, None)
    forward_s = 2 * 4 * (48 + 64 + 24) / 1e9 * 1e6
    assert clock.slept == pytest.approx([forward_s, 2 * forward_s])
    spent = compute.take_seconds()
    assert spent.forward_s == pytest.approx(forward_s, abs=0.2)
    assert spent.backward_s == pytest.approx(2 * forward_s, abs=0.2)


def test_a_stage_takes_the_time_that_its_blocks_were_counted_for(clock):
    """Attention included, which torch does not count where it computes on a processor."""
    gpt = GptSpec(vocab_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    compute = make(EmulatedStageCompute, SpeedSource("1000 s/GFLOP"), model=gpt, loss="cross_entropy")
    ids = torch.zeros(3, 8, dtype=torch.long)
    compute.forward(SLOT, ids, ids, step_target_count=24, samples=(1, 2, 3))
    assert clock.slept == pytest.approx([1000 * sum(forward_gflop(build_chain(gpt), IDS, 3))], rel=0.01)


def paced(compute, clock, work, forwards=1.0):
    with compute._paced("forward", forwards):
        clock.work(*work)


def test_a_factor_is_of_the_seconds_that_the_processor_computed(clock):
    compute = make(EmulatedStageCompute, SpeedSource("3x"))
    paced(compute, clock, (0.1,))
    assert clock.slept == pytest.approx([0.2])
    paced(compute, clock, (0.1, 0.05))  # others were on the processor for a while
    assert clock.slept == pytest.approx([0.2, 0.15])


def test_what_took_too_long_is_made_up_for(clock):
    compute = make(EmulatedStageCompute, SpeedSource("2x"))
    paced(compute, clock, (0.1, 0.2))  # 0.1 s late
    for _ in range(3):
        paced(compute, clock, (0.1,))
    assert clock.wall_s == pytest.approx(4 * 0.2)
    assert clock.slept == pytest.approx([0.0, 0.1, 0.1])


def test_waking_late_is_made_up_for(clock):
    compute = make(EmulatedStageCompute, SpeedSource("2x"))
    clock.wakes_late_s = 0.03
    paced(compute, clock, (0.1,))
    clock.wakes_late_s = 0.0
    paced(compute, clock, (0.1,))
    paced(compute, clock, (0.1,))
    assert clock.slept == pytest.approx([0.1, 0.07, 0.1])
    assert clock.wall_s == pytest.approx(3 * 0.2)
    assert compute.take_seconds().forward_s == pytest.approx(0.13 + 0.07 + 0.1)


def test_a_device_that_is_slowed_down_while_it_works(clock, tmp_path):
    path = tmp_path / "speed"
    path.write_text("2x")
    compute = make(EmulatedStageCompute, SpeedSource(f"@{path}"))
    paced(compute, clock, (0.1,))
    path.write_text(parse_speed("2x").slowed(3).text())
    paced(compute, clock, (0.1,))
    assert clock.slept == pytest.approx([0.1, 0.5])


def test_the_report_is_that_of_the_device_but_never_faster_than_here():
    chain = build_chain(MLP)
    report = measure_chain(chain, ROWS, TrainingSpec(max_steps=1, loss="mse"), 4, "cpu")
    gflop = forward_gflop(chain, ROWS, 4)
    slow = emulated_report(report, gflop, parse_speed("1000000 s/GFLOP"))
    for block, count in zip(slow.blocks, gflop, strict=True):
        if count:
            assert block.forward_s == pytest.approx(count * 1e6)
            assert block.backward_s == pytest.approx(2 * count * 1e6)
    assert emulated_report(report, gflop, parse_speed("1e-9 s/GFLOP")) == report
    double = emulated_report(report, gflop, parse_speed("2x"))
    assert [b.forward_s for b in double.blocks] == pytest.approx([2 * b.forward_s for b in report.blocks])
    assert double.boundaries == report.boundaries
