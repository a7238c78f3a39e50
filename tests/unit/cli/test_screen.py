"""Tables through a pipe are whole."""

from brigade.cli.screen import PIPE_COLUMNS, open_console


def test_a_pipe_is_wide_enough_for_a_table(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert open_console().width == PIPE_COLUMNS


def test_columns_of_the_environment_go_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    assert open_console().width == 70
