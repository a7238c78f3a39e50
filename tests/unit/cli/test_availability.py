"""`brigade trace` writes what a scenario reads, and the scenario's own generator draws the same."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from brigade.cli.app import app
from brigade.cli.availability import host_names
from brigade.lab.availability import draw_periods
from brigade.lab.availability_file import read_periods
from brigade.lab.availability_spec import TraceSpec
from brigade.wire.errors import ConfigError

HOSTS = ["home-1", "home-2", "guest"]


def test_a_trace_is_drawn_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spot.csv"
    words = ["trace", "spot", "--host", "home:2", "--host", "guest", "--compress", "288", "--seed", "3"]
    result = CliRunner().invoke(app, [*words, "--output", str(path)])
    assert result.exit_code == 0, result.output
    periods = read_periods(path, HOSTS)
    drawn = draw_periods(TraceSpec(generator="spot", compress=288.0), HOSTS, 3)
    assert f"{len(periods)} periods of 3 hosts, 2 there at the beginning" in result.output
    assert [p.node for p in periods] == [p.node for p in drawn]
    assert [p.start_s for p in periods] == pytest.approx([p.start_s for p in drawn], abs=1e-3)


def test_an_unknown_generator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'weather' is no generator; expected volunteers or spot"):
        CliRunner().invoke(
            app, ["trace", "weather", "--host", "a", "--output", str(tmp_path / "x.csv")], catch_exceptions=False
        )


@pytest.mark.parametrize(
    ("hosts", "complaint"),
    [
        (["a:0"], "--host 'a:0': count: expected `int` >= 1; found '0'"),
        (["a:99999999999"], "--host 'a:99999999999': count: expected `int` <= 250"),
        (["a:" + "9" * 5000], "count: integer value out of range"),
        (["a:many"], "--host 'a:many': count: expected `int`, got `str`; found 'many'"),
        (["a:"], "--host 'a:': count: expected `int`"),
        (["-a"], "--host '-a': name: expected up to 64 letters, digits"),
        (["a/b"], "--host 'a/b': name: expected up to 64 letters, digits"),
        (["a", "a"], "host: 'a' is the name of 2 hosts"),
        (["a-1", "a:2"], "host: 'a-1' is the name of 2 hosts"),
        (["coordinator"], "host: 'coordinator' is the name of 2 hosts"),
        (["a:200", "b:51"], "host: expected 1 to 250 hosts, found 251"),
    ],
)
def test_hosts_that_no_scenario_would_take_are_refused(hosts: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)) as caught:
        host_names(hosts)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("option", ["--hours", "--compress"])
@pytest.mark.parametrize("number", ["inf", "1e300", "nan", "0"])
def test_hours_without_an_end_are_refused(option: str, number: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "spot", "--host", "a", "--output", str(tmp_path / "x"), option, number])
    assert isinstance(result.exception, SystemExit | ConfigError)
    assert option in result.output + str(result.exception)


@pytest.mark.parametrize("option", ["--seconds", "--compress"])
@pytest.mark.parametrize("number", ["inf", "1e300", "nan"])
def test_a_crowd_without_an_end_is_refused(option: str, number: str) -> None:
    result = CliRunner().invoke(app, ["crowd", option, number])
    assert result.exit_code == 2
    assert option in result.output
