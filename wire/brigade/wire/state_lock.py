"""One process at a time in a state directory, however the last one ended."""

import contextlib
import errno
import fcntl
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from brigade.wire.errors import ConfigError

LOCK_NAME = "lock"
_HELD: "weakref.WeakSet[StateLock]" = weakref.WeakSet()


class StateLock:
    """The exclusive lock of a state directory, held from construction to `release`.

    The system drops it when the process ends in any way, so a lock is never stale; the file stays.
    Makes the directory if it is missing. Raises ConfigError: held (naming the holder's process id), or the directory
    cannot be made or written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor: int | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise ConfigError(f"the state directory {directory} is not a directory") from None
        except OSError as error:
            raise _unusable(directory, error) from error
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _HELD.add(self)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"the state directory {self.directory} is in use by {_holder(descriptor)}; "
                "end that one or choose another directory"
            ) from None
        except OSError as error:  # ENOLCK on some network file systems
            raise ConfigError(f"the state directory {self.directory} cannot be locked: {error.strerror}") from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise _unusable(self.directory, error) from error

    def release(self) -> None:
        """Give the directory free; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _HELD.discard(self)
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child may still hold a copy of the descriptor
            os.close(descriptor)

    def abandon(self) -> None:
        """Close without giving free, in a forked child: the lock is the parent's, and ends with it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _holder(descriptor: int) -> str:
    """Name who holds the lock; it may be about to write its number, or to end."""
    with contextlib.suppress(OSError):
        text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        if text.isascii() and text.isdigit():
            return f"process {text}"
    return "another process"


def _unusable(directory: Path, error: OSError) -> ConfigError:
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return ConfigError(f"the state directory {directory} is not writable: {error.strerror}")
    return ConfigError(f"the state directory {directory} cannot be used: {error.strerror}")


def _abandon_in_child() -> None:
    for lock in list(_HELD):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
