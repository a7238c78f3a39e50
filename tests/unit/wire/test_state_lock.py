"""The lock of a state directory: one holder, never stale, and a refusal that names who or what is in the way."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from brigade.wire.errors import ConfigError
from brigade.wire.state_lock import LOCK_NAME, StateLock

HOLD = """
import sys
from pathlib import Path
from brigade.wire.state_lock import StateLock
lock = StateLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path / "state" until its stdin closes."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_it_makes_the_directory_for_its_owner(tmp_path):
    with StateLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / LOCK_NAME).read_text() == f"{os.getpid()}\n"
        assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0


def test_a_second_holder_is_refused_by_the_number_of_the_first(tmp_path, holder):
    with pytest.raises(ConfigError, match=rf"in use by process {holder.pid};"):
        StateLock(tmp_path / "state")
    # The refused one has disturbed nothing.
    assert (tmp_path / "state" / LOCK_NAME).read_text() == f"{holder.pid}\n"
    with pytest.raises(ConfigError, match="in use by process"):
        StateLock(tmp_path / "state")


def test_also_within_one_process(tmp_path):
    with StateLock(tmp_path), pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        StateLock(tmp_path)


def test_a_killed_holder_leaves_nothing_in_the_way(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(timeout=30)
    with StateLock(tmp_path / "state"):
        assert (tmp_path / "state" / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_released_it_is_free_and_a_second_release_does_nothing(tmp_path):
    lock = StateLock(tmp_path)
    lock.release()
    lock.release()
    with StateLock(tmp_path):
        lock.release()
        with pytest.raises(ConfigError):
            StateLock(tmp_path)


def test_a_forked_child_does_not_keep_it_when_the_parent_dies(tmp_path):
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()

    def live_on():
        begun.set()
        end.wait(60)

    lock = StateLock(tmp_path)
    child = context.Process(target=live_on)
    child.start()
    try:
        assert begun.wait(30)
        lock.abandon()  # what the system does for the dead
        StateLock(tmp_path).release()
    finally:
        end.set()
        child.join(30)


def test_release_is_at_once_even_while_a_child_is_being_forked(tmp_path):
    lock = StateLock(tmp_path)
    copy = os.dup(lock._descriptor)  # as in a child that has not come to close it
    try:
        lock.release()
        StateLock(tmp_path).release()
    finally:
        os.close(copy)


def test_a_child_does_not_unlock_its_parent(tmp_path):
    context = multiprocessing.get_context("fork")
    with StateLock(tmp_path) as lock:
        child = context.Process(target=lock.release)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"):
            StateLock(tmp_path)


def test_a_file_in_the_place_of_the_directory(tmp_path):
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="state is not a directory"):
        StateLock(tmp_path / "state")


@pytest.mark.parametrize(
    ("number", "words"),
    [(13, "is not writable: Permission denied"), (30, "is not writable: Read-only"), (28, "cannot be used: No space")],
)
def test_trouble_with_the_directory_is_not_called_in_use(tmp_path, monkeypatch, number, words):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(ConfigError, match=words):
        StateLock(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="is not writable: Permission denied"):
            StateLock(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_disk_that_is_full_when_the_number_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match="No space left"):
        StateLock(tmp_path)
    monkeypatch.undo()
    StateLock(tmp_path).release()  # the failed attempt holds nothing


def test_a_holder_that_has_not_written_its_number_yet(tmp_path):
    with StateLock(tmp_path):
        (tmp_path / LOCK_NAME).write_text("")
        with pytest.raises(ConfigError, match="in use by another process"):
            StateLock(tmp_path)
