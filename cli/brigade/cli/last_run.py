"""Which run a command means when it names none: the one that was started last on this machine."""

import os
from pathlib import Path

from brigade.wire.errors import ConfigError


def pointer_file() -> Path:
    """Return where the last run is written down."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "brigade" / "last-run"


def remember(run_dir: Path) -> None:
    """Write down that this run was started last; a state directory that cannot be written is no reason to fail."""
    try:
        pointer_file().parent.mkdir(parents=True, exist_ok=True)
        pointer_file().write_text(f"{run_dir.resolve()}\n", encoding="utf-8")
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return


def find_run(run_dir: Path | None) -> Path:
    """Return the directory of the run that is meant.

    Raises ConfigError when there is none.
    """
    if run_dir is None:
        try:
            run_dir = Path(pointer_file().read_text(encoding="utf-8").strip())
        except (OSError, RuntimeError):
            raise ConfigError(
                "no run was started on this machine yet; name its directory, for example runs/NAME"
            ) from None
        if not run_dir.is_dir():
            raise ConfigError(f"the run that was started last, {run_dir}, is gone; name the directory of another")
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is no directory")
    if not (run_dir / "run.sqlite").is_file():
        raise ConfigError(f"there is no run in {run_dir}: it holds no run.sqlite")
    return run_dir


def begun_from(run_dir: Path | None) -> tuple[Path, Path]:
    """Return the run file that a run was begun from, and the run's directory; of the last run when none is named.

    Raises ConfigError when there is no such run, or its run file is gone.
    """
    from brigade.coordinator.run_directory import RUN_FILE_NAME, read_address

    found = find_run(run_dir)
    address = read_address(found)
    if address is None or not address.asked.run_file:
        raise ConfigError(f"{found} does not tell its run file; name it: brigade up RUN.toml --resume")
    run_file = Path(address.asked.run_file)
    if not run_file.is_file():
        raise ConfigError(
            f"the run file {run_file} is gone, and its paths are relative to it; put it back"
            f" (a copy is {found / RUN_FILE_NAME}) or name another: brigade up RUN.toml --resume --output-dir {found}"
        )
    return run_file, found
