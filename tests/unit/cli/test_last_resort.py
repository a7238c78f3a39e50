"""What nobody has foreseen is one line on the screen and a traceback in the log."""

import json
import logging

import pytest

from brigade.cli import app
from brigade.wire.journal import open_journal


@pytest.fixture
def journal(tmp_path):
    yield tmp_path
    for name in ("brigade", "asyncio"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def fail(**_):
    raise KeyError("nobody\nthought of this")


def test_once_a_log_is_open(journal, monkeypatch, capsys):
    monkeypatch.setattr(app, "app", fail)
    open_journal(journal)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: unforeseen: KeyError: ")
    assert shown.count("\n") == 1
    entry = json.loads((journal / "log.jsonl").read_text())
    assert "in fail" in entry["traceback"]


def test_before_that_nothing_is_hidden(monkeypatch):
    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(KeyError):
        app.main()
