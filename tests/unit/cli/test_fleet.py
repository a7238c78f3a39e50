"""The processes of a fleet end with it, and with the process that started it."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from brigade.cli import fleet as fleet_module
from brigade.cli.fleet import Fleet
from brigade.wire.errors import BrigadeError


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Let the fleet start a small script instead of the whole program."""

    def use(source):
        script = tmp_path / "stand_in.py"
        script.write_text(textwrap.dedent(source))
        interpreter = tmp_path / "python"
        interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        interpreter.chmod(0o755)
        monkeypatch.setattr(fleet_module.sys, "executable", str(interpreter))

    return use


def test_output_goes_to_the_file_and_the_exit_code_comes_back(stand_in, tmp_path):
    stand_in("import sys; print(' '.join(sys.argv[1:])); sys.exit(3)")
    with Fleet() as fleet:
        member = fleet.start("ada", "join", "invite.txt", output=tmp_path / "ada.txt")
        assert fleet.wait(member) == 3
    assert (tmp_path / "ada.txt").read_text() == "-m brigade.cli.app join invite.txt --end-with-stdin\n"


def test_a_member_that_ends_too_early_is_named(stand_in, tmp_path):
    stand_in("import sys; sys.exit(7)")
    with Fleet() as fleet:
        member = fleet.start("coordinator", "up")
        with pytest.raises(BrigadeError, match="coordinator ended with exit code 7 before it was ready"):
            fleet.wait_for_file(tmp_path / "never", member, deadline_s=20.0)


def test_leaving_the_block_ends_even_those_that_do_not_listen(stand_in, tmp_path):
    stand_in(
        """
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(__file__).with_name("deaf").touch()
        while True:
            time.sleep(60)
        """
    )
    fleet = Fleet()
    member = fleet.start("deaf", "join")
    fleet.wait_for_file(tmp_path / "deaf", member, deadline_s=20.0)
    fleet.end(grace_s=0.2)
    assert member.process.poll() == -9


CHILD = """
import os, time
from brigade.cli.lifeline import end_with_stdin
end_with_stdin()
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(60)
"""


def test_children_end_when_the_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == ""  # at its end nobody holds it any more: the child is gone too
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
