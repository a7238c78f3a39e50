"""Code that a run names is imported only from packages that the node's owner has named."""

import pytest

from brigade.node.consent import refused_code
from brigade.wire.run_spec import FactoryData, FactorySpec, GptSpec, RunSpec, TextData, TrainingSpec


def spec(model: str = "", data: str = "", loss: str = "cross_entropy") -> RunSpec:
    return RunSpec(
        name="r",
        model=FactorySpec(factory=model) if model else GptSpec(),
        data=FactoryData(factory=data) if data else TextData(path="x"),
        training=TrainingSpec(max_steps=1, loss=loss),
    )


def test_built_in_models_need_no_consent() -> None:
    assert refused_code(spec(), ()) == ""
    assert refused_code(spec(loss="mse"), ()) == ""


@pytest.mark.parametrize(
    ("run", "key"),
    [
        (spec(model="zoo.deep.models:build"), "model.factory"),
        (spec(data="zoo:data"), "data.factory"),
        (spec(loss="zoo.losses:huber"), "training.loss"),
    ],
)
def test_every_named_function_needs_its_package_to_be_trusted(run: RunSpec, key: str) -> None:
    reason = refused_code(run, ("zo", "zoo2"))
    assert key in reason
    assert "--trust zoo" in reason
    assert refused_code(run, ("other", "zoo")) == ""
