"""How near a pipeline has to come to the plain loop, and the run specs of these tests."""

from collections.abc import Callable
from typing import Any

import torch
from tests.numerics.pipeline import Pipeline, Row
from tests.numerics.reference import Reference

from brigade.wire.run_spec import FactoryData, ModelSpec, PipelineSpec, RunSpec, TrainingSpec


def run_spec(model: ModelSpec, *, schedule: str = "1f1b", seed: int = 7, **training: Any) -> RunSpec:
    training = {"max_steps": 20, "batch_size": 16, "microbatches": 4, "optim": "AdamW", **training}
    return RunSpec(
        name="numerics",
        seed=seed,
        model=model,
        data=FactoryData(factory="tests.numerics.models:token_data"),
        training=TrainingSpec(**training),
        pipeline=PipelineSpec(schedule=schedule),
    )


def warm_up(peak: float, steps: int = 5) -> Callable[[int], float]:
    """A learning rate that is another one in every early step."""
    return lambda step: peak * min(1.0, (step + 1) / steps)


def assert_equal_training(pipeline: Pipeline, reference: Reference, steps: int = 20) -> list[Row]:
    """Train both; loss and norm within 1e-5 relative in every step, state within 1e-4 at the end."""
    rows = []
    for step in range(steps):
        row = pipeline.step(step)
        loss, norm = reference.step(step)
        torch.testing.assert_close(
            torch.tensor([row.loss, row.grad_norm]), torch.tensor([loss, norm]), rtol=1e-5, atol=0.0,
            msg=lambda text, step=step: f"step {step}: {text}",
        )  # fmt: skip
        assert sorted(row.samples) == sorted(pipeline.batching.sample_ids(step).tolist())
        rows.append(row)
    assert min(row.loss for row in rows) < rows[0].loss  # something is learnt, so equality means something
    assert_same_state(pipeline.state(), reference.state())
    return rows


def assert_same_state(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-4):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            found[key], value, rtol=tolerance, atol=tolerance, msg=lambda text, key=key: f"{key}: {text}"
        )


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]):
    assert found.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []
