import pytest

from brigade.cli.last_run import begun_from, find_run, pointer_file, remember
from brigade.coordinator.run_directory import Address, Asked, write_address
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


def note_run_file(run_dir, path):
    asked = Asked(run_file=str(path), listen="0.0.0.0:7711")
    write_address(run_dir, Address(pid=1, endpoint="127.0.0.1:7711", run_id="r", public_key="k", asked=asked))


def test_a_run_knows_the_run_file_that_it_was_begun_from(run_dir, tmp_path):
    path = tmp_path / "walk.toml"
    path.touch()
    note_run_file(run_dir, path)
    remember(run_dir)
    assert begun_from(None) == (path, run_dir)
    assert begun_from(run_dir) == (path, run_dir)


def test_a_run_file_that_is_gone_is_named_with_what_to_do(run_dir, tmp_path):
    note_run_file(run_dir, tmp_path / "walk.toml")
    with pytest.raises(ConfigError, match=r"walk\.toml is gone.*a copy is .*run\.toml.*brigade up RUN\.toml --resume"):
        begun_from(run_dir)


def test_a_run_of_which_no_run_file_is_known_says_so(run_dir):
    with pytest.raises(ConfigError, match="does not tell its run file"):
        begun_from(run_dir)
