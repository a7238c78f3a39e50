import tomllib

import msgspec
import pytest

from brigade.cli.demo import new_directory, toml_text, write_run_file
from brigade.cli.example import example_file
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import RunSpec, TextData


def read_spec(path):
    return msgspec.convert(tomllib.loads(path.read_text()), RunSpec)


def test_the_demo_trains_what_the_quickstart_trains(tmp_path):
    spec = read_spec(write_run_file(tmp_path, None))
    quickstart = read_spec(example_file("quickstart/run.toml"))
    assert (spec.model, spec.training, spec.pipeline, spec.compression) == (
        quickstart.model,
        quickstart.training,
        quickstart.pipeline,
        quickstart.compression,
    )
    assert spec.output_dir == str(tmp_path)
    assert isinstance(spec.data, TextData)
    assert spec.data.path == str(example_file("shakespeare.txt"))


def test_the_quickstart_is_what_the_documents_say():
    spec = read_spec(example_file("quickstart/run.toml"))
    assert (spec.model.hidden_size, spec.model.num_hidden_layers, spec.model.num_attention_heads) == (128, 4, 4)
    assert (spec.training.batch_size, spec.training.microbatches, spec.training.max_steps) == (16, 4, 400)
    assert (spec.training.learning_rate, spec.training.lr_scheduler_type, spec.training.warmup_steps) == (
        3e-3,
        "cosine",
        20,
    )
    assert (spec.training.weight_decay, spec.training.max_grad_norm, spec.pipeline.nodes) == (0.1, 1.0, 3)
    assert (example_file("quickstart/run.toml").parent / spec.data.path).resolve() == example_file("shakespeare.txt")


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (8, 2), (400, 20)])
def test_a_short_run_warms_up_shortly(tmp_path, steps, warmup):
    training = read_spec(write_run_file(tmp_path, steps)).training
    assert (training.max_steps, training.warmup_steps) == (steps, warmup)


def test_toml_is_read_back_as_it_was():
    tables = {
        "name": 'a "quoted" \\ name é',
        "seed": 3,
        "small": 1e-8,
        "on": True,
        "part": {"list": [1, 2], "text": "x"},
    }
    assert tomllib.loads(toml_text(tables)) == tables


def test_directories_are_taken_in_turn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(new_directory(None)) for _ in range(3)] == ["runs/demo", "runs/demo-2", "runs/demo-3"]
    assert new_directory(tmp_path / "mine" / "own").is_dir()


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        new_directory(tmp_path / "file" / "run")


def test_an_example_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match="not installed"):
        example_file("no-such-file")
