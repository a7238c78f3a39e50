"""The life of one process of a trial: `brigade` with its own output, and with the moment of a signal if it has one.

The processes are forked from a server that has imported everything already: they start in no time.
"""

import importlib
import multiprocessing
import os
import signal
import sys
from functools import wraps
from itertools import count
from typing import NamedTuple

CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo is what every optimizer imports; it alone takes seconds
CONTEXT.set_forkserver_preload(["torch._dynamo", "brigade.node.daemon", "brigade.coordinator.daemon", __name__])


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
        self.output = output
        lifeline, self._grip = CONTEXT.Pipe(duplex=False)
        environment = dict(os.environ)
        self._child = CONTEXT.Process(target=_live, args=(arguments, environment, output, lifeline, moment))
        self._child.start()
        lifeline.close()

    @property
    def pid(self):
        return self._child.pid

    @property
    def exit_code(self):
        """The exit code; None while it runs, minus the signal when one has ended it."""
        return self._child.exitcode

    def wait(self, seconds):
        """Wait for the end; return the exit code, None when it goes on."""
        self._child.join(seconds)
        return self._child.exitcode

    def send(self, number):
        """Send a signal, as somebody else would."""
        os.kill(self.pid, number)

    def end(self):
        """End it in any way."""
        if self._child.is_alive():
            self._child.kill()
        self._child.join()
        self._grip.close()


def _live(arguments, environment, output, lifeline, moment):
    os.setsid()  # Ctrl-C at the tests is not for it
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, replacement in ((0, lifeline.fileno()), (1, file), (2, file)):
        os.dup2(replacement, descriptor)
    os.close(file)
    lifeline.close()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    sys.argv = ["brigade", *arguments, "--end-with-stdin"]
    if moment is not None:
        _lie_in_wait(moment)
    from brigade.cli.app import main

    main()


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
