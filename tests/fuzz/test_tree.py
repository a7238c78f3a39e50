"""Whatever arrives as a structure is accepted or refused with one error."""

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from brigade.partition import tree
from brigade.wire.errors import RemoteProtocolError

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4)
    | st.sampled_from(["t", "l", "d", "s", 0, 1, 2]),
    lambda part: st.lists(part, max_size=4)
    | st.tuples(st.sampled_from(["t", "l", "d", "s"]), part).map(list)
    | st.tuples(st.sampled_from(["t", "l", "d"]), st.lists(part, max_size=4)).map(list)
    | st.dictionaries(st.text(max_size=3) | st.integers(), part, max_size=3),
    max_leaves=25,
)  # fmt: skip


def accepted(structure, count):
    try:
        tree.check(structure, count)
    except RemoteProtocolError:
        return False
    return True


@given(ANYTHING, st.integers(-1, 6))
def test_any_object(structure, count):
    leaves = [object() for _ in range(max(count, 0))]
    if accepted(structure, count):
        value = tree.unflatten(structure, leaves)
        back, again = tree.flatten(value)
        assert back == leaves
        assert msgpack.packb(again) == msgpack.packb(structure)  # accepted means: flatten makes exactly this
    else:
        try:
            tree.unflatten(structure, leaves)
        except RemoteProtocolError:
            return
        assert count < 0


@given(st.binary(max_size=64), st.integers(0, 6))
def test_any_bytes(data, count):
    try:
        structure = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return
    accepted(structure, count)


def test_deep_wide_and_endless():
    deep: list = []
    for _ in range(100_000):
        deep = ["l", [deep]]
    endless: list = ["l", []]
    endless[1].extend([endless, endless])
    bomb: object = None
    for _ in range(tree.MAX_DEPTH):
        bomb = ["l", [bomb] * 50]
    for structure in (deep, endless, bomb, ["l", [None] * 1_000_000], ["l", list(range(1_000_000))]):
        assert not accepted(structure, 1_000_000)
    while len(deep) == 2:  # taken apart by hand: a destructor that nests so deep may overflow the stack
        deep = deep[1][0]
