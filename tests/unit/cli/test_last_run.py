import pytest

from brigade.cli.last_run import find_run, pointer_file, remember
from brigade.wire.errors import ConfigError


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "runs" / "one"
    path.mkdir(parents=True)
    (path / "run.sqlite").touch()
    return path


def test_the_run_that_was_remembered_is_found(run_dir, state_home):
    remember(run_dir)
    assert pointer_file() == state_home / "brigade" / "last-run"
    assert find_run(None) == run_dir


def test_a_relative_path_is_remembered_as_an_absolute_one(run_dir, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    remember(run_dir.relative_to(run_dir.parent))
    monkeypatch.chdir("/")
    assert find_run(None) == run_dir


def test_a_named_run_wins(run_dir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.sqlite").touch()
    remember(run_dir)
    assert find_run(other) == other


def test_without_any_run_it_says_what_to_name():
    with pytest.raises(ConfigError, match="no run was started on this machine yet"):
        find_run(None)


def test_a_run_that_is_gone_is_named(run_dir):
    remember(run_dir)
    (run_dir / "run.sqlite").unlink()
    with pytest.raises(ConfigError, match=r"holds no run\.sqlite"):
        find_run(None)
    run_dir.rmdir()
    with pytest.raises(ConfigError, match="is gone"):
        find_run(None)


def test_a_state_directory_that_cannot_be_written_is_no_reason_to_fail(run_dir, state_home):
    state_home.write_text("a file where a directory should be")
    remember(run_dir)
