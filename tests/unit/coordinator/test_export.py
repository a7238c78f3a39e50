"""The exported file loads into the plain torch model, every dtype bit for bit, tied copies included; it says what it is."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.coordinator.test_checkpoints import spec_of

from brigade.coordinator.checkpoint_manifest import Manifest
from brigade.coordinator.checkpoints import PartialCheckpoint
from brigade.coordinator.export import export_model
from brigade.coordinator.store import Store
from brigade.partition.chain import plain_model
from brigade.partition.exported import load_plain
from brigade.wire.errors import CheckpointError, ConfigError
from brigade.wire.message_parts import FileSpec
from brigade.wire.plan import TiedParameter
from brigade.wire.run_spec import GptSpec, MlpSpec, RunSpec, TextData, TrainingSpec

MODEL = MlpSpec(input_size=4)


def save(run_dir, blocks, *, steps_done=4, tied=(), dropped=(), model=MODEL):
    """Seal a checkpoint of these blocks: [{name: tensor}], in the directory of a run of this model."""
    with Store(run_dir / "run.sqlite") as store:
        if store.load_run() is None:
            data = TextData(path="text.txt")
            store.create_run(
                "run-1", "same", RunSpec(name="r", seed=2, model=model, data=data, training=TrainingSpec(max_steps=9))
            )
    partial = PartialCheckpoint(run_dir / "checkpoints", steps_done)
    files = []
    for index, tensors in enumerate(blocks):
        kept = {name: t.contiguous() for name, t in tensors.items() if f"{index}.{name}" not in dropped}
        source = run_dir / "block"
        save_file(kept, source, metadata={"brigade": "{}"})
        data, name = source.read_bytes(), f"block-{index:03}.safetensors"
        source.unlink()
        partial.write(name, 0, len(data), data)
        files.append(spec_of(name, data))
    optimizer = b"anything"
    partial.write("block-000.optimizer.safetensors", 0, len(optimizer), optimizer)
    files.append(spec_of("block-000.optimizer.safetensors", optimizer))
    manifest = Manifest(
        run_id="run-1", identity="same", steps_done=steps_done, attempt=1, generation=0, tokens_seen=1,
        blocks=len(blocks), files=tuple(files), tied=tuple(tied),
    )  # fmt: skip
    partial.seal(manifest, 9)


def split(state):
    count = 1 + max(int(key.split(".")[0]) for key in state)
    return [
        {key.partition(".")[2]: t.clone() for key, t in state.items() if key.startswith(f"{i}.")} for i in range(count)
    ]


@pytest.mark.parametrize("kind", ["untied", "tied", "batch norm"])
def test_it_loads_strictly_into_the_plain_model(tmp_path, kind):
    if kind == "batch norm":
        spec = MlpSpec(input_size=4, hidden_sizes=(3, 3), num_labels=2, batch_norm=True)
    else:
        spec = GptSpec(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, tie_word_embeddings=kind == "tied")
    trained, fresh = plain_model(spec, 1), plain_model(spec, 2)
    state = trained.state_dict()
    tied, dropped = (), ()
    if kind == "tied":
        shared = {}
        for key, tensor in state.items():
            shared.setdefault(tensor.data_ptr(), []).append(key)
        ((owner, *followers),) = [keys for keys in shared.values() if len(keys) > 1]
        tied, dropped = (TiedParameter(owner=owner, followers=tuple(followers)),), followers
    save(tmp_path, split(state), tied=tied, dropped=dropped, model=spec)
    path = export_model(tmp_path)
    assert path == tmp_path / "model.safetensors"
    fresh.load_state_dict(load_file(path), strict=True)
    built_by_itself = load_plain(path)
    assert not built_by_itself.training
    for loaded in (fresh, built_by_itself):
        assert loaded.state_dict().keys() == state.keys()
        for key, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, state[key]), key


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.uint8]
)
def test_every_dtype_and_shape_comes_through(tmp_path, dtype):
    tensors = {
        "matrix": torch.arange(6).reshape(2, 3).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
    }
    save(tmp_path, [tensors])
    exported = load_file(export_model(tmp_path))
    assert set(exported) == {"0.matrix", "0.scalar", "0.empty"}
    for name, tensor in tensors.items():
        assert exported[f"0.{name}"].dtype == dtype
        assert exported[f"0.{name}"].shape == tensor.shape
        assert torch.equal(exported[f"0.{name}"], tensor)


def test_a_block_without_tensors_is_no_hindrance(tmp_path):
    save(tmp_path, [{"w": torch.ones(1)}, {}])
    assert set(load_file(export_model(tmp_path))) == {"0.w"}


def test_the_header_says_where_it_comes_from(tmp_path):
    save(tmp_path, [{"w": torch.ones(1)}])
    data = export_model(tmp_path).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", "run_id": "run-1", "steps": "4"}


def test_the_file_beside_it_says_which_model_it_is(tmp_path):
    save(tmp_path, [{"w": torch.ones(1)}])
    export_model(tmp_path)
    facts = json.loads((tmp_path / "model.json").read_text())
    model = facts.pop("model")
    assert facts == {"format": 1, "name": "r", "run_id": "run-1", "seed": 2, "steps_done": 4}
    assert model == {"kind": "mlp"} | {name: getattr(MODEL, name) for name in MODEL.__struct_fields__} | {
        "hidden_sizes": [128, 128]
    }


def test_the_code_that_the_readme_shows_uses_the_model(tmp_path, monkeypatch):
    readme = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    spec = GptSpec(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    run_dir = tmp_path / "runs" / "quickstart"
    run_dir.mkdir(parents=True)
    save(run_dir, split(plain_model(spec, 1).state_dict()), model=spec)
    export_model(run_dir)
    monkeypatch.chdir(tmp_path)
    shown = {"tokens": torch.arange(10).reshape(2, 5)}
    exec(code, shown)
    assert shown["logits"].shape == (2, 5, 256)
    assert torch.equal(shown["logits"], plain_model(spec, 1).eval()(shown["tokens"]))


def test_a_step_and_a_place_can_be_chosen(tmp_path):
    save(tmp_path, [{"w": torch.zeros(1)}], steps_done=2)
    save(tmp_path, [{"w": torch.ones(1)}], steps_done=4)
    target = tmp_path / "deep" / "two.safetensors"
    assert export_model(tmp_path, output=target, step=2) == target
    assert load_file(target)["0.w"].item() == 0.0
    assert json.loads(target.with_name("two.json").read_text())["steps_done"] == 2
    assert load_file(export_model(tmp_path))["0.w"].item() == 1.0
    with pytest.raises(ConfigError, match="no checkpoint of 3 steps; it has 2, 4"):
        export_model(tmp_path, step=3)


def test_without_a_checkpoint_there_is_nothing_to_export(tmp_path):
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        export_model(tmp_path)


def test_a_damaged_checkpoint_is_not_exported(tmp_path):
    save(tmp_path, [{"w": torch.ones(1)}])
    path = tmp_path / "checkpoints" / "step-000004" / "block-000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="wrong checksum"):
        export_model(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path):
    save(tmp_path, [{"w": torch.ones(1)}])
    (tmp_path / "taken").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"):
        export_model(tmp_path, output=tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_files_are_described_by_their_content():
    assert spec_of("x", b"y") == FileSpec(
        name="x", size=1, sha256="a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa"
    )
