"""`brigade trace` writes what a scenario reads, and the scenario's own generator draws the same."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from brigade.cli.app import app
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
