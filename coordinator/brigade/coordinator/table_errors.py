"""Says what is wrong with a table (TOML) that does not fit its structure: key, what was found and what was expected."""

import re
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

_UNKNOWN = re.compile(r"^Object contains unknown field `(.+?)`(?: - at `\$\.?(.*?)`)?$")
_MISSING = re.compile(r"^Object missing required field `(.+?)`(?: - at `\$\.?(.*?)`)?$")
_WRONG = re.compile(r"^(.+?)(?: - at `(key in )?\$\.?(.*?)`)?$")
_PLACE = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def explain(kind: type[Struct], table: dict[str, Any], message: str) -> str:
    """Turn the message of a `msgspec.ValidationError` about `table` into one that names key, found and expected."""
    if match := _UNKNOWN.match(message):
        key, place = match[1], match[2] or ""
        return f"{_join(place, key)} is not a known key{_suggest(key, _keys_at(kind, table, place))}"
    if match := _MISSING.match(message):
        key, place = match[1], match[2] or ""
        known = _keys_at(kind, table, place)
        near = get_close_matches(key, [k for k in _written_at(table, place) if k not in known], n=1, cutoff=0.6)
        hint = f" (found {near[0]!r}, which is not known)" if near else ""
        return f"{_join(place, key)} is missing{hint}"
    match = _WRONG.match(message)
    assert match is not None
    expected, place = match[1], match[3] or ""
    where = place or "the file"
    found = _found(table, place)
    if choices := _choices_at(kind, table, place):
        given = _written_at(table, place)
        near = get_close_matches(given, choices, n=1, cutoff=0.6) if isinstance(given, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{where}: expected one of {', '.join(map(repr, choices))}{found}{hint}"
    if " matching regex " in expected and (described := _description_at(kind, table, place)):
        return f"{where}: expected {described}{found}"
    expected = expected[:1].lower() + expected[1:]
    return f"{where}: {expected}{found}"


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _suggest(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known keys: {', '.join(known)}" if known else ""


def _found(table: dict[str, Any], place: str) -> str:
    """Return, for a person, what stands at a path such as `training.freeze[0]`; nothing where that is not known."""
    try:
        value = _written_at(table, place)
    except (KeyError, IndexError, TypeError):
        return ""
    shown = repr(value)
    if isinstance(value, dict) and not place:
        return ""
    return f"; found {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _written_at(table: dict[str, Any], place: str) -> Any:
    value: Any = table
    for key, index in _PLACE.findall(place):
        value = value[int(index)] if index.isdigit() else value if index else value[key]
    return value


def _keys_at(root: type[Struct], table: dict[str, Any], place: str) -> list[str]:
    """Return the keys that a table knows."""
    kinds = _kinds_at(root, table, place, chosen=True)
    tagged = [kind.__struct_config__.tag_field for kind in kinds if kind.__struct_config__.tag_field]
    return [*tagged[:1], *(field.name for kind in kinds for field in msgspec.structs.fields(kind))]


def _choices_at(root: type[Struct], table: dict[str, Any], place: str) -> list[str]:
    """Return the texts that a key accepts; nothing if it accepts others."""
    parent, _, key = place.rpartition(".")
    choices: list[str] = []
    for kind in _kinds_at(root, table, parent, chosen=False):
        if kind.__struct_config__.tag_field == key:
            choices.append(str(kind.__struct_config__.tag))
        for field in msgspec.structs.fields(kind):
            if field.name == key and get_origin(field.type) is Literal:
                choices += get_args(field.type)
    return choices


def _description_at(root: type[Struct], table: dict[str, Any], place: str) -> str:
    """Return in words what a key accepts; empty where nobody wrote it down."""
    parent, _, key = place.rpartition(".")
    fields = [field for kind in _kinds_at(root, table, parent, chosen=True) for field in msgspec.structs.fields(kind)]
    notes = [note for field in fields if field.name == key for note in get_args(field.type)[1:]]
    return next((note.description for note in notes if isinstance(note, msgspec.Meta) and note.description), "")


def _kinds_at(root: type[Struct], table: dict[str, Any], place: str, *, chosen: bool) -> list[type[Struct]]:
    """Return the structures that a table may be; `chosen`: only the one that its `kind` names."""
    kinds: list[type[Struct]] = [root]
    written: Any = table
    for key, index in _PLACE.findall(place):
        if index:
            written = written[int(index)] if index.isdigit() and isinstance(written, list) else {}
        else:
            written = written.get(key, {}) if isinstance(written, dict) else {}
            fields = [field for kind in kinds for field in msgspec.structs.fields(kind) if field.name == key]
            kinds = [kind for field in fields for kind in _structs(field.type)]
        if not isinstance(written, list):  # the items of a list tell, each for itself
            tag = written.get("kind") if isinstance(written, dict) else None
            kinds = [kind for kind in kinds if not chosen or len(kinds) == 1 or kind.__struct_config__.tag == tag]
    return kinds


def _structs(annotation: Any) -> list[type[Struct]]:
    if get_origin(annotation) in (Union, UnionType, tuple, list):
        return [kind for part in get_args(annotation) for kind in _structs(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Struct) else []
