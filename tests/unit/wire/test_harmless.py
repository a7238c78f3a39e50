"""What others write cannot move a cursor, forge a line or flood a screen."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.wire.harmless import harmless
from brigade.wire.journal import JsonLines, PlainLines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with  two blanks and ümlauts", "plain, with  two blanks and ümlauts"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("one\r\n    two\ttabbed\u2028three\x00", "one two tabbed three\\x00"),
        ("right to left \u202e and alone \ud800", "right to left \\u202e and alone \\ud800"),
        ("\x9b31m is ESC [ in one", "\\x9b31m is ESC [ in one"),
        ("\n", ""),
    ],
)
def test_what_is_shown(text, shown):
    assert harmless(text) == shown


def test_a_long_text_is_cut_and_says_so():
    assert harmless("x" * 50, most=10) == "x" * 10 + "... (of 50 characters)"
    assert len(harmless("\x00" * 10_000_000)) < 2100


@given(st.text())
def test_any_text_is_one_printable_line(text):
    assert harmless(text).isprintable()
    assert harmless(harmless(text)) == harmless(text)


def record(message):
    return logging.makeLogRecord({"name": "brigade.node", "levelno": 30, "levelname": "WARNING", "msg": message})


def test_a_log_shows_one_line_for_each_record():
    hostile = record("lost\nerror: forged\x1b[2J" + "x" * 100_000)
    line = PlainLines().format(hostile)
    assert line.startswith("warning: lost error: forged\\x1b[2Jxxx")
    assert len(line) < 2100
    written = JsonLines().format(hostile)
    assert written.isprintable()
    assert len(written) < 9000
    assert json.loads(written)["level"] == "warning"
