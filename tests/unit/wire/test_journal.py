"""What goes to the screen and what goes to the file."""

import asyncio
import json
import logging

import pytest

from brigade.wire.journal import open_journal


@pytest.fixture(autouse=True)
def own_loggers():
    yield
    for name in ("brigade", "asyncio"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def read(directory):
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def test_a_traceback_is_for_the_file(tmp_path, capsys):
    open_journal(tmp_path)
    try:
        int("many")
    except ValueError:
        logging.getLogger("brigade.node").exception("cannot go on")
    assert capsys.readouterr().err == "error: cannot go on\n"
    (entry,) = read(tmp_path)
    assert (entry["level"], entry["from"], entry["message"]) == ("error", "node", "cannot go on")
    assert "ValueError: invalid literal" in entry["traceback"]


def test_so_is_that_of_a_bug_in_a_callback(tmp_path, capsys):
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    open_journal(tmp_path)
    asyncio.run(main())
    shown = capsys.readouterr().err
    assert shown.startswith("error: Exception in callback ")
    assert shown.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in read(tmp_path)[0]["traceback"]


def test_a_journal_that_is_opened_again_says_everything_once(tmp_path, capsys):
    for _ in range(2):
        open_journal(tmp_path)
    logging.getLogger("asyncio").warning("slow")
    logging.getLogger("brigade").info("fast")
    assert capsys.readouterr().err == "warning: slow\nfast\n"
    assert [entry["message"] for entry in read(tmp_path)] == ["slow", "fast"]


def test_a_file_that_cannot_be_written_costs_the_file_only(tmp_path, capsys):
    (tmp_path / "log.jsonl").mkdir()
    open_journal(tmp_path)
    logging.getLogger("brigade").info("going on")
    assert "cannot write the log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verbosity", "shown"), [(-1, "warning: w\n"), (0, "i\nwarning: w\n"), (1, "d\ni\nwarning: w\n")]
)
def test_verbosity(tmp_path, capsys, verbosity, shown):
    open_journal(tmp_path, verbosity=verbosity)
    log = logging.getLogger("brigade.wire")
    log.debug("d")
    log.info("i")
    log.warning("w")
    assert capsys.readouterr().err == shown
