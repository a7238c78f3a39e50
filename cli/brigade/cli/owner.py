"""What the owner of a run asks and tells its coordinator; without one, the run's files answer what they can."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brigade.cli.last_run import find_run
from brigade.wire.errors import BrigadeError, ConfigError

if TYPE_CHECKING:
    from brigade.wire.messages import RevokeWanted, StopWanted


def tell_coordinator(run_dir: Path | None, command: "StopWanted | RevokeWanted") -> str:
    """Have a command carried out and return what the coordinator says to it.

    Raises ConfigError when no coordinator runs there, BrigadeError when it refuses.
    """
    from brigade.coordinator.ask import ask
    from brigade.wire.messages import Done

    found = find_run(run_dir)
    if not coordinator_lives(found):
        raise ConfigError(f"no coordinator runs in {found}")
    answer = ask(found, command)
    if not isinstance(answer, Done) or not answer.ok:
        raise BrigadeError(f"the coordinator refused: {getattr(answer, 'reason', answer)}")
    return answer.reason


def read_status(run_dir: Path | None) -> dict[str, Any]:
    """Return the state of a run, from its coordinator or from its files."""
    from brigade.coordinator.ask import ask
    from brigade.coordinator.record import recorded_status
    from brigade.wire.messages import StatusTold, StatusWanted

    found = find_run(run_dir)
    if coordinator_lives(found):
        try:
            answer = ask(found, StatusWanted())
        except ConfigError:  # it has gone in the meantime, or its process number is somebody else's now
            return recorded_status(found)
        if not isinstance(answer, StatusTold):
            raise BrigadeError(f"the coordinator does not tell its state: {getattr(answer, 'reason', answer)}")
        return answer.status
    return recorded_status(found)


def coordinator_lives(run_dir: Path) -> bool:
    """Tell whether the process that led this run last may still be there."""
    import psutil

    from brigade.coordinator.run_directory import read_address

    address = read_address(run_dir)
    return address is not None and psutil.pid_exists(address.pid)
