import logging

import pytest
import typer

from brigade.cli import app as application
from brigade.cli.app import exit_code_of, main
from brigade.wire.errors import BrigadeError, CheckpointError, ConfigError, PlanError, RemoteProtocolError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (PlanError("x"), 1),
        (CheckpointError("x"), 1),
        (RemoteProtocolError("x"), 1),
        (BrigadeError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert exit_code_of(error) == code


def run_main(monkeypatch, command):
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command)
    monkeypatch.setattr(application, "app", app)
    monkeypatch.setattr("sys.argv", ["brigade"])
    try:
        main()
    except SystemExit as end:
        return end.code


def test_an_error_is_one_line_on_stderr(monkeypatch, capsys):
    def fail():
        raise ConfigError("run.toml: training.max_steps: expected an integer, found 'many'")

    assert run_main(monkeypatch, fail) == 2
    captured = capsys.readouterr()
    assert captured.err == "brigade: run.toml: training.max_steps: expected an integer, found 'many'\n"
    assert captured.out == ""


def test_an_interrupt_that_nobody_handled_is_130(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    assert run_main(monkeypatch, interrupted) == 130


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(logging.getLogger("brigade"), "handlers", [])  # another test's journal
    with pytest.raises(ZeroDivisionError):
        run_main(monkeypatch, broken)
