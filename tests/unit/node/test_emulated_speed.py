"""Speeds as people write them, and speeds that change."""

import pytest

from brigade.node.emulated_speed import SpeedSource, parse_speed
from brigade.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "here_s", "gflop", "seconds"),
    [
        ("2x", 0.5, 9.0, 1.0),
        ("1.5 x", 1.0, 0.0, 1.5),
        ("0.05 s/GFLOP", 7.0, 2.0, 0.1),
        ("1e-3s/GFLOP", 7.0, 2.0, 0.002),
    ],
)
def test_a_speed_tells_the_seconds_of_some_work(text, here_s, gflop, seconds):
    speed = parse_speed(text)
    assert speed.seconds(here_s, gflop) == pytest.approx(seconds)
    assert speed.slowed(3).seconds(here_s, gflop) == pytest.approx(3 * seconds)
    assert parse_speed(speed.text()) == speed


@pytest.mark.parametrize("text", ["", "2", "x", "0x", "-1x", "2 y", "fast", "0 s/GFLOP", "1 GFLOP/s"])
def test_what_is_no_speed(text):
    with pytest.raises(ConfigError, match="is no speed"):
        parse_speed(text)


def test_a_file_may_change_the_speed_and_is_believed_when_it_is_sound(tmp_path):
    path = tmp_path / "speed"
    path.write_text("2x\n")
    source = SpeedSource(f"@{path}")
    assert source.now() == parse_speed("2x")
    path.write_text("6x")
    assert source.now() == parse_speed("6x")
    path.write_text("")
    assert source.now() == parse_speed("6x")
    with pytest.raises(ConfigError, match="cannot be read"):
        SpeedSource(f"@{tmp_path / 'none'}")


@pytest.mark.parametrize("text", ["9" * 320 + " s/GFLOP", "1e13x", "1e-13x"])
def test_a_speed_whose_times_are_no_finite_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is out of range; expected 1e-12 to 1e\+12"):
        parse_speed(text)
