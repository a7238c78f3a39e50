"""Files that a command writes at its end: whether they can be written is asked before it begins."""

from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from brigade.wire.errors import BrigadeError, ConfigError


def require_writable(path: Path | None, option: str) -> None:
    """Raise ConfigError, which names the option, when a file cannot be written; leaves everything as it was."""
    if path is None:
        return
    made: list[Path] = []
    try:
        if path.is_dir():
            raise ConfigError(f"{option}: {path} is a directory; expected a file")
        for parent in reversed(list(takewhile(lambda parent: not parent.exists(), path.parents))):
            parent.mkdir()
            made.append(parent)
        if not path.exists():
            path.open("xb").close()
            path.unlink()
        elif path.is_file():  # a pipe is not opened: its reader would see it end
            path.open("r+b").close()
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be written: {error.strerror}") from error
    finally:
        for parent in reversed(made):
            with suppress(OSError):  # somebody else uses it by now
                parent.rmdir()


def write_output(path: Path, content: bytes) -> None:
    """Write a file and the directories above it. Raises BrigadeError when that has become impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise BrigadeError(f"{path} cannot be written: {error.strerror}") from error
