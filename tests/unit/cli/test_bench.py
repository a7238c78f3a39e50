import pytest

from brigade.cli.bench import parse_counts, parse_names, spread_text
from brigade.lab.yardstick import STANDARD, spread
from brigade.wire.errors import ConfigError


def test_counts():
    assert parse_counts("2, 4") == (2, 4)


@pytest.mark.parametrize("text", ["", "2,", "two", "0", "-2", "2.5"])
def test_other_counts_are_refused(text):
    with pytest.raises(ConfigError, match="--stages"):
        parse_counts(text)


def test_names():
    assert parse_names("") == STANDARD
    assert parse_names("plain, configured") == ("plain", "configured")
    with pytest.raises(ConfigError, match="--contenders: found 'jax'"):
        parse_names("jax")


def test_a_spread_as_text():
    assert spread_text(spread([0.5, 0.25, 1.0]), 1e3, ",.0f") == "500  250-1,000"
    assert spread_text(None, 1.0, ".2f") == "-"
