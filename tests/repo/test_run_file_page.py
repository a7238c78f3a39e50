"""docs/run-file.md and the code say the same: sections, keys, types and defaults of a run file."""

import re
import tomllib
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from msgspec import NODEFAULT, Meta, Struct

from brigade.compression.spec import VALUES, CodecSpec
from brigade.coordinator.run_file import FIXED_KEYS
from brigade.wire.run_spec import RunSpec

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "run-file.md").read_text(encoding="utf-8")
TABLE = re.compile(r"^\| key \| type \| default \| meaning \|\n\|[ \-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def structs_in(annotation: Any) -> list[type[Struct]]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in structs_in(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Struct) else []


def sections() -> dict[str, type[Struct]]:
    """Return the structures of a run file by the heading that they have on the page."""
    found: dict[str, type[Struct]] = {"Top level": RunSpec}
    for field in msgspec.structs.fields(RunSpec):
        kinds = structs_in(field.type)
        if len(kinds) == 1:
            found[field.name] = kinds[0]
        for kind in kinds[: len(kinds) if len(kinds) > 1 else 0]:
            config = kind.__struct_config__
            found[f'{field.name}, {config.tag_field} = "{config.tag}"'] = kind
    return found


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
        return f"list of {words(parts[0])}"
    if origin is dict:
        return "table"
    if origin is Annotated:
        (meta,) = [note for note in parts[1:] if isinstance(note, Meta)]
        return meta.description or words(parts[0]) + range_of(meta)
    return {str: "text", int: "integer", float: "number", bool: "true or false"}[annotation]


def range_of(meta: Meta) -> str:
    low = {"≥": meta.ge, ">": meta.gt}
    high = {"≤": meta.le, "<": meta.lt}
    lows = [(sign, limit) for sign, limit in low.items() if limit is not None]
    highs = [(sign, limit) for sign, limit in high.items() if limit is not None]
    assert len(lows) == 1
    (sign, limit), *_ = lows
    if not highs:
        return f" {sign} {limit:g}"
    assert sign == "≥"
    return f", {limit:g} ≤ x {highs[0][0]} {highs[0][1]:g}"


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


def table_under(heading: str) -> list[list[str]]:
    """Return the rows of the one table between a heading and the next."""
    (body,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    (rows,) = TABLE.findall(body)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in rows.splitlines()]


def test_every_table_of_the_page_belongs_to_a_structure():
    assert len(TABLE.findall(TEXT)) == len(sections())


@pytest.mark.parametrize("heading", sections())
def test_keys_types_and_defaults_are_those_of_the_code(heading):
    expected = [[f"`{f.name}`", words(f.type), default_of(f)] for f in msgspec.structs.fields(sections()[heading])]
    rows = table_under(heading)
    assert [[key, kind.strip("`") if ":" in kind else kind, default] for key, kind, default, _ in rows] == expected
    assert all(meaning for *_, meaning in rows)


def test_its_examples_are_run_files():
    examples = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert examples
    for example in examples:
        msgspec.convert(tomllib.loads(example), RunSpec)


def test_what_a_resume_may_not_change_is_what_the_code_refuses():
    _, _, paragraph = TEXT.partition("\n## What a resume may not change\n")
    listed = re.findall(r"`([a-z0-9_.]+)`", paragraph)
    assert listed == list(FIXED_KEYS)


def test_every_codec_is_named_and_its_examples_are_understood():
    section = TEXT.partition("\n## compression\n")[2].partition("\n## ")[0]
    texts = [text for text in re.findall(r"`([^`]+)`", section) if text.split(":")[0].split("+")[0] in VALUES]
    assert set(VALUES) <= set(texts)
    for text in texts:
        CodecSpec.parse(text)
