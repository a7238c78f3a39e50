"""Commands that the owner of a run gives its coordinator."""

from pathlib import Path
from typing import TYPE_CHECKING

from brigade.cli.last_run import find_run
from brigade.wire.errors import BrigadeError

if TYPE_CHECKING:
    from brigade.wire.messages import RevokeWanted, StopWanted


def ask_owned(run_dir: Path | None, command: "StopWanted | RevokeWanted") -> str:
    """Have a command carried out and return what the coordinator says to it.

    Raises ConfigError when no coordinator runs there, BrigadeError when it refuses.
    """
    from brigade.coordinator.ask import ask
    from brigade.wire.messages import Done

    answer = ask(find_run(run_dir), command)
    if not isinstance(answer, Done) or not answer.ok:
        raise BrigadeError(f"the coordinator refused: {getattr(answer, 'reason', answer)}")
    return answer.reason
