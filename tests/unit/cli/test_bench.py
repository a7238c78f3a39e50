from pathlib import Path

import pytest

from brigade.cli.bench import parse_counts, parse_names, read_job, spread_text
from brigade.lab.yardstick import STANDARD, spread
from brigade.wire.errors import ConfigError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


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


def test_a_job_is_a_run_file_or_a_scenario(tmp_path):
    run, scenario = read_job(EXAMPLES / "quickstart" / "run.toml")
    assert (run.spec.name, scenario) == ("quickstart", None)
    run, scenario = read_job(EXAMPLES / "lab" / "home4" / "scenario.toml")
    assert (run.spec.name, scenario.spec.name) == ("home4", "home4")
    with pytest.raises(ConfigError, match="no run file"):
        read_job(tmp_path / "absent.toml")


def test_a_spread_as_text():
    assert spread_text(spread([0.5, 0.25, 1.0]), 1e3, ",.0f") == "500 (250-1,000)"
    assert spread_text(None, 1.0, ".2f") == "-"
