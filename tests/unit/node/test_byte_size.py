import pytest

from brigade.node.byte_size import parse_byte_size
from brigade.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1073741824", 1 << 30),
        ("512B", 512),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("4G", 4 << 30),
        ("4GB", 4_000_000_000),
        ("1.5KiB", 1536),
        ("500MB", 500_000_000),
        ("2T", 2 << 40),
    ],
)
def test_sizes(text, size):
    assert parse_byte_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4XiB", "-1GiB", "4GiB2", "1e9", "four", "4 G iB", "nan"])
def test_what_is_no_size_is_named(text):
    with pytest.raises(ConfigError, match="amount of memory") as caught:
        parse_byte_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["9" * 400 + " TiB", "1025 TiB"])
def test_more_memory_than_any_machine_has_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--memory: '.*' is out of range; expected at most 1024 TiB") as caught:
        parse_byte_size(text, "--memory")
    assert len(str(caught.value)) < 160
