"""Whatever crosses between stages: nestings, integers, bools, None, tensors passed on, returned twice or never used."""

import pytest
import torch
from tests.numerics.comparison import assert_equal_training, assert_same_bits, run_spec, warm_up
from tests.numerics.models import vectors
from tests.numerics.pipeline import Pipeline, even_splits
from tests.numerics.reference import Reference

from brigade.wire.run_spec import FactorySpec

MODELS = [
    "bool_mask", "int_positions", "nested_dict", "with_none", "passed_through", "twice", "never_used",
    "without_parameters", "in_place",
]  # fmt: skip


def factory(name, **arguments):
    return FactorySpec(factory=f"tests.numerics.models:{name}", arguments=arguments)


@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_one_machine(name, recompute):
    spec = run_spec(factory(name), microbatches=2, gradient_checkpointing=recompute, max_grad_norm=1.0)
    pipeline = Pipeline(spec, vectors(), list(range(7)), learning_rate=warm_up(1e-2), interleaving=3)
    reference = Reference(spec, vectors(), learning_rate=warm_up(1e-2))
    assert_equal_training(pipeline, reference, steps=6)


@pytest.mark.parametrize("optim", [{"optim": "AdamW"}, {"optim": "SGD", "optim_args": {"momentum": 0.9}}], ids=str)
@pytest.mark.parametrize("stages", [2, 6])
def test_an_output_that_is_unused_in_odd_steps(stages, optim):
    """Its producer has no gradient then: as in a plain loop, the optimizer leaves it alone."""
    spec = run_spec(factory("unused_on_odd_steps", microbatches=2), microbatches=2, batch_size=20, **optim)
    pipeline = Pipeline(spec, vectors(), even_splits(6, stages), learning_rate=warm_up(1e-2))
    reference = Reference(spec, vectors(), learning_rate=warm_up(1e-2))
    before = pipeline.state()
    seconds = {key for key in before if key.startswith("0.second")}
    for step in range(6):
        row, (loss, norm) = pipeline.step(step), reference.step(step)
        assert (row.loss, row.grad_norm) == (pytest.approx(loss, rel=1e-5), pytest.approx(norm, rel=1e-5))
        after = pipeline.state()
        changed = {key for key in seconds if not torch.equal(before[key], after[key])}
        assert changed == (set() if step % 2 else seconds)
        before = after
    torch.testing.assert_close(before, dict(reference.state()), rtol=1e-4, atol=1e-4)


def test_a_parameter_that_nobody_needs_stays_as_it_was():
    spec = run_spec(factory("never_used"), microbatches=2, optim="AdamW", weight_decay=0.1)
    pipeline = Pipeline(spec, vectors(), [0, 3, 6], learning_rate=warm_up(1e-2))
    before = {key: value for key, value in pipeline.state().items() if ".spare." in key}
    pipeline.run(range(3))
    assert before
    assert_same_bits({key: value for key, value in pipeline.state().items() if ".spare." in key}, before)


def test_the_order_of_arrivals_changes_no_bit():
    spec = run_spec(factory("nested_dict"), microbatches=8, max_grad_norm=1.0)
    runs = []
    for seed in (None, 1, 2):
        pipeline = Pipeline(spec, vectors(), [0, 1, 2, 4, 6], learning_rate=warm_up(1e-2), interleaving=seed)
        runs.append((pipeline.run(range(3)), pipeline.state()))
    for rows, state in runs[1:]:
        assert rows == runs[0][0]
        assert_same_bits(state, runs[0][1])
