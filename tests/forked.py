"""`brigade` processes forked from a server that has imported everything: they start in no time, and take a Popen's calls."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo is what every optimizer imports; it alone takes seconds
CONTEXT.set_forkserver_preload(["torch._dynamo", "brigade.node.daemon", "brigade.coordinator.daemon", __name__])


class ForkedProcess:
    """A running `brigade ARGUMENTS` as `subprocess.Popen` would show it.

    Its output goes to the file `output`, else it is `stdout`. `prepare` is called in the process before anything else.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: Path | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        lifeline, self.stdin = CONTEXT.Pipe(duplex=False)  # its end tells the process that we are gone
        screen, writer = CONTEXT.Pipe(duplex=False)
        life = (list(arguments), dict(environment), lifeline, output or writer, prepare)
        self._child = CONTEXT.Process(target=_live, args=life)
        self._child.start()
        lifeline.close()
        writer.close()
        self.stdout = os.fdopen(os.dup(screen.fileno()), "rb")
        screen.close()
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.exitcode

    def poll(self) -> int | None:
        return self._child.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        if (code := self._child.exitcode) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("brigade", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self._child.is_alive():
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _live(arguments, environment, lifeline, output, prepare):
    os.setsid()  # Ctrl-C at the tests is not for it
    os.environ.clear()
    os.environ.update(environment)
    sink = (
        os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if isinstance(output, Path) else output.fileno()
    )
    for descriptor, replacement in ((0, lifeline.fileno()), (1, sink), (2, sink)):
        os.dup2(replacement, descriptor)
    lifeline.close()
    if isinstance(output, Path):
        os.close(sink)
    else:
        output.close()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["brigade", *arguments]
    if prepare is not None:
        prepare()
    from brigade.cli.app import main

    main()
