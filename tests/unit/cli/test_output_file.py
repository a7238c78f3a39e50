"""Whether a file can be written is known before anything starts, and asking leaves nothing behind."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from brigade.cli.app import app
from brigade.cli.output_file import require_writable, write_output
from brigade.wire.errors import BrigadeError, ConfigError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "lab"
COMMANDS = {
    "lab": ("lab", str(EXAMPLES / "home4" / "scenario.toml"), "--simulate", "--json"),
    "lab's report": ("lab", str(EXAMPLES / "home4" / "scenario.toml"), "--simulate", "--report"),
    "crowd": ("crowd", "--json"),
    "bench": ("bench", str(EXAMPLES / "bench" / "run.toml"), "--json"),
    "report": ("report", ".", "--output"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_before_it_does_anything(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = COMMANDS[command]
    with pytest.raises(ConfigError, match=f"{words[-1]}: {tmp_path} is a directory; expected a file") as caught:
        CliRunner().invoke(app, [*words, str(tmp_path)], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["/proc/x/y", "file/below", "long" * 100])
def test_a_place_that_takes_no_file_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--json: .* cannot be written: "):
        require_writable(tmp_path / place, "--json")


def test_asking_leaves_everything_as_it_was(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"kept")
    for path in (there, tmp_path / "a" / "b" / "c", None):
        require_writable(path, "--json")
    assert list(tmp_path.iterdir()) == [there]
    assert there.read_bytes() == b"kept"


def test_what_was_asked_for_is_written_with_its_directories(tmp_path: Path) -> None:
    write_output(tmp_path / "a" / "b.json", b"{}")
    assert (tmp_path / "a" / "b.json").read_bytes() == b"{}"
    with pytest.raises(BrigadeError, match="a cannot be written: Is a directory"):
        write_output(tmp_path / "a", b"{}")
