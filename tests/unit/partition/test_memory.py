"""Bytes of a stage, by their definition."""

import pytest

from brigade.partition.memory import format_bytes, needed_bytes, usable_bytes
from brigade.wire.costs import BlockCost


def block(weights: int, saved: int, output: int) -> BlockCost:
    return BlockCost(
        forward_s=0.0,
        backward_s=0.0,
        optimizer_s=0.0,
        parameter_bytes=weights,
        gradient_bytes=weights,
        optimizer_bytes=2 * weights,
        saved_bytes=saved,
        output_bytes=output,
    )


def test_needed_bytes() -> None:
    needed = needed_bytes([block(1000, 10, 1), block(2000, 20, 2), block(3000, 30, 5)], in_flight=3)
    assert needed.shape == (4, 4)
    assert needed[0, 3] == 4 * 6000 + 4 * 60, "the whole chain has no boundary"
    assert needed[0, 1] == 4 * 1000 + 4 * 10 + 4 * 1
    assert needed[1, 2] == 4 * 2000 + 4 * 20 + 4 * (1 + 2)
    assert needed[1, 3] == 4 * 5000 + 4 * 50 + 4 * 1


def test_sizes_beyond_32_bits_do_not_wrap() -> None:
    needed = needed_bytes([block(2**40, 2**40, 2**40)] * 4, in_flight=8)
    assert needed[0, 4] == 4 * 4 * 2**40 + 9 * 4 * 2**40


def test_a_tenth_stays_free() -> None:
    assert usable_bytes(1000) == 900


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3.1 * 2**30, "3.1 GiB"), (5 * 2**40, "5120.0 GiB")],
)
def test_sizes_for_people(size: float, text: str) -> None:
    assert format_bytes(size) == text
