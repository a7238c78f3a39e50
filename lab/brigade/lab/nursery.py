"""Where the nodes of a lab come from: a process that has imported everything once and forks.

A node then starts at once, and nodes share the memory of what they import. What runs is what `python -m` would run. The
nursery ends when its standard input does, and with it whatever it bore, also what stands still.
"""

import atexit
import importlib
import logging
import os
import runpy
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from brigade.lab.namespace_entry import enter_namespace
from brigade.lab.nursery_orders import Answer, Bear, Born, Died, Ready, Signal, read_order, write_line

# torch._dynamo is what every optimizer imports; it alone takes seconds
PRELOADED = ("torch._dynamo", "brigade.node.daemon", "brigade.cli.app")
POLL_S = 0.05
GRACE_S = 4.0  # for nodes to end when the lab has


@dataclass(frozen=True, slots=True)
class Child:
    """One process that lives: it ends when the write end of its standard input is closed."""

    number: int
    lifeline: int


def main() -> None:
    """Fork what is ordered until there are no more orders."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for module in PRELOADED:
        importlib.import_module(module)
    answer(Ready())
    children: dict[int, Child] = {}  # by pid
    heard = b""
    while True:
        reap(children)
        if not select.select([0], [], [], POLL_S)[0]:
            continue
        more = os.read(0, 65536)
        if not more:
            break
        *lines, heard = (heard + more).split(b"\n")
        for line in lines:
            order = read_order(line)
            if isinstance(order, Signal):
                send(children, order)
            elif bear(children, order):
                live(order)
                return  # a child: the interpreter ends as that of any program
    end(children)


def bear(children: dict[int, Child], order: Bear) -> bool:
    """Fork; return True in the child."""
    read_end, lifeline = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read_end)
        children[pid] = Child(order.number, lifeline)
        answer(Born(order.number, pid))
        return False
    os.setpgid(0, 0)
    os.close(lifeline)
    for other in children.values():
        os.close(other.lifeline)
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, replacement in ((0, read_end), (1, output), (2, output)):
        os.dup2(replacement, descriptor)
    os.close(read_end)
    os.close(output)
    return True


def live(order: Bear) -> None:
    """Be the program that was ordered; a child that has ended goes at once.

    Python would take apart all that was imported before the fork, and have the machine copy every page of it: 20 s for
    seven nodes on two busy cores.
    """
    ended = [1]
    atexit.register(leave_at_once, ended)  # behind the threads, and all that the program registers
    if order.namespace:
        enter_namespace(order.namespace)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules.pop(order.module, None)  # it is run, not imported
    sys.argv = [order.module, *order.arguments]
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
        ended[0] = 0
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            ended[0] = leaving.code or 0
        raise


def leave_at_once(ended: list[int]) -> None:
    """End this process with its exit code, once what it said has been written."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(ended[0])


def send(children: dict[int, Child], order: Signal) -> None:
    """Pass a signal on; a child that has ended and is not reaped yet takes no harm."""
    for pid, child in children.items():
        if child.number == order.number:
            os.kill(pid, order.signal)


def reap(children: dict[int, Child]) -> None:
    """Tell who has ended."""
    for pid in tuple(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            child = children.pop(pid)
            os.close(child.lifeline)
            answer(Died(child.number, os.waitstatus_to_exitcode(status)))


def end(children: dict[int, Child]) -> None:
    """Ask all to end, and force those that do not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in children:
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
        until = time.monotonic() + GRACE_S
        while children and time.monotonic() < until:
            reap(children)
            time.sleep(POLL_S)


def answer(message: Answer) -> None:
    """Say something to the lab; if it is gone, its end is noticed elsewhere."""
    try:
        os.write(1, write_line(message))
    except OSError:
        return


if __name__ == "__main__":
    main()
