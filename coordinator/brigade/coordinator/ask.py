"""The owner's commands to a running coordinator: dials its control socket with the coordinator's own key."""

import asyncio
from pathlib import Path

import psutil

from brigade.coordinator.run_directory import KEY_NAME, read_address
from brigade.wire.connection import Connection
from brigade.wire.dialer import dial
from brigade.wire.encoding import Message
from brigade.wire.endpoint import parse_endpoint
from brigade.wire.errors import BrigadeError, ConfigError
from brigade.wire.identity import load_or_create
from brigade.wire.network import Network
from brigade.wire.verdict import Verdict

ANSWER_LIMIT_S = 10.0


def ask(state_dir: Path, message: Message, *, deadline_s: float = ANSWER_LIMIT_S) -> Message:
    """Send one command to the coordinator of a state directory and return its answer.

    Raises ConfigError when no coordinator runs there, BrigadeError when it does not answer.
    """
    address = read_address(state_dir)
    key_file = state_dir / KEY_NAME
    if address is None or not key_file.exists():
        raise ConfigError(f"no coordinator has run in {state_dir}")
    if not psutil.pid_exists(address.pid):
        raise ConfigError(f"no coordinator runs in {state_dir}: process {address.pid} has ended")
    return asyncio.run(_ask(state_dir, message, deadline_s))


async def _ask(state_dir: Path, message: Message, deadline_s: float) -> Message:
    address = read_address(state_dir)
    assert address is not None
    keys = load_or_create(state_dir / KEY_NAME)
    network = Network()
    try:
        waiting = _Answer(message)
        dial(
            network,
            keys,
            parse_endpoint(address.endpoint),
            keys.public,
            waiting,
            deadline_s=deadline_s,
            label=f"the coordinator at {address.endpoint}",
        )
        async with asyncio.timeout(deadline_s + 1.0):
            answer = await waiting.answer
    except TimeoutError:
        raise BrigadeError(f"the coordinator at {address.endpoint} does not answer") from None
    finally:
        await network.close()
    if isinstance(answer, Verdict):
        text = f"no coordinator runs in {state_dir}: {answer.reason}"
        raise ConfigError(text) if answer.code in ("unreachable", "wrong_key", "stranger") else BrigadeError(text)
    return answer


class _Answer:
    """The handler of the one connection: sends the command once it is open, keeps what comes back."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self.answer: asyncio.Future[Message | Verdict] = asyncio.get_running_loop().create_future()

    def opened(self, connection: Connection) -> None:
        connection.send(self._message)

    def received(self, connection: Connection, message: Message, frames: list[memoryview]) -> None:  # noqa: ARG002
        if not self.answer.done():
            self.answer.set_result(message)

    def closed(self, connection: Connection, verdict: Verdict) -> None:  # noqa: ARG002
        if not self.answer.done():
            self.answer.set_result(verdict)
