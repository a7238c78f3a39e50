"""A model that cannot be loaded says why; that a good one loads bit for bit is shown where it is exported."""

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from brigade.partition.chain import plain_model
from brigade.partition.exported import load_plain
from brigade.wire.errors import CheckpointError, ConfigError
from brigade.wire.run_spec import ExportFacts, MlpSpec

MODEL = MlpSpec(input_size=3, hidden_sizes=(4,), num_labels=2)


def export(folder, *, model=MODEL, dropped=(), **changed):
    facts = ExportFacts(name="r", run_id="1", seed=5, steps_done=1, model=model)
    (folder / "model.json").write_bytes(msgspec.json.encode(msgspec.to_builtins(facts) | changed))
    state = plain_model(MODEL, 7).state_dict()
    save_file({key: tensor for key, tensor in state.items() if key not in dropped}, folder / "model.safetensors")
    return folder / "model.safetensors"


def test_a_model_comes_back_ready_for_use(tmp_path):
    model = load_plain(str(export(tmp_path)))
    inputs = torch.ones(5, 3)
    assert torch.equal(model(inputs), plain_model(MODEL, 7).eval()(inputs))


def test_weights_alone_say_what_is_missing(tmp_path):
    path = export(tmp_path)
    (tmp_path / "model.json").unlink()
    with pytest.raises(ConfigError, match=r"no .*model\.json; `brigade export` writes it"):
        load_plain(path)


def test_a_description_alone_says_what_is_missing(tmp_path):
    path = export(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match="no exported model"):
        load_plain(path)


@pytest.mark.parametrize("changed", [{"format": 2}, {"model": {"kind": "unknown"}}, {"seed": -1}])
def test_what_another_version_wrote_is_refused(tmp_path, changed):
    with pytest.raises(ConfigError, match=r"model\.json cannot be read"):
        load_plain(export(tmp_path, **changed))


@pytest.mark.parametrize("case", ["missing name", "other shape", "no tensors"])
def test_weights_of_another_model_are_refused(tmp_path, case):
    model = MlpSpec(input_size=4, hidden_sizes=(4,), num_labels=2) if case == "other shape" else MODEL
    path = export(tmp_path, model=model, dropped=("1.linear.bias",) if case == "missing name" else ())
    if case == "no tensors":
        path.write_bytes(b"hello")
    with pytest.raises(CheckpointError, match="does not hold the weights"):
        load_plain(path)
