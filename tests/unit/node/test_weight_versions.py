"""Versions of weights, gradients by step and buffers from step to step, each by itself."""

import pytest
import torch
from torch import nn

from brigade.node.stage_state import load_older, older_versions, snapshot_older
from brigade.node.state_files import StateFile, write
from brigade.node.step_buffers import StepBuffers
from brigade.node.step_gradients import StepGradients
from brigade.node.weight_versions import WeightVersions
from brigade.wire.errors import CheckpointError, LocalProtocolError


def parameter(value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((2,), value))


def make(copies: int) -> tuple[nn.Parameter, nn.Parameter, WeightVersions]:
    weight = parameter(0.0)
    alias = nn.Parameter(weight.detach())
    versions = WeightVersions({"0.w": weight}, {"0.w"}, {"0.w": {"1.w": alias}}, copies=copies, version=0)
    return weight, alias, versions


def update(versions: WeightVersions, to: float) -> None:
    versions.begin_update()
    with torch.no_grad():
        versions.masters["0.w"].fill_(to)


def test_a_stage_computes_with_any_version_that_is_held():
    weight, alias, versions = make(2)
    update(versions, 1.0)
    for version in (0, 1, 0):
        versions.use(version)
        assert weight.tolist() == alias.tolist() == [float(version)] * 2
    memory = {each.data_ptr() for each in versions.older()[0].values()}
    update(versions, 2.0)
    assert versions.held == (1, 2)
    versions.use(2)
    assert weight.data_ptr() in memory, "the memory of the oldest is used again"
    with pytest.raises(LocalProtocolError, match=r"version 0 of the weights is gone: there are \(1, 2\)"):
        versions.use(0)


def test_an_update_is_not_seen_by_the_graphs_in_flight():
    for copies in (1, 2):
        weight, _, versions = make(copies)
        loss = (weight * weight).sum()  # saves the weight itself
        update(versions, 5.0)
        versions.use(0)
        loss.backward()
        assert weight.grad is not None
        # with one copy a backward uses the newest weights: that is what lowmem means
        assert weight.grad.tolist() == [10.0 if copies == 1 else 0.0] * 2


def test_older_versions_go_to_files_and_back(tmp_path):
    _, _, versions = make(3)
    update(versions, 1.0)
    update(versions, 2.0)
    files = snapshot_older((0, 1), versions.older())
    assert sorted(files) == [f"block-00{b}.older-{age}.safetensors" for b in (0, 1) for age in (1, 2)]
    assert older_versions([*files, "block-000.safetensors", "block-000.optimizer.safetensors"]) == 2
    write(tmp_path, files)
    _, _, again = make(3)
    again.newest = 2
    again._held = {2: again._held[0]}
    for age in (1, 2):
        again.load_older(age, load_older((0, 1), age, list(tmp_path.iterdir())))
    assert again.held == (0, 1, 2)
    assert [each["0.w"].tolist() for each in again.older()] == [[1.0, 1.0], [0.0, 0.0]]
    with pytest.raises(CheckpointError, match=r"1 updates ago have no 0\.w that fits"):
        again.load_older(1, {"0.w": torch.zeros(3)})
    assert isinstance(files["block-001.older-1.safetensors"], StateFile)
    assert files["block-001.older-1.safetensors"].tensors.keys() == {"w"}


def test_gradients_of_two_steps_do_not_mix():
    first, second = parameter(1.0), parameter(2.0)
    gradients = StepGradients((first, second))
    for step in (4, 5, 4):
        gradients.work_on(step)
        (first.sum() * step).backward()
    gradients.work_on(5)
    assert (first.grad.tolist(), second.grad) == ([5.0, 5.0], None)
    gradients.drop(4)
    gradients.work_on(4)
    assert first.grad is None


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))


def test_a_skipped_step_is_left_out_where_every_order_of_events_leaves_it_out():
    for decided_late in (False, True):
        block = Counter()
        buffers = StepBuffers({0: block}, keep=2)

        def forward(step: int, by: float, block: Counter = block, buffers: StepBuffers = buffers) -> None:
            buffers.begin(step)
            buffers.of[0].fork()
            block.count += by

        def after(step: int, block: Counter = block, buffers: StepBuffers = buffers) -> float:
            with buffers.as_after(step):
                return float(block.count)

        forward(0, 1.0)
        if decided_late:
            forward(1, 100.0)
        buffers.end(0, skipped=False)
        assert after(0) == 1.0
        if not decided_late:
            forward(1, 100.0)
        buffers.end(1, skipped=True)
        assert after(1) == 1.0
        forward(2, 10.0)
        assert after(1) == 1.0
        buffers.end(2, skipped=False)
        forward(3, 1000.0)
        assert after(2) == 1.0, "step 2 ran behind the one that was skipped"
        buffers.end(3, skipped=False)
        assert after(3) == 1001.0
