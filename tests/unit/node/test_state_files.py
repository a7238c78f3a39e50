import hashlib
import json
import math

import pytest
import torch
from safetensors.torch import save_file

from brigade.node.state_files import (
    StateFile,
    block_file,
    optimizer_file,
    optimizer_state_file,
    optimizer_states,
    parse_name,
    read,
    write,
)
from brigade.wire.errors import CheckpointError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (7, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back_as_they_were(dtype, shape, tmp_path):
    tensor = torch.randint(0, 2, shape).to(dtype)
    (spec,) = write(tmp_path, {block_file(3): StateFile({"a.weight": tensor}, {"format": 1, "block": 3})})
    content = (tmp_path / "block-003.safetensors").read_bytes()
    assert (spec.name, spec.size) == ("block-003.safetensors", len(content))
    assert spec.sha256 == hashlib.sha256(content).hexdigest()
    back = read(tmp_path / spec.name)
    assert back.facts == {"format": 1, "block": 3}
    assert (back.tensors["a.weight"].dtype, back.tensors["a.weight"].shape) == (dtype, shape)
    assert torch.equal(back.tensors["a.weight"], tensor)


def test_a_block_without_state_has_a_file(tmp_path):
    write(tmp_path, {block_file(1000): StateFile({}, {"format": 1, "block": 1000})})
    assert read(tmp_path / "block-1000.safetensors") == StateFile({}, {"format": 1, "block": 1000})


def test_equal_states_give_equal_files(tmp_path):
    states = {name: {"step": torch.tensor(3.0), "count": 2} for name in ("b", "a")}
    sums = []
    for order in (["a", "b"], ["b", "a"]):
        file = optimizer_state_file({name: states[name] for name in order}, "Adam", 0)
        sums.append(write(tmp_path, {optimizer_file(0): file})[0].sha256)
    assert sums[0] == sums[1]


def test_optimizer_state_of_all_kinds_comes_back(tmp_path):
    states = {
        "layer/odd.weight": {"exp_avg": torch.randn(3), "step": torch.tensor(7.0), "updates": 3, "rate": 0.1},
        "bias": {"nothing": None, "flag": True, "history": [1, 0.5, "x"], "infinite": math.inf},
        "plain": {},
    }
    write(tmp_path, {optimizer_file(2): optimizer_state_file(states, "Mine", 2)})
    back = optimizer_states(read(tmp_path / optimizer_file(2)), "Mine", "file")
    assert back.keys() == states.keys()
    for name, state in states.items():
        assert back[name].keys() == state.keys()
        for key, value in state.items():
            same = torch.equal(back[name][key], value) if isinstance(value, torch.Tensor) else back[name][key] == value
            assert same, (name, key)


def test_state_that_has_no_file_is_refused():
    with pytest.raises(CheckpointError, match="block 4: Mine keeps a list as 'history' of bias"):
        optimizer_state_file({"bias": {"history": [torch.zeros(1)]}}, "Mine", 4)


def test_state_of_another_optimizer_is_refused():
    with pytest.raises(CheckpointError, match="holds the state of 'SGD', the run uses 'AdamW'"):
        optimizer_states(optimizer_state_file({}, "SGD", 0), "AdamW", "file")


@pytest.mark.parametrize("facts", [{}, {"values": 3}, {"values": {"a": 3}}, {"values": {}}], ids=str)
def test_facts_that_do_not_fit_are_refused(facts):
    file = StateFile({"a/step": torch.zeros(())}, {"optimizer": "SGD", **facts})
    with pytest.raises(CheckpointError):
        optimizer_states(file, "SGD", "file")


def test_names():
    assert parse_name(block_file(12)) == (12, "block")
    assert parse_name(optimizer_file(1234)) == (1234, "optimizer")
    for name in ("block-1.safetensors", "../block-001.safetensors", "block-001.pt", "block-001.safetensors.partial"):
        with pytest.raises(CheckpointError, match="is not a state file"):
            parse_name(name)


def test_a_torn_file_is_refused_at_every_length(tmp_path):
    write(tmp_path, {block_file(0): StateFile({"a": torch.ones(8)}, {"format": 1})})
    content = (tmp_path / block_file(0)).read_bytes()
    torn = tmp_path / "torn.safetensors"
    for length in range(len(content)):
        torn.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(torn)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "not written by this program"),
        ({"other": "x"}, "not written by this program"),
        ({"brigade": "{"}, "cannot be read"),
        ({"brigade": json.dumps([1])}, "another format"),
        ({"brigade": json.dumps({"format": 99})}, "another format"),
    ],
)
def test_foreign_files_are_refused(metadata, message, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "x.safetensors")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read(tmp_path / "block-000.safetensors")


def test_a_refused_write_leaves_nothing_and_keeps_the_old_file(tmp_path, monkeypatch):
    write(tmp_path, {block_file(0): StateFile({"a": torch.ones(1)}, {"format": 1})})

    def no_space(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
        write(tmp_path, {block_file(0): StateFile({"a": torch.zeros(1)}, {"format": 1})})
    assert [path.name for path in tmp_path.iterdir()] == [block_file(0)]
    assert float(read(tmp_path / block_file(0)).tensors["a"]) == 1.0


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        write(tmp_path / "file", {block_file(0): StateFile({}, {"format": 1})})
