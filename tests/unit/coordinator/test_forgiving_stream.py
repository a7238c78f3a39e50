"""A screen that goes away costs lines, never the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from brigade.coordinator.forgiving_stream import forgiving
from brigade.coordinator.progress import Display
from brigade.coordinator.run_events import Note

SHOW = """
from brigade.coordinator.progress import Display, choose_mode
from brigade.coordinator.run_events import Note
display = Display(choose_mode(quiet=False, json_lines={json}))
print("ready", flush=True)
input()
for number in range(20_000):
    display.note(Note(kind="x", text=f"line {{number}}"))
display.close()
raise SystemExit(7)
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_a_reader_that_goes_away_is_not_missed(as_json):
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW.format(json=as_json)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    _, errors = process.communicate(b"\n", timeout=60)
    assert (process.returncode, errors) == (7, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_device_is_not_missed():
    with Path("/dev/full").open("w") as full:
        stream = forgiving(full)
        display = Display("lines", output=stream, errors=stream)
        for _ in range(2):
            display.note(Note(kind="x", text="line"))
            display.note(Note(kind="x", text="line", level="error"))
            stream.flush()


def test_no_stream_at_all_is_no_terminal():
    quiet = forgiving(None)
    assert not quiet.isatty()
    assert quiet.write("abc") == 3
    quiet.flush()
    with pytest.raises(OSError, match="no stream"):
        quiet.fileno()
