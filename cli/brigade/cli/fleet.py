"""A coordinator and its nodes as processes of this machine, which end when this process does."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from brigade.wire.errors import BrigadeError

POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of the fleet, and where its output goes (None: to ours)."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path | None


@dataclass(slots=True)
class Fleet:
    """Processes that are ended, whatever happens, when the `with` block is left."""

    members: list[Member] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self, name: str, *arguments: str | Path, output: Path | None = None) -> Member:
        """Start `brigade ARGUMENTS --end-with-stdin`; its output goes to the file `output`, or to ours."""
        command = [sys.executable, "-m", "brigade.cli.app", *map(str, arguments), "--end-with-stdin"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        target = output.open("ab") if output else None
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program, no shell, no text from outside
                command,
                env=environment,
                stdin=subprocess.PIPE,  # held open, never written: its end tells the child that we are gone
                stdout=target,
                stderr=target and subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone; we pass it on once
            )
        finally:
            if target:
                target.close()
        member = Member(name=name, process=process, output=output)
        self.members.append(member)
        return member

    def wait_for_file(self, path: Path, writer: Member, *, deadline_s: float) -> None:
        """Wait until `writer` has written `path`.

        Raises BrigadeError when it ends before, or takes too long.
        """
        end = time.monotonic() + deadline_s
        while not path.is_file():
            if writer.process.poll() is not None:
                raise BrigadeError(
                    f"{writer.name} ended with exit code {writer.process.returncode} before it was ready"
                )
            if time.monotonic() > end:
                raise BrigadeError(f"{writer.name} was not ready within {deadline_s:.0f} s")
            time.sleep(POLL_S)

    def wait(self, leader: Member) -> int:
        """Wait until `leader` ends and return its exit code; Ctrl-C is passed on to it, each time."""
        while True:
            try:
                return leader.process.wait()
            except KeyboardInterrupt:
                leader.process.send_signal(signal.SIGINT)

    def settle(self, *, deadline_s: float) -> list[Member]:
        """Wait for every process to end by itself; return those that did not."""
        end = time.monotonic() + deadline_s
        return [member for member in self.members if not ended_by(member.process, end)]

    def end(self, *, grace_s: float = 5.0) -> None:
        """Ask every process that still runs to end, and force those that do not."""
        for request in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for member in self.members:
                request(member.process)  # does nothing to one that has ended
            if not self.settle(deadline_s=grace_s):
                break
        for member in self.members:
            if member.process.stdin:
                member.process.stdin.close()


def ended_by(process: subprocess.Popen[bytes], moment: float) -> bool:
    """Wait for a process until `moment` (monotonic seconds); tell whether it ended."""
    try:
        process.wait(max(0.0, moment - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
