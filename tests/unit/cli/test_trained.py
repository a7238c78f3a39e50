import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from brigade.cli.trained import validation_loss, written_sample
from brigade.partition.chain import plain_model
from brigade.partition.samples import open_data
from brigade.wire.run_spec import GptSpec, RunSpec, TextData, TrainingSpec


@pytest.fixture
def spec(tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(32, 122)) * 40)
    return RunSpec(
        name="tiny",
        model=GptSpec(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16),
        data=TextData(path=str(text), sequence_length=16, validation_fraction=0.5),
        training=TrainingSpec(max_steps=1),
    )


@pytest.fixture
def model(spec):
    return plain_model(spec.model, 5).eval()


def test_the_loss_is_the_mean_over_every_held_out_target(spec, model):
    data = open_data(spec.data, Path(spec.data.path))
    assert data.validation_count > 64, "more than one batch, the last of another size"
    assert data.validation_count % 64 != 0
    losses = []
    for index in range(data.validation_count):
        inputs, targets = (torch.from_numpy(part) for part in data.load("validation", torch.tensor([index]).numpy()))
        with torch.no_grad():
            losses.append(functional.cross_entropy(model(inputs)[0], targets[0]).item())
    assert validation_loss(model, data) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert validation_loss(model, data) == pytest.approx(math.log(256), rel=0.1), "it has not been trained"


def test_a_sample_starts_with_its_prompt_and_is_the_same_each_time(model):
    once, again = (written_sample(model, "AB\n", 20, 1) for _ in range(2))
    assert once == again
    assert once.startswith("AB\n")
    assert written_sample(model, "AB\n", 20, 2) != once


def test_a_sample_holds_nothing_that_a_terminal_obeys(model):
    written = written_sample(model, "AB\n", 400, 1)
    assert all(letter.isprintable() or letter == "\n" for letter in written)
    assert "\N{REPLACEMENT CHARACTER}" in written, "an untrained model writes every byte"
