"""Codec texts: grammar, canonical form, errors for people, sizes."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.compression.spec import (
    MAX_TEXT,
    CodecSpec,
    Int8Values,
    RawValues,
    ZstdStage,
    bytes_per_element,
    ratio,
)
from brigade.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("raw", "raw"),
        ("bf16+zstd", "bf16+zstd"),
        ("fp16+zstd:level=1", "fp16+zstd"),
        ("int8:block=64", "int8"),
        ("int8:rounding=stochastic,block=256+zstd:level=3", "int8:block=256,rounding=stochastic+zstd:level=3"),
        ("int8:scale=fp32", "int8:scale=fp32"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert CodecSpec.parse(text).text() == canonical
    assert CodecSpec.parse(canonical) == CodecSpec.parse(text)


@given(
    st.integers(8, 65536),
    st.sampled_from(["nearest", "stochastic"]),
    st.sampled_from(["bf16", "fp32"]),
    st.none() | st.integers(1, 19),
)
def test_text_and_spec_say_the_same(block: int, rounding: str, scale: str, level: int | None) -> None:
    spec = CodecSpec(
        Int8Values(block=block, rounding=rounding, scale=scale),  # type: ignore[arg-type]
        None if level is None else ZstdStage(level=level),
    )
    assert CodecSpec.parse(spec.text()) == spec
    assert len(spec.text()) <= MAX_TEXT


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int7", "'int7', did you mean 'int8'"),
        ("", "known: raw, bf16, fp16, int8"),
        ("INT8", "unknown 'INT8'"),
        ("int8:blok=3", "'blok', did you mean 'block'"),
        ("int8:block", "expected key=value after 'int8', found 'block'"),
        ("int8:", "expected key=value"),
        ("int8:block=x", "block=x: expected int"),
        ("int8:block=0", "block=0: expected int >= 8"),
        ("int8:block=70000", "expected int <= 65536"),
        ("int8:block=64,block=64", "given twice"),
        ("int8:rounding=up", "rounding=up: expected nearest or stochastic"),
        ("raw:level=1", "takes no options"),
        ("raw+zst", "found 'zst'"),
        ("raw+zstd+zstd", "found 'zstd'"),
        ("raw+zstd:level=20", "expected int <= 19"),
        ("raw+", "found ''"),
        ("r" * 1000, "1000 characters"),
    ],
)
def test_mistakes_are_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CodecSpec.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=200) | st.text(alphabet="intbfraw8=:,+zsdlevok6104", max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        spec = CodecSpec.parse(text)
    except ConfigError:
        return
    assert CodecSpec.parse(spec.text()) == spec


def test_lossy_only_where_something_is_gained() -> None:
    int8, bf16 = CodecSpec.parse("int8+zstd"), CodecSpec.parse("bf16")
    assert not int8.lossless
    assert CodecSpec.parse("raw+zstd").lossless
    for dtype in ("float32", "float16", "bfloat16"):
        assert int8.for_dtype(dtype) is int8
    for dtype in ("int64", "bool", "float64", "complex64", "float8_e4m3fn"):
        assert int8.for_dtype(dtype) == CodecSpec(RawValues(), ZstdStage())
    assert bf16.for_dtype("float32") is bf16
    assert bf16.for_dtype("float16").lossless
    assert bf16.for_dtype("bfloat16").lossless


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("raw", "float32", 4),
        ("raw", "float64", 8),
        ("bf16", "float32", 2),
        ("bf16", "bfloat16", 2),
        ("int8", "float32", 1 + 2 / 64),
        ("int8:block=100,scale=fp32", "bfloat16", 1 + 4 / 100),
        ("int8", "bool", 1 / 8),
    ],
)
def test_bytes_per_element(text: str, dtype: str, expected: float) -> None:
    assert bytes_per_element(text, dtype) == pytest.approx(expected, rel=1e-9)


def test_ratio_is_against_float32() -> None:
    assert ratio("raw") == 1
    assert ratio("bf16") == 2
    assert ratio("int8") == pytest.approx(4 / 1.03125)
    assert ratio("fp16") == pytest.approx(2, rel=1e-5)
    assert ratio("int8+zstd") > ratio("int8")


@pytest.mark.parametrize(
    ("text", "dtype", "shape", "expected"),
    [
        ("int8", "float32", (3, 100), 300 + 3 * 2 * 2),
        ("int8", "float32", (), 3),
        ("fp16", "float32", (5, 7), 70 + 5),
        ("int8", "float32", (4, 0), 0),
        ("int8", "bool", (3, 3), 2),
        ("raw", "int64", (10,), 85),
    ],
)
def test_encoded_bytes(text: str, dtype: str, shape: tuple[int, ...], expected: int) -> None:
    assert CodecSpec.parse(text).encoded_bytes(dtype, shape) == expected


def test_the_planner_can_ask_without_torch() -> None:
    code = (
        "import sys; from brigade.compression.spec import ratio; ratio('int8+zstd');"
        "sys.exit(int('torch' in sys.modules or 'numpy' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
