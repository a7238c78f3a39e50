"""The table of dtypes agrees with torch."""

import re

import pytest
import torch

from brigade.compression.dtypes import DTYPES, describe_dtype
from brigade.wire.errors import ConfigError


@pytest.mark.parametrize("name", DTYPES)
def test_table_agrees_with_torch(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    info = describe_dtype(name)
    assert str(dtype) == f"torch.{name}"
    assert info.item_bytes == dtype.itemsize
    assert (info.kind == "complex") == dtype.is_complex
    assert (info.kind == "float") == dtype.is_floating_point


def test_every_ordinary_number_type_of_torch_is_listed() -> None:
    kinds = {str(kind).removeprefix("torch.") for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
    whole_bytes = r"(float|bfloat|complex|u?int)(8|16|32|64|128)|float8_.*|bool"  # not qint8, bits8, float4, int3
    assert {kind for kind in kinds if re.fullmatch(whole_bytes, kind)} <= set(DTYPES)


def test_unknown_dtype_is_named() -> None:
    with pytest.raises(ConfigError, match="qint8"):
        describe_dtype("qint8")
