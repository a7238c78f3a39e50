"""Nested values survive the way through a structure, and only what survives is let through."""

import collections
import enum
from typing import NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition import tree
from brigade.wire.errors import ConfigError, RemoteProtocolError


class Leaf:
    """Stands for a tensor; equal to itself only."""


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    st.builds(Leaf) | st.none() | SCALARS,
    lambda part: (
        st.lists(part, max_size=4) | st.lists(part, max_size=4).map(tuple) | st.dictionaries(TEXT, part, max_size=4)
    ),
    max_leaves=12,
)


def types_of(value):
    if type(value) in (list, tuple):
        return [type(value), *(types_of(part) for part in value)]
    if type(value) is dict:
        return [dict, *((key, types_of(part)) for key, part in value.items())]
    return type(value)


@given(VALUES)
def test_every_value_comes_back_equal_after_messagepack(value):
    leaves, structure = tree.flatten(value)
    carried = msgpack.unpackb(msgpack.packb(structure))
    tree.check(carried, len(leaves))
    back = tree.unflatten(carried, leaves)
    assert back == value
    assert types_of(back) == types_of(value)  # 1 == True == 1.0, and a tuple is no list
    assert all(isinstance(leaf, Leaf) for leaf in leaves)


@given(VALUES)
def test_leaves_are_numbered_in_the_order_of_the_value(value):
    leaves, structure = tree.flatten(value)

    def walk(part):
        if isinstance(part, Leaf):
            yield part
        elif isinstance(part, (list, tuple)):
            for inner in part:
                yield from walk(inner)
        elif isinstance(part, dict):
            for inner in part.values():
                yield from walk(inner)

    assert list(walk(value)) == leaves
    tree.check(structure, len(leaves))


def test_the_structure_is_the_documented_one():
    a, b = Leaf(), Leaf()
    leaves, structure = tree.flatten((a, {"mask": None, "rest": [b, 3, True]}, a))
    assert structure == ["t", [0, ["d", [["mask", None], ["rest", ["l", [1, ["s", 3], ["s", True]]]]]], 2]]
    assert leaves == [a, b, a]  # the same tensor twice travels twice
    assert tree.flatten(a) == ([a], 0)


class Pair(NamedTuple):
    a: int
    b: int


class Mode(enum.IntEnum):
    FAST = 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Pair(1, 2), "Pair"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (Mode.FAST, "Mode"),
        (np.float64(1.0), "float64"),
        ({1: None}, "1"),
        ({"\ud800": None}, "keys"),
        ("\ud800", "UTF-8"),
        (2**64, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ([None] * tree.MAX_PARTS, "parts"),
    ],
)
def test_what_would_not_arrive_as_sent_is_refused(value, named):
    with pytest.raises(ConfigError, match=named):
        tree.flatten((value,))


def nested(depth):
    value = Leaf()
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded_on_both_sides():
    leaves, structure = tree.flatten(nested(tree.MAX_DEPTH))
    tree.check(structure, len(leaves))
    with pytest.raises(RemoteProtocolError):
        tree.check(["l", [structure]], len(leaves))
    with pytest.raises(ConfigError, match="deeper"):
        tree.flatten(nested(tree.MAX_DEPTH + 1))
    endless: list = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="contains itself"):
        tree.flatten(endless)


@pytest.mark.parametrize(
    "structure",
    [
        True, 1, -1, 0.0, "t", b"", [], ["t"], ["t", 0], ["t", [0], 0], ["x", [0]], [["t"], [0]], ["t", [0, 0]],
        ["t", [1, 0]], ["d", [["a", 0], ["a", None]]], ["d", [[1, 0]]], ["d", [["a"]]], ["d", {"a": 0}],
        ["t", [["s", None], 0]], ["t", [["s", [1]], 0]], ["t", [["s", 2**64], 0]], ["t", [["s", b"x"], 0]], ["t", [0, False]],
    ],
)  # fmt: skip
def test_check_refuses_what_flatten_never_makes(structure):
    with pytest.raises(RemoteProtocolError):
        tree.check(structure, 1)


@given(VALUES, st.integers(-2, 2).filter(bool))
def test_another_number_of_tensors_is_refused(value, more):
    leaves, structure = tree.flatten(value)
    with pytest.raises(RemoteProtocolError):
        tree.check(structure, len(leaves) + more)
    with pytest.raises(RemoteProtocolError):
        tree.unflatten(structure, [*leaves, Leaf()])


@given(VALUES, VALUES)
def test_same_shape_is_equality_up_to_scalars(left, right):
    def blank(part):
        if type(part) in (list, tuple):
            return type(part)(blank(inner) for inner in part)
        if type(part) is dict:
            return {key: blank(inner) for key, inner in part.items()}
        return 0 if type(part) in (bool, int, float, str) else part

    a, b = tree.flatten(left)[1], tree.flatten(right)[1]
    assert tree.same_shape(a, tree.flatten(blank(left))[1])
    assert tree.same_shape(a, b) == (tree.flatten(blank(left))[1] == tree.flatten(blank(right))[1])


def test_same_shape_tells_leaves_none_and_scalars_apart():
    assert tree.same_shape(["s", 1], ["s", "x"])
    assert not tree.same_shape(0, None)
    assert not tree.same_shape(0, ["s", 0])
    assert not tree.same_shape(["t", [0]], ["l", [0]])
    assert not tree.same_shape(["d", [["a", 0]]], ["d", [["b", 0]]])
