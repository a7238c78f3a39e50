"""What a page that documents structures says of their keys, and what the code says: to be compared."""

import re
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLE = re.compile(r"^\| key \| type \| default \| meaning \|\n\|[ \-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def structs_in(annotation: Any) -> list[type[Struct]]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in structs_in(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Struct) else []


def words(annotation: Any) -> str:
    """Return the words that a reader finds for a type; an optional one is described by what it may be."""
    if structs_in(annotation):
        return "table"
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        (rest,) = [part for part in parts if part is not type(None)]
        return words(rest)
    if origin is Literal:
        *first, last = [f'`"{part}"`' for part in parts]
        return f"{', '.join(first)} or {last}"
    if origin is tuple:
        return words_of_tuple(*parts)
    if origin is dict:
        return "table"
    if origin is Annotated:
        (meta,) = [note for note in parts[1:] if isinstance(note, Meta)]
        return meta.description or words(parts[0]) + range_of(meta)
    return {str: "text", int: "integer", float: "number", bool: "true or false"}[annotation]


def words_of_tuple(first: Any, *rest: Any) -> str:
    if rest == (...,):
        return "list of tables" if structs_in(first) else f"list of {words(first)}"
    assert set(rest) == {first}
    return f"list of {1 + len(rest)} {words(first)}s"


def range_of(meta: Meta) -> str:
    low = {"≥": meta.ge, ">": meta.gt}
    high = {"≤": meta.le, "<": meta.lt}
    lows = [(sign, limit) for sign, limit in low.items() if limit is not None]
    highs = [(sign, limit) for sign, limit in high.items() if limit is not None]
    assert len(lows) == 1
    (sign, limit), *_ = lows
    if not highs:
        return f" {sign} {limit:g}"
    turned = {"≥": "≤", ">": "<"}[sign]
    return f", {limit:g} {turned} x {highs[0][0]} {highs[0][1]:,.15g}"


def default_of(field: Any) -> str:
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    if default is NODEFAULT:
        return "required"
    if default is None:
        return "absent"
    if isinstance(default, Struct):
        return "its defaults"
    if isinstance(default, tuple):
        default = list(default)
    return f"`{msgspec.json.encode(default).decode().replace(',', ', ')}`"


def expected_rows(fields: Iterable[Any]) -> list[list[str]]:
    """Return key, type and default of the fields of a structure, as a page has them."""
    return [[f"`{field.name}`", words(field.type), default_of(field)] for field in fields]


def section(text: str, heading: str) -> str:
    """Return what stands between a heading and the next."""
    (body,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return body


def cells(rows: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in rows.splitlines()]


def table_under(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the one table of keys between a heading and the next."""
    (rows,) = TABLE.findall(section(text, heading))
    return cells(rows)


def toml_examples(text: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
