"""Nested values as a list of leaves and a structure that MessagePack can carry.

A boundary value is a tensor or any nesting of plain tuples, lists and dicts (with str keys) around tensors, None,
bools, ints, floats and strings. Its structure is, for each part:

    leaf                      its index in the list of leaves (int)
    None                      None
    bool, int, float, str     ["s", value]
    tuple, list               ["t", [part, ...]], ["l", [part, ...]]
    dict                      ["d", [[key, part], ...]] in insertion order

Anything else counts as a leaf: this module knows no tensors.
"""

from collections.abc import Sequence
from typing import Any

from brigade.wire.errors import ConfigError, RemoteProtocolError

MAX_DEPTH = 16
MAX_PARTS = 10_000

Structure = Any

_SCALARS = (bool, int, float, str)
_SMALLEST_INT, _LARGEST_INT = -(2**63), 2**64 - 1  # what MessagePack can carry


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of `value` in order, and its structure.

    Raises ConfigError for what would not arrive as it was sent: named tuples, dict subclasses, keys that are not str,
    ints beyond 64 bits, nesting deeper than `MAX_DEPTH`, more than `MAX_PARTS` parts.
    """
    leaves: list[Any] = []
    budget = [MAX_PARTS]
    return leaves, _flatten(value, leaves, budget, 0)


def _flatten(value: Any, leaves: list[Any], budget: list[int], depth: int) -> Structure:
    budget[0] -= 1
    if budget[0] < 0:
        raise ConfigError(f"the value has more than {MAX_PARTS} parts")
    if depth > MAX_DEPTH:
        raise ConfigError(f"the value is nested deeper than {MAX_DEPTH} levels (or contains itself)")
    if value is None:
        return None
    kind = type(value)
    if kind is tuple or kind is list:
        return ["t" if kind is tuple else "l", [_flatten(part, leaves, budget, depth + 1) for part in value]]
    if kind is dict:
        for key in value:
            if type(key) is not str or not _is_encodable(key):
                raise ConfigError(f"a dict has the key {key!r}; keys must be str")
        return ["d", [[key, _flatten(part, leaves, budget, depth + 1)] for key, part in value.items()]]
    if kind in _SCALARS:
        if kind is int and not _SMALLEST_INT <= value <= _LARGEST_INT:
            raise ConfigError("the value contains an int beyond 64 bits")
        if kind is str and not _is_encodable(value):
            raise ConfigError("the value contains a str that UTF-8 cannot express")
        return ["s", value]
    if isinstance(value, (*_SCALARS, tuple, list, dict)):
        plain = next(base.__name__ for base in (*_SCALARS, tuple, list, dict) if isinstance(value, base))
        raise ConfigError(
            f"the value contains a {kind.__name__}, which would arrive as a plain {plain}: make it a plain {plain}"
        )
    leaves.append(value)
    return len(leaves) - 1


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return the value with this structure around these leaves; RemoteProtocolError if they do not belong together."""
    check(structure, len(leaves))
    return _unflatten(structure, leaves)


def _unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    tag, content = structure
    if tag == "t":
        return tuple(_unflatten(part, leaves) for part in content)
    if tag == "l":
        return [_unflatten(part, leaves) for part in content]
    if tag == "d":
        return {key: _unflatten(part, leaves) for key, part in content}
    return content


def check(structure: Structure, leaf_count: int) -> None:
    """Accept exactly the structures that `flatten` makes of values with `leaf_count` leaves.

    Raises RemoteProtocolError on anything else, whatever it is.
    """
    state = _Check()
    state.visit(structure, 0)
    if state.leaves != leaf_count:
        raise RemoteProtocolError(f"the structure has {state.leaves} tensors, {leaf_count} came with it")


class _Check:
    def __init__(self) -> None:
        self.leaves = 0
        self.parts = 0

    def visit(self, part: Any, depth: int) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS or depth > MAX_DEPTH:
            raise RemoteProtocolError("the structure is too large or too deep")
        if part is None:
            return
        if type(part) is int:
            if part != self.leaves:
                raise RemoteProtocolError("the tensors of the structure are not numbered in order")
            self.leaves += 1
            return
        tag, content = _pair(part)
        if type(tag) is not str:
            raise RemoteProtocolError("the structure has a part without a tag")
        if tag in {"t", "l"}:
            for inner in _sequence(content):
                self.visit(inner, depth + 1)
        elif tag == "d":
            self._visit_dict(_sequence(content), depth)
        elif tag == "s":
            _check_scalar(content)
        else:
            raise RemoteProtocolError("the structure has a part with an unknown tag")

    def _visit_dict(self, items: Sequence[Any], depth: int) -> None:
        keys: set[str] = set()
        for item in items:
            key, inner = _pair(item)
            if type(key) is not str or not _is_encodable(key) or key in keys:
                raise RemoteProtocolError("the structure has a dict with a bad or repeated key")
            keys.add(key)
            self.visit(inner, depth + 1)


def same_shape(a: Structure, b: Structure) -> bool:
    """Tell whether two checked structures differ in nothing but the values of their scalars."""
    if a is None or b is None or isinstance(a, int) or isinstance(b, int):
        return type(a) is type(b) and bool(a == b)
    (tag, left), (other_tag, right) = a, b
    if tag != other_tag:
        return False
    if tag == "s":
        return True
    if len(left) != len(right):
        return False
    if tag == "d":
        return all(
            key == other_key and same_shape(part, other)
            for (key, part), (other_key, other) in zip(left, right, strict=True)
        )
    return all(same_shape(part, other) for part, other in zip(left, right, strict=True))


def _sequence(value: Any) -> Sequence[Any]:
    if type(value) is not list and type(value) is not tuple:
        raise RemoteProtocolError("the structure has no list where it needs one")
    return value


def _pair(value: Any) -> tuple[Any, Any]:
    pair = _sequence(value)
    if len(pair) != 2:
        raise RemoteProtocolError("the structure has a part that is not a pair")
    return pair[0], pair[1]


def _check_scalar(value: Any) -> None:
    if type(value) not in _SCALARS:
        raise RemoteProtocolError("the structure has a scalar of another kind than bool, int, float, str")
    if type(value) is int and not _SMALLEST_INT <= value <= _LARGEST_INT:
        raise RemoteProtocolError("the structure has an int beyond 64 bits")
    if type(value) is str and not _is_encodable(value):
        raise RemoteProtocolError("the structure has a str that UTF-8 cannot express")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
