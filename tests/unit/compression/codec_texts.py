"""Codec texts for the law tests, made from the registry: a new kind of values is tested everywhere at once."""

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from brigade.compression.spec import VALUES, CodecSpec


def other_values(kind: Any, field: Any) -> list[Any]:
    """Values of one option that differ from its default: every choice, or the smallest number that is allowed."""
    annotation = get_type_hints(kind, include_extras=True)[field.name]
    assert get_origin(annotation) not in (Union, UnionType), f"say here what to try for {kind.__name__}.{field.name}"
    if get_origin(annotation) is Literal:
        return [choice for choice in get_args(annotation) if choice != field.default]
    assert get_origin(annotation) is Annotated, f"say here what to try for {kind.__name__}.{field.name}"
    (smallest,) = [note.ge for note in get_args(annotation)[1:] if isinstance(note, Meta)]
    assert smallest is not None, f"say here what to try for {kind.__name__}.{field.name}"
    return [smallest] if smallest != field.default else []


def texts_of(name: str) -> list[str]:
    """One kind: bare, with zstd, with each other value of each option, and with several options and zstd at once."""
    choices = {field.name: other_values(VALUES[name], field) for field in msgspec.structs.fields(VALUES[name])}
    single = [f"{name}:{key}={value}" for key, values in choices.items() for value in values]
    several = ",".join(f"{key}={values[-1]}" for key, values in choices.items() if values)
    return [name, f"{name}+zstd", *single, *([f"{name}:{several}+zstd:level=3"] if several else [])]


TEXTS = [text for name in VALUES for text in texts_of(name)]
WITH_ZSTD = [text for text in TEXTS if CodecSpec.parse(text).zstd is not None]
