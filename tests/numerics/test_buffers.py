"""Buffers equal those of one machine that sees the same microbatches, each counted once."""

import pytest
import torch
from tests.numerics.comparison import assert_equal_training, assert_same_bits, run_spec, warm_up
from tests.numerics.models import LABELS, WIDTH, vectors
from tests.numerics.pipeline import Pipeline, even_splits
from tests.numerics.reference import Reference

from brigade.node.datasets import FactorySource
from brigade.partition.schedule import SCHEDULES
from brigade.wire.run_spec import CnnSpec, FactoryData, FactorySpec, MlpSpec

MODELS = {
    "mlp": MlpSpec(input_size=WIDTH, hidden_sizes=(WIDTH,) * 5, num_labels=LABELS, batch_norm=True, dropout=0.1),
    "counting": FactorySpec(factory="tests.numerics.models:counting"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_equals_one_machine(model, recompute, schedule):
    spec = run_spec(model, schedule=schedule, gradient_checkpointing=recompute, optim="SGD")
    pipeline = Pipeline(spec, vectors(), [0, 2, 4, 6], learning_rate=warm_up(0.1), interleaving=1)
    reference = Reference(spec, vectors(), learning_rate=warm_up(0.1))
    assert_equal_training(pipeline, reference, steps=6)
    counts = {int(value) for key, value in pipeline.state().items() if key.endswith(("tracked", ".count"))}
    assert counts == {6 * 4}


def test_convolutions_equal_one_machine():
    model = CnnSpec(num_channels=2, image_size=4, hidden_channels=(8, 16), num_labels=LABELS)
    source = FactorySource(FactoryData(factory="tests.numerics.test_buffers:images"))
    spec = run_spec(model)
    pipeline = Pipeline(spec, source, [0, 1, 2, 3], learning_rate=warm_up(1e-2))
    assert_equal_training(pipeline, Reference(spec, source, learning_rate=warm_up(1e-2)), steps=6)


def images():
    train, validation = vectors().load("train", torch.arange(40).numpy()), None
    return [(x.view(2, 4, 4), y) for x, y in zip(*train, strict=True)], validation


def test_a_dropped_step_leaves_no_trace():
    spec = run_spec(MODELS["counting"], gradient_checkpointing=True)
    pipeline = Pipeline(spec, vectors(), even_splits(6, 2), learning_rate=warm_up(1e-2))
    plain = Pipeline(spec, vectors(), even_splits(6, 2), learning_rate=warm_up(1e-2))
    assert pipeline.run(range(2)) == plain.run(range(2))
    before = pipeline.state()
    pipeline.finish = lambda step: None  # type: ignore[method-assign] # all microbatches are through, no decision comes
    pipeline.step(2)
    for stage in pipeline.stages:
        stage.drop_step()
    del pipeline.finish
    assert_same_bits(pipeline.state(), before)
    assert pipeline.run(range(2, 4)) == plain.run(range(2, 4))
    assert_same_bits(pipeline.state(), plain.state())
