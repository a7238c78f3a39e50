"""Data from files: windows, tokens, arrays, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brigade.partition.samples import open_data
from brigade.wire.errors import ConfigError, LocalProtocolError
from brigade.wire.plan import Boundary, LeafSpec
from brigade.wire.run_spec import ArrayData, FactoryData, TextData, TokenData


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_text_is_cut_into_windows_with_the_next_byte_as_target(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", bytes(range(30)))
    source = open_data(TextData(path="a.txt", sequence_length=4, validation_fraction=0.3), path)
    assert (source.train_count, source.validation_count) == (5, 2)  # of 21 and 9 bytes
    inputs, targets = source.load("train", np.array([0, 4, 1]))
    assert inputs.tolist() == [[0, 1, 2, 3], [16, 17, 18, 19], [4, 5, 6, 7]]
    assert (targets == inputs + 1).all()
    inputs, targets = source.load("validation", np.array([1]))
    assert (inputs.tolist(), targets.tolist()) == ([[25, 26, 27, 28]], [[26, 27, 28, 29]])


def test_text_boundary_says_what_load_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"x" * 100)
    source = open_data(TextData(path="a.txt", sequence_length=8, validation_fraction=0.0), path)
    leaf = LeafSpec(dtype="int64", fixed=(0, 8), per_sample=(1, 0))
    assert source.inputs == source.targets == Boundary(structure=0, leaves=(leaf,))
    assert source.validation_count == 0
    for array in source.load("train", np.arange(3)):
        assert (str(array.dtype), array.shape) == (leaf.dtype, leaf.shape(3))
        assert array.flags.writeable
        assert array.flags.c_contiguous


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(2, 400), length=st.integers(1, 20), fraction=st.floats(0, 0.9))
def test_no_byte_is_in_both_splits(tmp_path: Path, size: int, length: int, fraction: float) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(size, dtype=np.uint16))
    spec = TokenData(path="tokens.npy", sequence_length=length, validation_fraction=fraction)
    try:
        source = open_data(spec, path)
    except ConfigError:
        assert size - np.ceil(size * fraction) <= length or 0 < np.ceil(size * fraction) <= length
        return
    train = np.concatenate(source.load("train", np.arange(source.train_count)), axis=1)
    held_out = np.concatenate(source.load("validation", np.arange(source.validation_count)), axis=1)
    assert not set(train.ravel()) & set(held_out.ravel())
    assert size - len(set(train.ravel()) | set(held_out.ravel())) < 2 * length, (
        "only the ends of both splits are unused"
    )


def test_tokens_keep_their_values(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.array([4_000_000_000, 1, 2, 3, 4], dtype=np.uint32))
    source = open_data(TokenData(path="tokens.npy", sequence_length=4, validation_fraction=0.0), path)
    assert source.load("train", np.array([0]))[0].tolist() == [[4_000_000_000, 1, 2, 3]]


def test_arrays_become_what_models_take(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    inputs = np.arange(40, dtype=">f8").reshape(10, 2, 2)
    np.savez(path, inputs=inputs, targets=np.arange(10, dtype=np.uint8), other=np.zeros(3))
    source = open_data(ArrayData(path="a.npz", validation_fraction=0.25), path)
    assert (source.train_count, source.validation_count) == (7, 3)
    assert source.inputs.leaves == (LeafSpec(dtype="float32", fixed=(0, 2, 2), per_sample=(1, 0, 0)),)
    assert source.targets.leaves == (LeafSpec(dtype="int64", fixed=(0,), per_sample=(1,)),)
    values, labels = source.load("validation", np.array([2, 0]))
    assert (values.dtype, labels.dtype) == (np.float32, np.int64)
    assert values.tolist() == [inputs[9].tolist(), inputs[7].tolist()]
    assert labels.tolist() == [9, 7]


def test_ids_outside_the_split_are_our_bug(tmp_path: Path) -> None:
    source = open_data(TextData(path="a", sequence_length=4), write(tmp_path / "a", b"x" * 1000))
    for split, index in (("train", source.train_count), ("validation", source.validation_count), ("train", -1)):
        with pytest.raises(LocalProtocolError):
            source.load(split, np.array([index]))
    assert [len(array) for array in source.load("train", np.array([], dtype=np.int64))] == [0, 0]


TEXT = TextData(path="x", sequence_length=10)
TOKENS = TokenData(path="x", sequence_length=2)
ARRAYS = ArrayData(path="x")


def test_missing_and_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: there is no file .*nowhere"):
        open_data(TEXT, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is a directory"):
        open_data(TEXT, tmp_path)
    with pytest.raises(ConfigError, match="is empty"):
        open_data(TEXT, write(tmp_path / "empty", b""))
    with pytest.raises(ConfigError, match="has 9 bytes for training, but a window needs 11"):
        open_data(TEXT, write(tmp_path / "short", b"x" * 10))
    with pytest.raises(ConfigError, match=r"data\.validation_fraction: 0.05 of .* is 5 bytes, but a window needs 11"):
        open_data(TEXT, write(tmp_path / "tail", b"x" * 100))
    with pytest.raises(ConfigError, match="factory"):
        open_data(FactoryData(factory="a:b"), tmp_path / "empty")
    for spec in (TOKENS, ARRAYS):
        with pytest.raises(ConfigError, match="cannot be read"):
            open_data(spec, write(tmp_path / "noise", b"noise" * 9))


@pytest.mark.parametrize(
    "array", [np.zeros((3, 3), np.uint8), np.zeros(9), np.zeros(9, np.int32), np.zeros(9, np.uint64)]
)
def test_tokens_of_another_kind(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(ConfigError, match=rf"holds {array.dtype} of shape .*; expected a \.npy file with a flat array"):
        open_data(TOKENS, tmp_path / "t.npy")


def test_arrays_of_another_kind(tmp_path: Path) -> None:
    def refuse(match: str, **arrays: object) -> None:
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ConfigError, match=match):
            open_data(ARRAYS, tmp_path / "a.npz")

    refuse("holds 'inputs'; expected", inputs=np.zeros(3))
    refuse("expected the same number of rows", inputs=np.zeros((3, 2)), targets=np.zeros(4))
    refuse("expected the same number of rows", inputs=np.zeros(()), targets=np.zeros(()))
    refuse("none of them left for training", inputs=np.zeros((1, 2)), targets=np.zeros(1))
    refuse("complex128; expected numbers", inputs=np.zeros((9, 2), complex), targets=np.zeros(9))
    refuse("expected numbers", inputs=np.array(["a"] * 9), targets=np.zeros(9))
    refuse("cannot be read", inputs=np.array([{}] * 9, dtype=object), targets=np.zeros(9))
    np.save(tmp_path / "a.npy", np.zeros(9, np.uint8))
    with pytest.raises(ConfigError, match="is a single array"):
        open_data(ARRAYS, tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", inputs=np.zeros(3))
    with pytest.raises(ConfigError, match="is an archive"):
        open_data(TOKENS, tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["npy", "npz"])
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_read(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    path = tmp_path / f"damaged.{kind}"
    if kind == "npy":
        np.save(path, np.arange(50, dtype=np.uint8))
    else:
        np.savez_compressed(path, inputs=np.zeros((9, 2)), targets=np.zeros(9))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        source = open_data(TOKENS if kind == "npy" else ARRAYS, path)
    except ConfigError:
        return
    source.load("train", np.arange(source.train_count))
