"""The life of one stage: what it refuses, what it counts, and what its errors say. `tests/numerics` checks its numbers."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from brigade.node.stage_compute import StageCompute
from brigade.node.stage_error import StageError
from brigade.node.state_files import block_file, optimizer_file, write
from brigade.partition.chain import build_chain
from brigade.wire.errors import CheckpointError, ConfigError, LocalProtocolError, RemoteProtocolError
from brigade.wire.message_parts import Slot
from brigade.wire.plan import Boundary, LeafSpec, NodeContact, Plan, StagePlan
from brigade.wire.run_spec import FactoryData, FactorySpec, GptSpec, RunSpec, TrainingSpec

HERE = "tests.unit.node.stage_models"
SLOT = Slot(step=3, index=1)
ROWS = Boundary(structure=0, leaves=(LeafSpec(dtype="float32", fixed=(0, 4), per_sample=(1, 0)),))


def stage(model="plain", stage=0, cuts=(0, 2, 3), boundary=ROWS, **training):
    spec = FactorySpec(factory=f"{HERE}:{model}") if isinstance(model, str) else model
    run = RunSpec(
        name="stage",
        model=spec,
        data=FactoryData(factory=f"{HERE}:data"),
        training=TrainingSpec(**{"max_steps": 9, "optim": "SGD", "learning_rate": 1.0, "loss": "mse", **training}),
    )
    chain = build_chain(spec)
    contact = NodeContact(node_id="a", name="ada", public_key="", endpoint="")
    plan = Plan(
        run_id="run",
        generation=0,
        stages=tuple(StagePlan(contact=contact, first_block=a, end_block=b) for a, b in pairwise(cuts)),
        schedule="1f1b",
        microbatches=2,
        train_samples=8,
        validation_samples=0,
        boundaries=(boundary,) * (len(cuts) - 2),
        tied=chain.tied,
    )
    compute = StageCompute(chain, plan, stage, run)
    compute.load_initial()
    return compute


def rows(count=2):
    return torch.arange(4.0 * count).view(count, 4)


def run_step(compute, slot=SLOT):
    """One microbatch through a stage that is not the last."""
    output = compute.forward(slot, rows(), rows(), step_target_count=8)
    compute.backward(slot, [torch.ones_like(output)])
    return compute.end_of_step(slot.step)


def test_the_last_stage_tells_loss_targets_and_samples():
    compute = stage(stage=1)
    for index, samples in ((0, (5, 2)), (1, (7, 1))):
        slot = Slot(step=0, index=index)
        assert compute.forward(slot, rows(), torch.zeros(2, 4), step_target_count=16, samples=samples) is None
        (gradient,) = compute.backward(slot, None)
        assert gradient.shape == (2, 4)
    sums = compute.end_of_step(0)
    assert (sums.target_count, sums.samples, sums.finite) == (16, (5, 2, 7, 1), True)
    assert sums.loss_sum > 0
    assert sums.squared_norm > 0
    compute.apply(0, 0.1, 1.0, False)
    assert compute.end_of_step(1) == (0.0, True, 0.0, 0, ())  # nothing is carried over


def test_other_stages_tell_their_norm_only():
    compute = stage()
    sums = run_step(compute)
    assert (sums.loss_sum, sums.target_count, sums.samples) == (0.0, 0, ())
    expected = sum(float(p.grad.square().sum()) for p in compute._parameters.values())
    assert sums.squared_norm == pytest.approx(expected, rel=1e-6)


def test_the_first_stage_has_no_input_gradient():
    compute = stage()
    output = compute.forward(SLOT, rows(), rows(), step_target_count=8)
    assert compute.backward(SLOT, [torch.ones_like(output)]) == [None]


def test_the_output_is_free_of_the_graph():
    assert not stage().forward(SLOT, rows(), rows(), step_target_count=8).requires_grad


def test_the_update_is_scaled_and_made_once():
    compute = stage()
    before = {name: p.detach().clone() for name, p in compute._parameters.items()}
    run_step(compute)
    gradients = {name: p.grad.clone() for name, p in compute._parameters.items()}
    compute.apply(3, 0.5, 0.25, False)
    for name, p in compute._parameters.items():
        torch.testing.assert_close(p.data, before[name] - 0.5 * 0.25 * gradients[name])
        assert p.grad is None


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_skipped_step_changes_nothing(poison):
    compute = stage()
    before = {name: p.detach().clone() for name, p in compute._parameters.items()}
    output = compute.forward(SLOT, rows(), rows(), step_target_count=8)
    compute.backward(SLOT, [torch.full_like(output, poison)])
    sums = compute.end_of_step(3)
    assert not sums.finite
    compute.apply(3, 0.5, 1.0, True)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in compute._parameters.items())


def test_without_any_target_the_gradient_is_zero():
    compute = stage(stage=1, loss="cross_entropy")
    targets = torch.full((2,), -100)
    compute.forward(SLOT, rows(), targets, step_target_count=0)
    (gradient,) = compute.backward(SLOT, None)
    assert torch.equal(gradient, torch.zeros(2, 4))


def test_seconds_are_told_once():
    compute = stage()
    run_step(compute)
    compute.apply(3, 0.5, 1.0, False)
    assert min(compute.take_seconds()) > 0
    assert compute.take_seconds() == (0.0, 0.0, 0.0)


def test_parameters_are_counted_at_their_owner():
    model = GptSpec(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, tie_word_embeddings=True)
    tokens = Boundary(structure=0, leaves=(LeafSpec(dtype="float32", fixed=(0, 3, 4), per_sample=(1, 0, 0)),))
    whole = stage(model, cuts=(0, 3)).parameter_count
    parts = [stage(model, k, cuts=(0, 1, 3), boundary=tokens).parameter_count for k in (0, 1)]
    assert sum(parts) == whole
    assert parts[0] == 8 * 4


# --- errors name place and cause ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "what", "error"),
    [
        ("raises_in_forward", "forward of microbatch 1, block 1 (Raises)", "RuntimeError: no forward today"),
        ("out_of_memory", "forward of microbatch 1, block 1 (OutOfMemory)", "MemoryError"),
        ("raises_in_backward", "backward of microbatch 1, blocks 0 to 1", "ArithmeticError: no backward today"),
        ("returns_a_list", "forward of microbatch 1", "the last block returned the nesting ['l', [0]], planned was 0"),
        ("returns_more_rows", "forward of microbatch 1", "shape (3, 4), planned was (2, 4) for 2 samples"),
        ("returns_ints", "forward of microbatch 1", "is torch.int64, planned was torch.float32"),
    ],
)
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_an_error_of_a_block_names_place_and_cause(model, what, error, recompute):
    compute = stage(model, gradient_checkpointing=recompute)
    with pytest.raises(StageError) as caught:
        run_step(compute)
    assert (caught.value.stage, caught.value.step, caught.value.what) == (0, 3, what)
    assert error in caught.value.error
    assert str(caught.value) == f"stage 0 failed in step 3, {what}: {caught.value.error}"


def test_an_error_of_the_loss_names_place_and_cause():
    compute = stage(stage=1, loss="tests.unit.node.losses:raising")
    with pytest.raises(StageError) as caught:
        compute.forward(SLOT, rows(), rows(), step_target_count=2)
    assert (caught.value.stage, caught.value.what) == (1, "loss of microbatch 1")
    assert caught.value.error == "ValueError: no loss today"


def test_an_error_of_the_update_names_place_and_cause(monkeypatch):
    compute = stage()
    run_step(compute)

    def full(*arguments):
        raise MemoryError("moments need 3 GiB")

    monkeypatch.setattr(compute._optimizer._optimizers[0], "step", full)
    with pytest.raises(StageError, match="step 3, update of blocks 0 to 1: MemoryError: moments need 3 GiB"):
        compute.apply(3, 0.5, 1.0, False)


def test_an_error_of_evaluation_names_place_and_cause():
    compute = stage("raises_in_forward")
    with pytest.raises(StageError) as caught:
        compute.evaluate(Slot(step=3, index=0, evaluation=True), rows(), rows())
    assert caught.value.what == "evaluation of microbatch 0, block 1 (Raises)"


def test_what_a_person_wrote_is_no_stage_error():
    with pytest.raises(ConfigError, match=r"training\.optim"):
        stage(optim="Nothing")


# --- order of calls -------------------------------------------------------------------------------------------------


def test_calls_out_of_order_are_our_own_bug():
    compute = stage()
    with pytest.raises(LocalProtocolError, match="no forward waits"):
        compute.backward(SLOT, [torch.ones(2, 4)])
    compute.forward(SLOT, rows(), rows(), step_target_count=8)
    for call in (
        lambda: compute.forward(SLOT, rows(), rows(), step_target_count=8),
        lambda: compute.end_of_step(3),
        lambda: compute.apply(3, 0.1, 1.0, False),
        compute.snapshot,
        lambda: compute.backward(SLOT, None),
        lambda: compute.add_tied_gradient("0.x", torch.ones(1)),
        lambda: compute.set_tied_weight("0.x", torch.ones(1)),
    ):
        with pytest.raises(LocalProtocolError):
            call()
    with pytest.raises(RemoteProtocolError):
        compute.tied_parameter("0.x")


def test_a_dropped_step_can_be_begun_again():
    compute, plain = stage("normed"), stage("normed")
    compute.forward(SLOT, rows(), rows(), step_target_count=8)
    compute.forward(Slot(step=3, index=2), rows() * 2, rows(), step_target_count=8)
    compute.backward(SLOT, [torch.ones(2, 4)])
    compute.drop_step()
    assert run_step(compute) == run_step(plain)
    for each in (compute, plain):
        each.apply(3, 0.5, 1.0, False)
    for name, file in compute.snapshot().items():
        for key, value in plain.snapshot()[name].tensors.items():
            assert torch.equal(file.tensors[key], value), key


def test_evaluation_changes_neither_modes_nor_buffers():
    compute = stage("normed")
    norm = next(m for m in compute._autograd.blocks[1].modules() if isinstance(m, nn.BatchNorm1d))
    kept = compute._autograd.blocks[0].eval()  # a block that its author keeps in evaluation mode
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    slot = Slot(step=0, index=0, evaluation=True)
    assert torch.equal(compute.evaluate(slot, rows(), rows()), compute.evaluate(slot, rows(), rows()))
    assert norm.training
    assert not kept.training
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


# --- state ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_does_not_change_with_training():
    compute = stage(optim_args={"momentum": 0.9})
    run_step(compute)
    compute.apply(3, 0.5, 1.0, False)
    snapshot = compute.snapshot()
    copies = {(n, k): v.clone() for n, file in snapshot.items() for k, v in file.tensors.items()}
    assert {n for n, _ in copies} == {name(index) for name in (block_file, optimizer_file) for index in (0, 1)}
    run_step(compute)
    compute.apply(4, 0.5, 1.0, False)
    assert all(torch.equal(v, copies[n, k]) for n, file in snapshot.items() for k, v in file.tensors.items())


def test_loading_replaces_everything_that_was_begun(tmp_path):
    compute = stage()
    write(tmp_path, compute.snapshot())
    initial = {name: p.detach().clone() for name, p in compute._parameters.items()}
    run_step(compute)
    compute.apply(3, 0.5, 1.0, False)
    compute.forward(SLOT, rows(), rows(), step_target_count=8)
    compute.load_files(list(tmp_path.iterdir()))
    assert all(torch.equal(p, initial[name]) for name, p in compute._parameters.items())
    assert compute.end_of_step(3).squared_norm == 0.0


def test_files_that_do_not_fit_are_refused(tmp_path):
    compute = stage()
    write(tmp_path, compute.snapshot())
    paths = sorted(tmp_path.iterdir())
    for path in paths:
        with pytest.raises(CheckpointError, match=f"the checkpoint lacks {path.name}"):
            compute.load_files([each for each in paths if each != path])
    with pytest.raises(CheckpointError, match=r"the checkpoint lacks block-000\.safetensors \(found other\)"):
        compute.load_files([tmp_path / "other"])
    for model, message in (
        ("wider", r"weight is torch.float32 \(4, 4\), the model has torch.float32 \(4, 5\)"),
        ("doubled", r"weight is torch.float32 .*, the model has torch.float64"),
        ("normed", "block 1 differ: only one of them has"),
    ):
        with pytest.raises(CheckpointError, match=message):
            stage(model).load_files(paths)
    with pytest.raises(CheckpointError, match="holds the state of 'SGD', the run uses 'AdamW'"):
        stage(optim="AdamW").load_files(paths)


def test_a_frozen_parameter_with_moments_is_refused(tmp_path):
    compute = stage(optim_args={"momentum": 0.9})
    run_step(compute)
    compute.apply(3, 0.5, 1.0, False)
    write(tmp_path, compute.snapshot())
    with pytest.raises(CheckpointError, match=r"optimizer state of 0\.weight, which is not trained here"):
        stage(freeze=("0.weight",), optim_args={"momentum": 0.9}).load_files(list(tmp_path.iterdir()))


def test_state_that_is_no_tensor_is_refused_when_saved():
    with pytest.raises(CheckpointError, match="block 1: _extra_state is a dict"):
        stage("extra_state").snapshot()
