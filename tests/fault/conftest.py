import pytest
from tests.fault.trial import Trial


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The run that nobody disturbed: the directory of its coordinator."""
    with pytest.MonkeyPatch.context() as patch, Trial(tmp_path_factory.mktemp("reference")) as trial:
        patch.setenv("XDG_STATE_HOME", str(trial.root / "state"))
        patch.setenv("OMP_NUM_THREADS", "1")
        trial.train()
        return trial.run_dir


@pytest.fixture
def trial(tmp_path):
    with Trial(tmp_path) as trial:
        yield trial
