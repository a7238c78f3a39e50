"""The life of one process of a trial: `brigade` with its own output, and with the moment of a signal if it has one."""

import importlib
import os
import signal
from contextlib import suppress
from functools import partial, wraps
from itertools import count
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

from tests.forked import ForkedProcess


class Moment(NamedTuple):
    """When a process gets a signal: at the nth call of a function, `module:function` or `module:Class.method`.

    With a stage, only calls of the node that holds this stage count.
    """

    where: str
    number: int = 1
    stage: int | None = None
    send: signal.Signals = signal.SIGKILL


class Process:
    """A running `brigade`; it ends when this process does."""

    def __init__(self, name, arguments, output, moment):
        self.name = name
        self.output = Path(output)
        prepare = None if moment is None else partial(_lie_in_wait, moment)
        self._child = ForkedProcess([*arguments, "--end-with-stdin"], os.environ, self.output, prepare)

    @property
    def pid(self):
        return self._child.pid

    @property
    def exit_code(self):
        """The exit code; None while it runs, minus the signal when one has ended it."""
        return self._child.poll()

    def wait(self, seconds):
        """Wait for the end; return the exit code, None when it goes on."""
        with suppress(TimeoutExpired):
            return self._child.wait(seconds)
        return None

    def send(self, number):
        """Send a signal, as somebody else would."""
        os.kill(self.pid, number)

    def end(self):
        """End it in any way."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            pipe.close()


def _lie_in_wait(moment):
    """Wrap the function so that its nth call begins with the signal."""
    module, _, path = moment.where.partition(":")
    owner = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    calls = count(1)

    @wraps(original)
    def signalled(*arguments, **options):
        counts = moment.stage is None or arguments[0]._stage == moment.stage
        if counts and next(calls) == moment.number:
            os.kill(os.getpid(), moment.send)
        return original(*arguments, **options)

    setattr(owner, name, signalled)
