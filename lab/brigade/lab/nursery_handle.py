"""The lab's side of its nursery: nodes that start at once, as members of the fleet."""

import asyncio
import signal
from pathlib import Path

from brigade.lab.fleet import Fleet, Member, OwnMember
from brigade.lab.nursery_orders import Bear, Born, Died, Order, Signal, read_answer, write_line
from brigade.wire.errors import BrigadeError

READY_LIMIT_S = 120.0


class BornMember(Member):
    """A process that the nursery bore."""

    def __init__(self, name: str, number: int, nursery: "NurseryHandle") -> None:
        super().__init__(name)
        self._number = number
        self._nursery = nursery
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def exit_code(self) -> int | None:
        """See `Member`."""
        return self._exit_code.result() if self._exit_code.done() else None

    def send(self, number: signal.Signals) -> None:
        """See `Member`."""
        if self.runs:
            self._nursery.order(Signal(self._number, number))

    async def ended(self) -> int:
        """See `Member`."""
        return await asyncio.shield(self._exit_code)

    def died(self, exit_code: int) -> None:
        """Take note of the end."""
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)


class NurseryHandle:
    """A nursery that runs."""

    def __init__(self, process: OwnMember) -> None:
        self._process = process
        self._born: list[BornMember] = []
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def bear(self, name: str, module: str, arguments: list[str | Path], output: Path, namespace: str = "") -> Member:
        """Start `python -m MODULE ARGUMENTS`, in a network namespace where one is named."""
        member = BornMember(name, len(self._born), self)
        self._born.append(member)
        self.order(Bear(len(self._born) - 1, module, tuple(map(str, arguments)), str(output), namespace))
        return member

    def order(self, order: Order) -> None:
        """Have something done."""
        stdin = self._process.process.stdin
        assert stdin is not None
        if not stdin.is_closing():
            stdin.write(write_line(order))

    async def _read(self) -> None:
        stdout = self._process.process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            match read_answer(line):
                case Died(number, exit_code):
                    self._born[number].died(exit_code)
                case Born():
                    pass
                case _:
                    pass
        for member in self._born:
            member.died(-signal.SIGKILL)


async def open_nursery(fleet: Fleet, errors: Path) -> NurseryHandle:
    """Start a nursery and wait until it has imported everything.

    Raises BrigadeError when it cannot.
    """
    process = await fleet.start("the nursery", "brigade.lab.nursery", output=None, errors=errors)
    assert process.process.stdout is not None
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            line = await process.process.stdout.readline()
    except TimeoutError:
        line = b""
    if not line:
        raise BrigadeError(f"the nodes' nursery could not start; {errors} tells why")
    return NurseryHandle(process)
