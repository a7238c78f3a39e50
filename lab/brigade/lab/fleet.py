"""The processes of a lab: started with a lifeline, ended by their ids, whatever happens to the lab.

A process ends when its standard input does, which the system closes when the lab dies, however it dies. Each one has a
process group of its own in our session: when we are gone, the system lets stopped ones go on (POSIX, orphaned process
groups), and then they end too.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

END_GRACE_S = 6.0
LONGEST_LINE = 4 * 1024 * 1024  # of what a member prints for us to read


class Member:
    """One process of a lab."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.suspended = False

    @property
    def exit_code(self) -> int | None:
        """How it ended, minus the signal that ended it; None while it runs."""
        raise NotImplementedError

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.exit_code is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing if it has ended."""
        raise NotImplementedError

    async def ended(self) -> int:
        """Wait until it ends, and return the exit code."""
        raise NotImplementedError

    def suspend(self) -> None:
        """Let it stand still."""
        self.suspended = True
        self.send(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        self.suspended = False
        self.send(signal.SIGCONT)

    async def wait(self, timeout_s: float) -> int | None:
        """Wait until it ends, and return the exit code; None if it goes on."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.ended()
        except TimeoutError:
            return None


class OwnMember(Member):
    """A process that this one started."""

    def __init__(self, name: str, process: Process) -> None:
        super().__init__(name)
        self.process = process

    @property
    def exit_code(self) -> int | None:
        """See `Member`."""
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        """See `Member`."""
        if self.runs:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)  # Popen's own way would reap the process behind asyncio's back

    async def ended(self) -> int:
        """See `Member`."""
        return await self.process.wait()


@dataclass(slots=True)
class Fleet:
    """Processes that all end when the `async with` block is left, and what is taken down once they have."""

    members: list[OwnMember] = field(default_factory=list)
    afterwards: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def start(
        self,
        name: str,
        *arguments: str | Path,
        output: Path | None,
        errors: Path | None = None,
        behind: Sequence[str] = (),
    ) -> OwnMember:
        """Start `python -m ARGUMENTS`; what it prints goes to the file `output`; without one it is ours to read.

        `behind`: words that come before, of a program that becomes this one, such as `ip netns exec`.
        """
        sink = (output or errors or Path(os.devnull)).open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                *behind,
                sys.executable,
                "-m",
                *map(str, arguments),
                stdin=PIPE,
                stdout=sink if output else PIPE,
                stderr=STDOUT if output else sink,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                limit=LONGEST_LINE,
                process_group=0,  # Ctrl-C reaches us alone
            )
        finally:
            sink.close()
        member = OwnMember(name, process)
        self.members.append(member)
        return member

    async def end(self, grace_s: float = END_GRACE_S) -> None:
        """Ask whatever still runs to end, and force what does not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [member for member in self.members if member.runs]
            for member in running:
                member.send(number)
                member.wake()  # a stopped process takes no signal but SIGKILL
                if member.process.stdin is not None:
                    member.process.stdin.close()
            if running:
                await asyncio.gather(*(member.wait(grace_s) for member in running))
        self.members.clear()
        await self.afterwards.aclose()
