import numpy as np
import pytest
import torch

from brigade.node.datasets import load_tensors, open_source
from brigade.wire.errors import ConfigError, LocalProtocolError
from brigade.wire.run_spec import FactoryData, TextData

HERE = "tests.unit.node.losses"


def factory(name):
    return FactoryData(factory=f"{HERE}:{name}")


def test_samples_of_a_function_are_stacked_inside_nestings():
    source = open_source(factory("nested_data"))
    assert (source.train_count, source.validation_count) == (5, 2)
    inputs, targets = load_tensors(source, "train", np.array([3, 0]))
    assert inputs["none"] is None
    assert [part.tolist() for part in inputs["x"]] == [[3.0, 0.0], [3, 0]]
    assert isinstance(targets, tuple)
    assert [part.tolist() for part in targets] == [[False, True], [[3, 3], [0, 0]]]


def test_boundaries_of_a_function_tell_what_it_gives():
    source = open_source(factory("nested_data"))
    inputs, targets = load_tensors(source, "validation", np.array([0, 1, 0]))
    for boundary, leaves in ((source.inputs, inputs["x"]), (source.targets, targets)):
        found = [(str(leaf.dtype)[6:], tuple(leaf.shape)) for leaf in leaves]
        assert [(leaf.dtype, leaf.shape(3)) for leaf in boundary.leaves] == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not_pairs", r"must return \(train, validation\)"),
        ("three_things", r"must return \(train, validation\).*ValueError: too many values"),
        ("empty", "returned no training samples"),
        ("nowhere", "no function 'nowhere'"),
    ],
)
def test_what_a_function_does_wrong_is_named(name, message):
    with pytest.raises(ConfigError, match=f"data.factory: .*{message}"):
        open_source(factory(name))


def test_samples_that_do_not_stack_are_named():
    source = open_source(factory("uneven_data"))
    assert source.validation_count == 0
    with pytest.raises(ConfigError, match=r"the train samples \[0, 2\] of .*uneven_data do not stack"):
        source.load("train", np.array([0, 2]))


def test_a_file_becomes_tensors(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(100)))
    source = open_source(TextData(path="text", sequence_length=8, validation_fraction=0.2), tmp_path / "text")
    inputs, targets = load_tensors(source, "train", np.array([1]))
    assert torch.equal(inputs, torch.arange(8, 16)[None])
    assert torch.equal(targets, torch.arange(9, 17)[None])


def test_a_file_needs_a_place():
    with pytest.raises(LocalProtocolError):
        open_source(TextData(path="text"))
