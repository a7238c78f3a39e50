"""docs/run-file.md and the code say the same: sections, keys, types and defaults of a run file."""

import re
import tomllib

import msgspec
import pytest
from msgspec import Struct
from tests.reference_page import DOCS, TABLE, expected_rows, structs_in, table_under, toml_examples

from brigade.compression.spec import VALUES, CodecSpec
from brigade.coordinator.run_file import FIXED_KEYS
from brigade.wire.run_spec import RunSpec

TEXT = (DOCS / "run-file.md").read_text(encoding="utf-8")


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


def test_every_table_of_the_page_belongs_to_a_structure():
    assert len(TABLE.findall(TEXT)) == len(sections())


@pytest.mark.parametrize("heading", sections())
def test_keys_types_and_defaults_are_those_of_the_code(heading):
    rows = table_under(TEXT, heading)
    found = [[key, kind.strip("`") if ":" in kind else kind, default] for key, kind, default, _ in rows]
    assert found == expected_rows(msgspec.structs.fields(sections()[heading]))
    assert all(meaning for *_, meaning in rows)


def test_its_examples_are_run_files():
    examples = toml_examples(TEXT)
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
