"""What crosses between blocks is found while planning, and what cannot cross is refused by name."""

import math

import pytest
import torch

from brigade.partition import boundaries, tree
from brigade.partition.chain import build_chain, plain_model
from brigade.wire.errors import ConfigError
from brigade.wire.plan import Boundary, LeafSpec
from brigade.wire.run_spec import CnnSpec, FactorySpec, GptSpec


def toy(name, **arguments):
    return FactorySpec(factory=f"tests.unit.partition.toy_models:{name}", arguments=arguments)


def rows(dtype, *shape):
    return Boundary(
        structure=0, leaves=(LeafSpec(dtype=dtype, fixed=(0, *shape), per_sample=(1, *(0 for _ in shape))),)
    )


def test_nested_boundaries_with_none_bools_and_integers():
    found = boundaries.trace(build_chain(toy("nested")).blocks, rows("float32", 4))
    assert found[0] == found[1]
    assert found[0].structure == [
        "t",
        [0, 1, ["d", [["ids", 2], ["rest", ["l", [None, ["s", 3], ["s", True], ["s", "s"]]]]]]],
    ]
    assert [(leaf.dtype, leaf.fixed, leaf.per_sample) for leaf in found[0].leaves] == [
        ("float32", (0, 4), (1, 0)),
        ("bool", (0, 4), (1, 0)),
        ("int64", (0, 4), (1, 0)),
    ]
    assert found[2] == found[3] == rows("float32", 4)


@pytest.mark.parametrize("samples", [1, 2, 7])
@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        (GptSpec(hidden_size=32, num_hidden_layers=2), rows("uint8", 9)),
        (CnnSpec(batch_norm=False), rows("float32", 1, 28, 28)),
        (toy("nested"), rows("float32", 4)),
    ],
)
def test_shapes_are_those_of_the_real_model(spec, inputs, samples):
    model, found = plain_model(spec, 0), boundaries.trace(build_chain(spec).blocks, inputs)
    value = boundaries.example(inputs, samples, "cpu")
    for block, boundary in zip(model, found, strict=True):
        value = block(value)
        leaves, structure = tree.flatten(value)
        assert tree.same_shape(structure, boundary.structure)
        for leaf, expected in zip(leaves, boundary.leaves, strict=True):
            assert tuple(leaf.shape) == expected.shape(samples)
            assert str(leaf.dtype) == f"torch.{expected.dtype}"
        size = sum(leaf.element_size() * math.prod(leaf.shape) for leaf in leaves)
        assert boundaries.payload_bytes(boundary, samples) == size


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none", "returns no tensor"),
        ("set", "returns a set; expected tensors"),
        ("object", "returns a object; expected tensors"),
        ("keys", "returns what cannot be sent: a dict has the key 1"),
        ("size", "returns what cannot be sent: the value contains a Size"),
        ("sparse", r"returns a torch.sparse_coo tensor; only dense tensors"),
        ("raises", "cannot take what comes before it, for 2 samples: RuntimeError"),
        (
            "quadratic",
            r"returns shapes that are no linear function of the number of samples: \(2, 4\) for 2, \(3, 9\) for 3",
        ),
        ("fickle", "returns another nesting"),
        ("fickle_kind", "returns another kind of tensor"),
        ("item", "cannot take what comes before it"),
    ],
)
def test_what_cannot_cross_is_refused_with_the_block_named(what, message):
    chain = build_chain(toy("returning", what=what))
    with pytest.raises(ConfigError, match=rf"model: block 1 \(Calls\) {message}"):
        boundaries.trace(chain.blocks, rows("float32", 4))


def test_data_that_the_first_block_cannot_take():
    with pytest.raises(ConfigError, match=r"block 0 \(Embedding\).*2000 tokens in a row"):
        boundaries.trace(build_chain(GptSpec()).blocks, rows("uint8", 2000))


def test_tracing_leaves_the_blocks_as_they_were():
    chain = build_chain(CnnSpec())
    before = {id(t) for block in chain.blocks for t in (*block.parameters(), *block.buffers())}
    versions = [t._version for block in chain.blocks for t in block.buffers()]
    boundaries.trace(chain.blocks, rows("float32", 1, 28, 28))
    assert before == {id(t) for block in chain.blocks for t in (*block.parameters(), *block.buffers())}
    assert versions == [t._version for block in chain.blocks for t in block.buffers()]


def test_examples_hold_usable_values():
    value = boundaries.example(
        Boundary(
            structure=["t", [0, None, 1, 2]],
            leaves=tuple(LeafSpec(dtype=d, fixed=(0, 3), per_sample=(1, 0)) for d in ("bfloat16", "bool", "int32")),
        ),
        4,
        "cpu",
    )
    assert value[0].shape == (4, 3)
    assert value[0].isfinite().all()
    assert value[1] is None
    assert value[2].all()
    assert value[3].dtype == torch.int32
    assert not value[3].any()
