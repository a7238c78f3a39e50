import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from brigade.cli.trained import load_trained, validation_loss, written_sample
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
def weights(spec, tmp_path):
    model = plain_model(spec.model, 5)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_the_weights_of_the_file_are_those_of_the_model(spec, weights):
    model, original = load_trained(spec, weights), plain_model(spec.model, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), original.parameters(), strict=True))


def test_a_file_that_lacks_a_name_is_refused(spec, weights, tmp_path):
    tensors = plain_model(spec.model, 5).state_dict()
    tensors.popitem()
    save_file(tensors, tmp_path / "part.safetensors")
    with pytest.raises(RuntimeError, match="Missing key"):
        load_trained(spec, tmp_path / "part.safetensors")


def test_the_loss_is_the_mean_over_every_held_out_target(spec, weights):
    model = load_trained(spec, weights)
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


def test_a_sample_starts_with_its_prompt_and_is_the_same_each_time(spec, weights):
    model = load_trained(spec, weights)
    once, again = (written_sample(model, "AB\n", 20, 1) for _ in range(2))
    assert once == again
    assert once.startswith("AB\n")
    assert written_sample(model, "AB\n", 20, 2) != once


def test_a_sample_holds_nothing_that_a_terminal_obeys(spec, weights):
    written = written_sample(load_trained(spec, weights), "AB\n", 400, 1)
    assert all(letter.isprintable() or letter == "\n" for letter in written)
    assert "\N{REPLACEMENT CHARACTER}" in written, "an untrained model writes every byte"
